"""The worker's side: `python -m crosshead.runtimes.worker_main PARENT_PID IMPORT_PATH` (see `worker`).

The very first things: tie this process's life to its parent's, keep the pipe to the parent to itself, and point
standard output at the error output, so that a library that prints cannot spoil the conversation. Heavy libraries are
imported by the first request, `Open`, and no earlier.
"""

# ruff: noqa: E402  # NumPy comes first among the libraries, and is timed: every backend's library imports it

import contextlib
import ctypes
import faulthandler
import importlib
import importlib.metadata
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import BinaryIO

_began = time.perf_counter()
importlib.import_module("numpy")

_NUMPY_S = time.perf_counter() - _began

import msgspec
import numpy as np
import psutil

from crosshead.export.artifact import Artifact, unpack_arrays, write_arrays
from crosshead.runtimes import messages, peaks, timing
from crosshead.runtimes._environment import extend_import_path
from crosshead.runtimes._scrub import one_line
from crosshead.runtimes.base import Array, Session, Step
from crosshead.runtimes.errors import BackendError, InputError, PlacementError, UnsupportedError, VoidError
from crosshead.runtimes.growth import grow, read_memory

_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 1.0
_OOM_SCORE = "700"
"""When memory runs out, the kernel shall end a worker and not somebody's editor (-1000 never, 1000 first)."""


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends; on Linux also while this process is stopped.

    Linux ends it when the *thread* that started it ends (`man 2 PR_SET_PDEATHSIG`). Elsewhere a thread looks once a
    second who the parent is.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent and psutil.pid_exists(parent):  # Windows goes on naming a parent that is gone
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def take_channel() -> tuple[BinaryIO, BinaryIO]:
    """Return (requests, replies) on file descriptors of their own, and leave 0 and 1 harmless."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def rss_bytes() -> int:
    """Return the resident size of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_rss_bytes() -> int:
    """Return the largest resident size that this process had.

    Not `getrusage` on Linux: what it says of a child starts from the size of the parent that forked it.
    """
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return rss_bytes()
    elif sys.platform == "win32":  # noqa: RET505  # the type checker follows platforms through elif alone
        return int(psutil.Process().memory_info().peak_wset)
    else:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


class Server:
    """Answers requests, one at a time. Holds one session; another `Open` puts another artifact in its place."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._step: Step | None = None
        self._calls = 1
        self._inputs: dict[str, Array] = {}
        self._more_steps: list[Step] = []

    def answer(self, request: messages.Request) -> messages.Reply:
        """Return the reply to a request; what goes wrong becomes `Failed`."""
        try:
            return self._answer(request)
        except Exception as error:  # noqa: BLE001  # whatever a backend or a user's module raises is an answer
            traceback.print_exc()
            return failure(error)

    def _answer(self, request: messages.Request) -> messages.Reply:
        match request:
            case messages.Open():
                return self._open(request)
            case messages.Run():
                return self._run(request)
            case messages.WarmUp():
                return self._warm_up(request)
            case messages.Measure():
                return self._measure(request)
            case messages.Grow():
                inputs = unpack_arrays(Path(request.inputs))
                return grow(self._opened_session(), inputs, calls=request.calls, seed=request.seed, memory=read_memory)
            case messages.Peak():
                return self._peak(request)
            case messages.Load():
                return self._load(request)
            case messages.Close():
                if self._session is not None:
                    self._session.close()
                return messages.Closed()

    def _open(self, request: messages.Open) -> messages.Reply:
        from crosshead.runtimes.registry import get_runtime

        runtime = get_runtime(request.runtime)
        artifact = Artifact.load(Path(request.artifact))
        started = time.perf_counter()
        runtime.import_library()
        imported = time.perf_counter()
        if self._session is not None:  # another artifact in its place
            self._session.close()
            self._session = self._step = None
        self._session = runtime.open(artifact, request.settings, request.source_folder)
        opened = time.perf_counter()
        details = self._session.details()
        for name in ("GLIBC_TUNABLES", "OMP_NUM_THREADS"):
            details[name] = os.environ.get(name, "")
        return messages.Opened(
            import_s=_NUMPY_S + imported - started,
            session_s=opened - imported,
            placement=self._session.placement(),
            versions=versions(runtime.distributions),
            details=details,
            peak_rss_bytes=peak_rss_bytes(),
        )

    def _opened_session(self) -> Session:
        if self._session is None:
            raise BackendError("no artifact is open; the first request has to be Open")
        return self._session

    def _run(self, request: messages.Run) -> messages.Reply:
        session = self._opened_session()
        inputs = unpack_arrays(Path(request.inputs))
        compile_s = session.compile(inputs)
        started = time.perf_counter()
        outputs = session.run(inputs)
        call_s = time.perf_counter() - started
        write_arrays(Path(request.outputs), outputs)
        placement = session.prove(inputs)
        details = session.details() if compile_s is not None else {}
        return messages.Ran(
            call_s=call_s,
            placement=placement,
            compile_s=compile_s,
            peak_rss_bytes=peak_rss_bytes(),
            details=details,
        )

    def _warm_up(self, request: messages.WarmUp) -> messages.Reply:
        session = self._opened_session()
        inputs = unpack_arrays(Path(request.inputs))
        compile_s = session.compile(inputs)
        step = session.bind(inputs)
        first_call_s = timing.first_call(step)
        session.prove(inputs)  # after the first call, which it would warm up
        warm = timing.warm_up(step, request.limit_s, first_call_s)
        copies = session.copies(inputs)
        to_device, to_host = (timing.median_s(copy) for copy in copies) if copies is not None else (None, None)
        self._step, self._calls = step, warm.calls_per_sample
        self._inputs, self._more_steps = inputs, []
        return messages.Warm(
            first_call_s=warm.first_call_s,
            calls=warm.calls,
            steady=warm.steady,
            call_s=warm.call_s,
            calls_per_sample=warm.calls_per_sample,
            host_to_device_s=to_device,
            device_to_host_s=to_host,
            compile_s=compile_s,
        )

    def _measure(self, request: messages.Measure) -> messages.Reply:
        if self._step is None:
            raise BackendError("nothing is bound; WarmUp has to come before Measure")
        samples = timing.record(
            self._step,
            calls=self._calls,
            settle_s=request.settle_s,
            duration_s=request.duration_s,
            min_samples=request.min_samples,
        )
        return messages.Measured(samples_s=samples, peak_rss_bytes=peak_rss_bytes(), rss_bytes=rss_bytes())

    def _load(self, request: messages.Load) -> messages.Reply:
        from crosshead.runtimes.load import Demand, serve

        session = self._opened_session()
        if self._step is None:
            raise BackendError("nothing is bound; WarmUp has to come before Load")
        while len(self._more_steps) < request.workers - 1:
            self._more_steps.append(session.bind(self._inputs))
        arrivals = unpack_arrays(Path(request.arrivals))["intended_s"] if request.arrivals is not None else None
        demand = Demand(
            duration_s=request.duration_s,
            arrivals_s=None if arrivals is None else arrivals.astype(np.float64),
            clients=request.clients,
            lead_s=request.lead_s,
            limits_s=request.limits_s,
            looks=request.looks,
        )
        steps = [self._step, *self._more_steps[: request.workers - 1]]
        served = serve(demand, steps, settle_s=request.settle_s)
        names = ("intended_s", "started_s", "ended_s", "idle")
        write_arrays(Path(request.samples), {name: getattr(served, name) for name in names})
        return messages.Loaded(
            answered=len(served.intended_s),
            left=served.left,
            window_s=served.window_s,
            stopped=served.stopped,
            finding=served.finding,
            peak_rss_bytes=peak_rss_bytes(),
        )

    def _peak(self, request: messages.Peak) -> messages.Reply:
        session = self._opened_session()
        product, threads = session.product(), session.copying_threads()
        return messages.Peaked(
            flop_s=None if product is None else peaks.product_flop_s(product, request.duration_s),
            copy_bytes_s=None if threads is None else peaks.copy_bytes_s(threads, request.duration_s),
        )


def failure(error: Exception) -> messages.Failed:
    """Return the reply for an exception: its kind, and one line."""
    message = one_line(str(error))
    match error:
        case UnsupportedError():
            return messages.Failed(kind="unsupported", message=message)
        case PlacementError():
            return messages.Failed(kind="placement", message=message)
        case InputError():
            return messages.Failed(kind="input", message=message)
        case VoidError():
            return messages.Failed(kind="void", message=message)
        case MemoryError():
            return messages.Failed(kind="error", message=f"out of memory: {message or 'an allocation was refused'}")
    if not type(error).__module__.startswith("crosshead."):
        message = f"{type(error).__name__}: {message}"
    return messages.Failed(kind="error", message=message)


def versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> None:
    """Answer requests until `Close` or until the parent is gone, then end at once: no library can hang at exit."""
    die_with(int(sys.argv[1]))
    requests, replies = take_channel()
    extend_import_path(sys.argv[2])
    faulthandler.enable(all_threads=False)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # not everywhere allowed, and not needed
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    server = Server()
    for line in requests:
        request = msgspec.json.decode(line, type=messages.Request)
        reply = server.answer(request)
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()
        if isinstance(reply, messages.Closed):
            break
    os._exit(0)


if __name__ == "__main__":
    main()
