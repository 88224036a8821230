"""The parent's side of a worker: one process that holds one session, and ends without harm however it ends."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Self, TypeVar

import msgspec
import psutil

from crosshead.runtimes import messages
from crosshead.runtimes._channel import LineReader
from crosshead.runtimes._environment import child_environment, default_memory_limit_bytes, import_path, python_command
from crosshead.runtimes._scrub import one_line, tail
from crosshead.runtimes.base import Settings
from crosshead.runtimes.errors import (
    BackendError,
    InputError,
    PlacementError,
    SessionClosedError,
    UnknownBackendError,
    UnsupportedError,
    VoidError,
    WorkerCrashedError,
    WorkerError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CAN_PAUSE = sys.platform == "linux"
"""Whether an idle worker can be stopped. Where not, keep one worker alive at a time, and say so in the record.

Other systems may have SIGSTOP too, but not a signal at the parent's death that reaches a stopped process.
"""

POLL_S = 0.25
CLOSE_WAIT_S = 2.0
_TAIL_READ_BYTES = 16384

ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)

_KINDS: dict[str, type[BackendError]] = {
    "unsupported": UnsupportedError,
    "placement": PlacementError,
    "input": InputError,
    "void": VoidError,
    "error": BackendError,
}


class Worker:
    """One backend with one artifact in a process of its own. Use as a context manager; it starts with `start`.

    Each request waits for its reply under a deadline and a memory limit. A `Failed` reply raises a `BackendError` of
    its kind and leaves the worker usable (except after `Open`); everything else that goes wrong raises a `WorkerError`,
    and the worker is dead by then. One thread at a time may ask; `close` may come from any thread, and ends a wait.

    `start` has to be called from a thread that outlives the worker: Linux ends a child with the thread that started it.
    """

    def __init__(
        self,
        runtime: str,
        artifact: Path,
        settings: Settings,
        *,
        source_folder: Path | None = None,
        cache_folder: Path | None = None,
        timeout_s: float = 120.0,
        memory_limit_bytes: int | None = None,
    ) -> None:
        """Prepare; nothing is started.

        Args:
            runtime: name of the backend.
            artifact: folder of the artifact.
            settings: how it is to run.
            source_folder: where the user's factory stands, for backends that execute the module.
            cache_folder: where a backend that compiles keeps what it made; workers that share it compile once. None
                for a folder of this worker's own, which is deleted with it.
            timeout_s: seconds until each reply, beside what a request itself asks to be spent.
            memory_limit_bytes: resident size at which it is ended; None for 90 % of what is free when it starts.
        """
        self._open = messages.Open(
            runtime=runtime,
            artifact=str(Path(artifact).resolve()),
            settings=settings,
            source_folder=None if source_folder is None else str(Path(source_folder).resolve()),
        )
        self._cache_folder = None if cache_folder is None else Path(cache_folder).resolve()
        self._timeout_s = timeout_s
        self._memory_limit_bytes = memory_limit_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: LineReader | None = None
        self._errors: BinaryIO | None = None
        self._end: Callable[[], object] | None = None
        self._opened: messages.Opened | None = None
        self._open_deadline = 0.0
        self._paused = False
        self._outstanding = False
        self._closed = False

    def start(self) -> None:
        """Start the process, unless `boot` did, and send it `Open`; returns at once.

        Raises:
            WorkerError: it was started before, or the system starts no process.
        """
        if self._process is None:
            self.boot()
        if self._closed or self._open_deadline:
            raise WorkerError("this worker was started before; make another one")
        self._open_deadline = time.monotonic() + self._timeout_s
        self._send(self._open)

    def boot(self) -> None:
        """Start the process alone: the interpreter comes up and waits, and no library of the backend is imported yet.

        Raises:
            WorkerError: it was started before, or the system starts no process.
        """
        if self._process is not None or self._closed:
            raise WorkerError("this worker was started before; make another one")
        if self._memory_limit_bytes is None:
            self._memory_limit_bytes = default_memory_limit_bytes()
        compiles = _compiles(self._open.runtime)
        own_cache = tempfile.mkdtemp(prefix="crosshead-cache-") if compiles and self._cache_folder is None else None
        cache = Path(own_cache) if own_cache is not None else self._cache_folder
        handle, path = tempfile.mkstemp(prefix="crosshead-worker-", suffix=".log")
        errors = Path(path).open("rb")  # noqa: SIM115  # lives as long as the worker
        try:
            self._process = subprocess.Popen(
                [*python_command("crosshead.runtimes.worker_main"), str(os.getpid()), import_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                env=child_environment(self._open.settings, cache if compiles else None),
                start_new_session=True,  # the terminal's Ctrl-C reaches the parent alone, and a group can be ended
            )
        except OSError as error:
            errors.close()
            _remove(own_cache)
            raise WorkerError(f"a worker process cannot be started: {error.strerror or error}") from error
        finally:
            os.close(handle)
            if sys.platform != "win32":
                os.unlink(path)  # noqa: PTH108  # both sides hold it open; nothing stays behind
        assert self._process.stdout is not None, "it is a pipe"
        self._errors, self._lines = errors, LineReader(self._process.stdout)
        leftover = path if sys.platform == "win32" else None
        self._end = weakref.finalize(self, _end, os.getpid(), self._process, self._lines, errors, leftover, own_cache)

    def opened(self) -> messages.Opened:
        """Wait until the artifact is loaded; later calls give the same answer. The deadline runs from `start`.

        Raises:
            BackendError: the backend refused (`UnsupportedError`, `PlacementError`, …); the worker is closed.
            WorkerError: the process ended or misbehaved.
        """
        if self._opened is None:
            self._check_usable()
            self.resume()
            try:
                self._opened = self._receive(messages.Opened, self._open_deadline, "loading the artifact")
            except BackendError:
                self.close()
                raise
        return self._opened

    def open_other(self, artifact: Path) -> messages.Opened:
        """Load another artifact in place of the one that is open, under the same settings.

        Raises:
            BackendError: the backend refused; the worker lives on, and takes another one.
            WorkerError: the process ended or misbehaved.
        """
        request = msgspec.structs.replace(self._open, artifact=str(Path(artifact).resolve()))
        return self._ask(request, messages.Opened, 0.0, "loading another artifact")

    def run(self, inputs: Path, outputs: Path) -> messages.Ran:
        """Run once.

        Args:
            inputs: `.npz` of the input arrays.
            outputs: where the `.npz` of the outputs is written.

        Raises:
            InputError: a name, shape or dtype that does not fit.
            BackendError: the backend failed.
            WorkerError: the process ended or misbehaved.
        """
        request = messages.Run(inputs=str(Path(inputs).resolve()), outputs=str(Path(outputs).resolve()))
        return self._ask(request, messages.Ran, 0.0, "a run")

    def warm_up(self, inputs: Path, limit_s: float) -> messages.Warm:
        """Bind the inputs and call until the time is steady, or until `limit_s` seconds have gone by.

        Raises:
            BackendError: the backend failed.
            WorkerError: the process ended or misbehaved.
        """
        request = messages.WarmUp(inputs=str(Path(inputs).resolve()), limit_s=limit_s)
        return self._ask(request, messages.Warm, limit_s, "warming up")

    def measure(self, settle_s: float, duration_s: float, min_samples: int = 1) -> messages.Measured:
        """Take one turn: call unrecorded for `settle_s`, then record for `duration_s` and at least `min_samples`.

        Raises:
            BackendError: the backend failed, or nothing was warmed up.
            WorkerError: the process ended or misbehaved.
        """
        request = messages.Measure(settle_s=settle_s, duration_s=duration_s, min_samples=min_samples)
        return self._ask(request, messages.Measured, settle_s + duration_s, "measuring")

    def grow(self, inputs: Path, calls: int, seed: int) -> messages.Grown:
        """Call with many lengths, and say how resident memory grew; see `crosshead.runtimes.growth`.

        Raises:
            InputError: there is no length to vary.
            BackendError: the backend failed.
            WorkerError: the process ended or misbehaved.
        """
        request = messages.Grow(inputs=str(Path(inputs).resolve()), calls=calls, seed=seed)
        return self._ask(request, messages.Grown, 0.0, "calling with many lengths")

    def peak(self, duration_s: float) -> messages.Peaked:
        """Find out what the machine can do, through the backend's library; see `crosshead.runtimes.peaks`.

        Raises:
            BackendError: the backend failed.
            WorkerError: the process ended or misbehaved.
        """
        return self._ask(messages.Peak(duration_s=duration_s), messages.Peaked, 2.0 * duration_s, "measuring its peak")

    def load(self, request: messages.Load) -> messages.Loaded:
        """Serve requests, as many at a time as asked for; see `crosshead.runtimes.load`.

        Raises:
            BackendError: the backend failed, or nothing was warmed up.
            WorkerError: the process ended or misbehaved.
        """
        return self._ask(request, messages.Loaded, request.settle_s + request.duration_s, "serving requests")

    def pause(self) -> None:
        """Stop the process and all its threads, and return when they stand. Does nothing where `CAN_PAUSE` is false."""
        process = self._process
        if process is None or self._closed or self._paused or not CAN_PAUSE:
            return
        if sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):  # it ended; the next request finds out
                os.killpg(process.pid, signal.SIGSTOP)
                self._paused = True
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a stopped process go on; every request does so by itself."""
        if self._paused and self._process is not None and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """End the process: asked politely when it is idle, killed when it does not go. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        process, end = self._process, self._end
        if process is None or end is None:
            return
        if self._opened is not None and not self._outstanding and process.poll() is None:
            with contextlib.suppress(WorkerError, subprocess.TimeoutExpired):
                self.resume()
                self._send(messages.Close())
                process.wait(CLOSE_WAIT_S)
        end()

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._open_deadline > 0.0

    @property
    def closed(self) -> bool:
        """Whether it was ended, by `close` or because the artifact was refused."""
        return self._closed

    @property
    def pid(self) -> int | None:
        """The process id; None before `start`."""
        return None if self._process is None else self._process.pid

    def stderr_tail(self) -> str:
        """Return the last lines of the error output, without paths and without the names of user and machine."""
        errors = self._errors
        if errors is None or errors.closed:
            return ""
        size = errors.seek(0, os.SEEK_END)
        errors.seek(max(0, size - _TAIL_READ_BYTES))
        return tail(errors.read())

    def _check_usable(self) -> None:
        if self._closed:
            raise SessionClosedError("the worker was closed; start another one")
        if self._process is None or not self._open_deadline:
            raise WorkerError("the worker was not started; call start() first")

    def _ask(self, request: messages.Request, kind: type[ReplyT], spent_s: float, doing: str) -> ReplyT:
        self.opened()
        self._check_usable()
        if self._outstanding:
            self._fail(
                WorkerProtocolError, "the reply to an earlier request was never fetched, and the worker was ended"
            )
        self.resume()
        self._send(request)
        return self._receive(kind, time.monotonic() + self._timeout_s + spent_s, doing)

    def _send(self, request: messages.Request) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None, "checked by the caller"
        try:
            self._outstanding = True
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        except (OSError, ValueError):  # a broken pipe, or closed by another thread
            self._raise_ended("before it was asked")

    def _receive(self, kind: type[ReplyT], deadline: float, doing: str) -> ReplyT:
        line = self._next_line(deadline, doing)
        self._outstanding = False
        self._watch_memory(doing)
        try:
            reply = msgspec.json.decode(line, type=messages.Reply)
        except msgspec.MsgspecError:
            shown = one_line(line[:80].decode(errors="replace"))
            self._fail(
                WorkerProtocolError, f"while {doing}, the worker answered with something that is no message: {shown!r}"
            )
        if isinstance(reply, messages.Failed):
            raise _KINDS[reply.kind](reply.message)
        if not isinstance(reply, kind):
            name = type(reply).__name__
            self._fail(WorkerProtocolError, f"while {doing}, the worker answered {name}; expected {kind.__name__}")
        return reply

    def _next_line(self, deadline: float, doing: str) -> bytes:
        """Wait for a line, and meanwhile watch the clock and the worker's memory."""
        assert self._lines is not None, "started"
        wait_s = 0.0  # what is there already counts, however late it is fetched
        while True:
            try:
                line = self._lines.next_line(wait_s)
            except queue.Empty:
                self._watch_memory(doing)
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    limit = f"{self._timeout_s:g} s"
                    self._fail(
                        WorkerTimeoutError, f"while {doing}, the worker gave no answer within {limit}, and was killed"
                    )
                wait_s = min(POLL_S, left_s)
                continue
            if line is None:
                self._raise_ended(f"while {doing}")
            return line

    def _watch_memory(self, doing: str) -> None:
        assert self._process is not None
        assert self._memory_limit_bytes is not None, "set by start"
        try:
            size = psutil.Process(self._process.pid).memory_info().rss
        except psutil.Error:  # it just ended; the pipe tells
            return
        if size > self._memory_limit_bytes:
            held, limit = size / 2**20, self._memory_limit_bytes / 2**20
            message = (
                f"while {doing}, the worker held {held:.0f} MiB, over its limit of {limit:.0f} MiB, and was killed"
            )
            self._fail(WorkerMemoryError, message)

    def _raise_ended(self, when: str) -> NoReturn:
        """Raise for a worker whose pipe is at its end."""
        if self._closed:
            raise SessionClosedError(f"{when}, the worker was closed")
        assert self._process is not None
        try:
            status = self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._fail(
                WorkerProtocolError, f"{when}, the worker closed its channel but went on running, and was killed"
            )
        self._fail(WorkerCrashedError, f"{when}, the worker {describe_status(status)}")

    def _fail(self, kind: type[WorkerError], message: str) -> NoReturn:
        """End the process and raise, with the tail of its error output."""
        told = self.stderr_tail()
        self._closed = True
        if self._end is not None:
            self._end()
        raise kind(message, told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def describe_status(status: int) -> str:
    """Say how a process ended, from what `Popen.wait` gives."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (when memory runs out, the kernel does that)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def _compiles(name: str) -> bool:
    from crosshead.runtimes.registry import get_runtime

    try:
        return get_runtime(name).capabilities.compiles
    except UnknownBackendError:  # the worker says so
        return False


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _end(
    owner: int,
    process: "subprocess.Popen[bytes]",
    lines: LineReader,
    errors: BinaryIO,
    leftover: str | None,
    own_cache: str | None,
) -> None:
    """Kill the worker and all that it started, and release what the parent holds. Runs once: on close, or at exit."""
    if os.getpid() != owner:  # a fork of the parent: not its worker
        return
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of the group is left
            os.killpg(process.pid, signal.SIGKILL)  # reaches stopped processes too
    process.wait()
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    lines.join()
    errors.close()
    if leftover is not None:
        Path(leftover).unlink(missing_ok=True)
    _remove(own_cache)
