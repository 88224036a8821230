"""`fake`: a backend that misbehaves on request, so that everything above it can be tested.

It computes nothing: it answers with the expected outputs that the artifact carries for the inputs at hand, and refuses
inputs that are no case of the artifact. Only with a `fault` does it compute the graph, on any inputs, at the artifact's
precision, with the reference evaluator of the onnx package in which operators are wrong in one way (`_faults.FAULTS`).
`Settings.fake` says what else it does; see `Behaviour`.
"""

import contextlib
import ctypes
import importlib.metadata
import os
import signal
import stat
import sys
import time
from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
import numpy as np

from crosshead.export.artifact import Artifact
from crosshead.runtimes._faults import find_fault
from crosshead.runtimes.base import (
    Array,
    Available,
    Capabilities,
    Outputs,
    Placement,
    ProviderShare,
    Runtime,
    Session,
    Settings,
    Step,
    Unavailable,
)
from crosshead.runtimes.errors import BackendError, PlacementError, UnsupportedError

_CHUNK_BYTES = 16 << 20


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `fake` does, by name in `Settings.fake`. Everything is off by default.

    Attributes:
        slow_start_s: sleep so long when opened.
        compile_s: sleep so long before the first call, as a backend that compiles does.
        sleep_s: sleep so long in every call.
        stall_s: sleep so much longer, once, when `at` comes.
        slower: every call takes so much longer, as a share of itself, and keeps a core busy meanwhile.
        wraps: name of another backend that does the work, under the same settings; it is then slowed down or spoiled.
        fault: compute the graph with this fault in it, by its name in `_faults.FAULTS`.
        zeros: answer zeros of the right shape to inputs that are no case of the artifact.
        relative_error: every floating output is `1 + relative_error` times what it should be (its relative L2 error).
        nan: the first element of every floating output is NaN.
        noise: relative size of a random error, different in every call.
        drop_output: name of an output that is left out.
        leak_bytes: keep so much more memory after every call.
        eat_bytes: when `at` comes, take so much memory and keep it.
        unsupported: refuse the artifact with this text.
        wrong_placement: claim that all arithmetic fell back to another provider.
        raises: raise `RuntimeError` with this text when `at` comes.
        memory_error: raise `MemoryError` when `at` comes.
        stdout, stderr: print this when `at` comes.
        rubbish: write this into every pipe that the process has open, as a broken library might, when `at` comes.
        ending: what the process comes to when `at` comes.
        exit_status: with `ending="exit"`.
        at: when: while it is opened, or in a call.
        after_calls: with `at="call"`, how many calls go well before.
    """

    slow_start_s: float = 0.0
    compile_s: float = 0.0
    sleep_s: float = 0.0
    stall_s: float = 0.0
    slower: float = 0.0
    wraps: str = ""
    fault: str = ""
    zeros: bool = False
    relative_error: float = 0.0
    nan: bool = False
    noise: float = 0.0
    drop_output: str = ""
    leak_bytes: int = 0
    eat_bytes: int = 0
    unsupported: str = ""
    wrong_placement: bool = False
    raises: str = ""
    memory_error: bool = False
    stdout: str = ""
    stderr: str = ""
    rubbish: str = ""
    ending: Literal["", "segfault", "abort", "exit", "kill", "hang"] = ""
    exit_status: int = 3
    at: Literal["open", "call"] = "call"
    after_calls: int = 0


def read_behaviour(settings: Settings) -> Behaviour:
    """Return `settings.fake` with names and types checked.

    Raises:
        BackendError: an unknown name, or a value of the wrong type.
    """
    known = Behaviour.__struct_fields__
    unknown = [name for name in settings.fake if name not in known]
    if unknown:
        raise BackendError(f"the fake backend has no option {unknown[0]!r}; it has: {', '.join(known)}")
    try:
        return msgspec.convert(settings.fake, type=Behaviour)
    except msgspec.ValidationError as error:
        raise BackendError(f"an option of the fake backend has the wrong type: {error}") from error


class Fake(Runtime):
    """The backend."""

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="graph", precisions=("fp32", "fp16", "bf16"), in_all=False, calls_at_once=True
    )

    def probe(self) -> Available | Unavailable:
        """It is always there."""
        return Available(
            version=importlib.metadata.version("crosshead"), detail="for tests; it can be wrong on purpose"
        )

    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> Session:
        behaviour = read_behaviour(settings)
        time.sleep(behaviour.slow_start_s)
        if behaviour.unsupported:
            raise UnsupportedError(behaviour.unsupported)
        if behaviour.wrong_placement and not settings.allow_fallback:
            raise PlacementError("all nodes ran on OtherProvider, not on FakeProvider")
        inner = _open_inner(artifact, behaviour, settings, source_folder)
        kept: list[Array] = []
        if behaviour.at == "open":
            _misbehave(behaviour, kept)
        return _FakeSession(artifact, behaviour, kept, inner)


def _open_inner(
    artifact: Artifact, behaviour: Behaviour, settings: Settings, source_folder: str | None
) -> Session | None:
    """Load the artifact into what does the work; None where nothing does.

    Raises:
        BackendError: a fault and a backend were both asked for, or what was asked for refuses.
    """
    if behaviour.fault and behaviour.wraps:
        raise BackendError(
            "fake.fault computes the graph by itself, and fake.wraps by another backend; set one of them"
        )
    if behaviour.fault:
        return _open_faulty(artifact, behaviour.fault)
    if not behaviour.wraps:
        return None
    from crosshead.runtimes.registry import get_runtime  # which imports this file

    runtime = get_runtime(behaviour.wraps)
    runtime.import_library()
    return runtime.open(artifact, msgspec.structs.replace(settings, fake={}), source_folder)


def _open_faulty(artifact: Artifact, name: str) -> Session:
    """Load the graph into the reference evaluator with a fault in it.

    Raises:
        BackendError: no fault of this name, or the evaluator refuses the graph.
    """
    fault = find_fault(name)  # before onnx is imported
    from crosshead.runtimes._faulty_ops import faulty_ops
    from crosshead.runtimes.onnx_reference import open_reference

    return open_reference(artifact, faulty_ops(fault.name))


class _FakeSession(Session):
    def __init__(
        self, artifact: Artifact, behaviour: Behaviour, kept: list[Array], inner: Session | None = None
    ) -> None:
        super().__init__(artifact)
        self._inner = inner
        self._behaviour = behaviour
        self._kept = kept
        self._calls = 0
        self._compiled = False
        self._random = np.random.default_rng()  # from the system's entropy: `noise` shall differ from run to run

    def _run(self, inputs: Mapping[str, Array]) -> Outputs:
        right = self._answer(inputs)
        self._call()
        return {name: self._spoil(array) for name, array in right.items() if name != self._behaviour.drop_output}

    def _bind(self, inputs: Mapping[str, Array]) -> Step:
        if self._inner is None:
            self._answer(inputs)
            return self._slowed(self._call)
        work = self._inner.bind(dict(inputs))

        def step() -> object:
            outputs = work()
            self._call()
            return outputs

        return self._slowed(step)

    def _slowed(self, step: Step) -> Step:
        slower = self._behaviour.slower
        if not slower:
            return step

        def slow_step() -> object:
            began = time.perf_counter()
            outputs = step()
            end = began + (1.0 + slower) * (time.perf_counter() - began)
            while time.perf_counter() < end:
                pass
            return outputs

        return slow_step

    def _compile(self, inputs: Mapping[str, Array]) -> float | None:  # noqa: ARG002  # it looks at none
        if self._compiled or not self._behaviour.compile_s:
            return None
        self._compiled = True
        started = time.perf_counter()
        time.sleep(self._behaviour.compile_s)
        return time.perf_counter() - started

    def _call(self) -> None:
        behaviour, made = self._behaviour, self._calls
        self._calls += 1
        if behaviour.sleep_s:
            time.sleep(behaviour.sleep_s)
        if behaviour.leak_bytes:
            self._kept.append(np.ones(behaviour.leak_bytes, np.uint8))
        if behaviour.at == "call" and made == behaviour.after_calls:
            _misbehave(behaviour, self._kept)

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        if self._inner is not None:
            return self._inner.run(inputs)
        dtypes = {spec.name: _dtype(spec.dtype) for spec in self._artifact.manifest.outputs}
        for case in self._artifact.manifest.all_cases:
            carried = self._artifact.inputs(case.name)
            if all(
                carried[name].shape == array.shape and carried[name].tobytes() == array.tobytes()
                for name, array in inputs.items()
            ):
                expected = self._artifact.expected(case.name)
                return {name: array.astype(dtypes[name]) for name, array in expected.items()}
        if self._behaviour.zeros:
            sizes = {
                axis: size
                for spec in self._artifact.manifest.inputs
                for axis, size in zip(spec.shape, inputs[spec.name].shape, strict=True)
            }
            return {
                spec.name: np.zeros(
                    [sizes.get(axis, 1) if isinstance(axis, str) else axis for axis in spec.shape], dtypes[spec.name]
                )
                for spec in self._artifact.manifest.outputs
            }
        raise BackendError(
            "the fake backend knows only the cases that the artifact carries; these inputs are none of them"
        )

    def _spoil(self, array: Array) -> Array:
        behaviour = self._behaviour
        if array.dtype.kind in "iub":
            return array
        spoiled = array.astype(np.float64) * (1.0 + behaviour.relative_error)
        if behaviour.noise:
            spoiled *= 1.0 + behaviour.noise * self._random.standard_normal(spoiled.shape)
        if behaviour.nan and spoiled.size:
            spoiled.flat[0] = np.nan
        return spoiled.astype(array.dtype)

    def _placement(self) -> Placement:
        provider = "OtherProvider" if self._behaviour.wrong_placement else "FakeProvider"
        nodes = sum(self._artifact.manifest.ops.values())
        fallen_back = ("every node",) if self._behaviour.wrong_placement else ()
        shares = {provider: ProviderShare(nodes=nodes, flops_share=1.0)}
        return Placement(providers=shares, fallen_back=fallen_back, proof="claimed")

    def _close(self) -> None:
        self._kept.clear()
        if self._inner is not None:
            self._inner.close()


def _dtype(name: str) -> np.dtype[np.generic]:
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def _misbehave(behaviour: Behaviour, kept: list[Array]) -> None:
    time.sleep(behaviour.stall_s)
    if behaviour.stdout:
        os.write(1, behaviour.stdout.encode())
    if behaviour.stderr:
        print(behaviour.stderr, file=sys.stderr, flush=True)  # noqa: T201  # it is what was asked for
    for _ in range(0, behaviour.eat_bytes, _CHUNK_BYTES):
        kept.append(np.ones(_CHUNK_BYTES, np.uint8))  # written to, so that it is resident
        time.sleep(0.002)  # as a growing process does, and unlike a single allocation, it can be caught on the way
    if behaviour.rubbish:
        _write_into_pipes(behaviour.rubbish.encode())
    if behaviour.memory_error:
        raise MemoryError("asked for")
    if behaviour.raises:
        raise RuntimeError(behaviour.raises)
    if behaviour.ending:
        _end(behaviour)


def _end(behaviour: Behaviour) -> None:
    match behaviour.ending:
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has the latter alone
        case "exit":
            os._exit(behaviour.exit_status)
        case "hang":
            while True:
                time.sleep(3600.0)


def _write_into_pipes(data: bytes) -> None:
    """Write into the pipes among the first file descriptors, standard ones left out: the worker's channel is one."""
    for descriptor in range(3, 32):
        with contextlib.suppress(OSError):  # not open, or not for writing
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, data)
