"""The contract of a backend: `Runtime` (stateless) opens an artifact and gives a `Session` (a context manager).

A backend is one file. It declares what it can do as data, imports its heavy library only inside `import_library` and
`_open`, and fills two or three hooks of `Session`: `_run`, `_bind`, `_placement`. What is asked of every backend in
the same way (is the session open, do the inputs fit, does the backend take this precision) is asked here, once.
"""

import abc
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, Precision, TensorSpec
from crosshead.runtimes.errors import SessionClosedError, UnsupportedError
from crosshead.runtimes.inputs import check_inputs
from crosshead.runtimes.outputs import check_outputs

Array = NDArray[np.generic]
Outputs = dict[str, Array]
Step = Callable[[], object]

Optimization = Literal["disable", "basic", "extended", "layout", "all"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend is to run. Recorded with every cell; a backend ignores what it has no notion of.

    Attributes:
        threads: threads inside one operator (intra-op).
        optimization: graph optimisation level of ONNX Runtime.
        spinning: whether ONNX Runtime's idle threads spin.
        memory_arena: whether ONNX Runtime's CPU allocator keeps an arena.
        memory_pattern: whether ONNX Runtime plans the memory of each new set of input shapes, and keeps the plan.
        arena_shrinkage: whether ONNX Runtime gives back what its arena does not need at the end of every call.
        io_binding: whether timed calls use bound inputs and outputs.
        tf32: whether CUDA matrix products may round fp32 inputs to TF32.
        huge_pages: whether the worker is started with huge pages for the C heap (glibc).
        allow_fallback: whether nodes other than shape arithmetic may run on another provider.
        fake: behaviour of the `fake` backend; see `crosshead.runtimes.fake`.
    """

    threads: int = 1
    optimization: Optimization = "all"
    spinning: bool = True
    memory_arena: bool = True
    memory_pattern: bool = True
    arena_shrinkage: bool = False
    io_binding: bool = True
    tf32: bool = False
    huge_pages: bool = True
    allow_fallback: bool = False
    fake: dict[str, Any] = {}


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a backend is known not to compute what the standard says. Data, so that it can be shown and be tested.

    Attributes:
        op: the operator, `domain::op_type` as in a manifest.
        when: the circumstances.
        effect: what comes out instead.
        seen_in: library and version in which it was seen, e.g. `onnx 1.23.2`.
        report: public report of it, or empty.
    """

    op: str
    when: str
    effect: str
    seen_in: str
    report: str = ""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do, as data.

    Attributes:
        executes: `graph` (the .onnx) or `module` (the PyTorch source of the artifact).
        device: where it computes.
        precisions: precisions it takes.
        opsets: lowest and highest opset of the default domain it takes; None where it does not read opsets.
        in_all: whether `--backend all` includes it.
        timed_in_all: whether `--backend all` also times it.
        compiles: whether it compiles for the shapes at hand before it can run; its worker then gets a folder to keep
            the compiled code in.
        calls_at_once: whether calls bound by one session may run in several threads at the same time.
        deviations: where it is known to be off.
    """

    executes: Literal["graph", "module"]
    device: Literal["cpu", "cuda"] = "cpu"
    precisions: tuple[Precision, ...] = ("fp32",)
    opsets: tuple[int, int] | None = None
    in_all: bool = True
    timed_in_all: bool = True
    compiles: bool = False
    calls_at_once: bool = False
    deviations: tuple[Deviation, ...] = ()


class Available(msgspec.Struct, frozen=True, tag="available"):
    """The backend can be used here.

    Attributes:
        version: version of the library that does the work.
        detail: anything worth a line in `crosshead backends` (device name, build), or empty.
    """

    version: str
    detail: str = ""


class Unavailable(msgspec.Struct, frozen=True, tag="unavailable"):
    """The backend cannot be used here.

    Attributes:
        reason: why, in one clause.
        remedy: the command or step that would mend it.
    """

    reason: str
    remedy: str


class ProviderShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one execution provider (or framework device) computes of a graph.

    Attributes:
        nodes: count of nodes it was given.
        flops_share: its share of the arithmetic, 0 to 1.
    """

    nodes: int
    flops_share: float


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Which provider really ran what.

    Attributes:
        providers: by provider name.
        fallen_back: nodes (`op_type name`) other than shape arithmetic that ran outside the provider asked for.
        proof: how it is known, e.g. `assignment`, `profile`, `framework`.
    """

    providers: dict[str, ProviderShare]
    fallen_back: tuple[str, ...] = ()
    proof: str


class Runtime(abc.ABC):
    """A backend. Stateless: everything that lives longer than a call belongs to the session.

    Attributes:
        name: what `--backend` calls it.
        capabilities: what it can do.
        distributions: the Python distributions whose versions stand in a record of it.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    distributions: ClassVar[tuple[str, ...]] = ("numpy",)

    @abc.abstractmethod
    def probe(self) -> Available | Unavailable:
        """Say whether the backend can be used here; cheap, raises nothing."""

    def import_library(self) -> None:  # noqa: B027  # a hook; a backend without a library has nothing to import
        """Import the heavy library, so that its time can be told apart from loading an artifact.

        Raises:
            BackendError: it is not installed.
        """

    def open(self, artifact: Artifact, settings: Settings, source_folder: str | None = None) -> "Session":
        """Load an artifact.

        Args:
            artifact: what to load.
            settings: how to run it.
            source_folder: where a user's factory file stands; for backends that execute the module.

        Raises:
            UnsupportedError: the backend does not take this artifact (op and dtype named).
            PlacementError: something else than the provider asked for would do the work.
            BackendError: anything else the backend refuses.
        """
        precisions, manifest = self.capabilities.precisions, artifact.manifest
        if manifest.precision not in precisions:
            raise UnsupportedError(
                f"{self.name} takes {', '.join(precisions)}; artifact {artifact.id} is {manifest.precision}"
            )
        return self._open(artifact, settings, source_folder)

    @abc.abstractmethod
    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> "Session": ...


class Session(abc.ABC):
    """A loaded artifact. Use as a context manager; a closed session refuses every call.

    A session belongs to the thread that opened it, and a bound call to one thread at a time; calls of several `bind`
    may run side by side where `Capabilities.calls_at_once` says so. A backend adds no locks of its own.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._closed = False

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the session takes: names, dtypes and shapes with their named axes."""
        return self._artifact.manifest.inputs

    def run(self, inputs: Mapping[str, Array]) -> Outputs:
        """Run once.

        Args:
            inputs: arrays by input name; shapes and dtypes must fit the artifact's.

        Returns:
            Outputs by name, as host arrays.

        Raises:
            InputError: a name, shape or dtype that does not fit; expected and got are named.
            BackendError: the backend failed, or gave something else than numbers.
        """
        self._check_open()
        check_inputs(self._artifact, inputs)
        outputs = self._run(inputs)
        check_outputs(outputs)
        return outputs

    def bind(self, inputs: Mapping[str, Array]) -> Step:
        """Return a call with nothing left to prepare, for timing; when it returns, the outputs are there.

        Raises:
            InputError: as `run`.
        """
        self._check_open()
        check_inputs(self._artifact, inputs)
        return self._bind(inputs)

    def compile(self, inputs: Mapping[str, Array]) -> float | None:
        """Compile for the shapes of `inputs`, where the backend does so; a call of these shapes then only runs.

        Kept apart from `run` and `bind`, so that compiling is neither counted as latency nor lost.

        Returns:
            Seconds; None where there was nothing to compile, or these shapes were compiled before.

        Raises:
            InputError: as `run`.
            BackendError: it does not compile; the innermost cause is named.
        """
        self._check_open()
        check_inputs(self._artifact, inputs)
        return self._compile(inputs)

    def copies(self, inputs: Mapping[str, Array]) -> tuple[Step, Step] | None:
        """Return (host to device, device to host) as calls of their own, or None where nothing is copied."""
        self._check_open()
        check_inputs(self._artifact, inputs)
        return self._copies(inputs)

    def product(self) -> Callable[[int], Step] | None:
        """Return what makes a call that multiplies two (size, size) matrices in the artifact's precision.

        With the backend's own library, threads and math mode; None where it has no such thing.
        """
        self._check_open()
        return self._product()

    def copying_threads(self) -> int | None:
        """Return how many threads may copy host memory as this session's do; None where it computes elsewhere."""
        self._check_open()
        return self._copying_threads()

    def prove(self, inputs: Mapping[str, Array]) -> Placement | None:
        """Find out, by a run on the side where it takes one, which provider computes what, and return `placement()`.

        Kept apart from `open` and `run`, since what it warms up would be missing from the first call's time.

        Raises:
            PlacementError: something else than the provider asked for does the work.
            InputError: as `run`.
        """
        self._check_open()
        check_inputs(self._artifact, inputs)
        self._prove(inputs)
        return self._placement()

    def placement(self) -> Placement | None:
        """Say which provider runs what, as far as it is known; None where it is not, or has no meaning."""
        self._check_open()
        return self._placement()

    def details(self) -> dict[str, str]:
        """Settings as the backend reports them back (not as they were asked for), for the record."""
        self._check_open()
        return self._details()

    def close(self) -> None:
        """Release what the session holds; closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._close()

    @abc.abstractmethod
    def _run(self, inputs: Mapping[str, Array]) -> Outputs: ...

    @abc.abstractmethod
    def _bind(self, inputs: Mapping[str, Array]) -> Step: ...

    def _placement(self) -> Placement | None:
        return None

    def _prove(self, inputs: Mapping[str, Array]) -> None:  # noqa: B027  # a hook that most backends do not need
        pass

    def _compile(self, inputs: Mapping[str, Array]) -> float | None:  # noqa: ARG002  # a hook
        return None

    def _copies(self, inputs: Mapping[str, Array]) -> tuple[Step, Step] | None:  # noqa: ARG002  # a hook
        return None

    def _product(self) -> Callable[[int], Step] | None:
        return None

    def _copying_threads(self) -> int | None:
        return None

    def _details(self) -> dict[str, str]:
        return {}

    def _close(self) -> None:  # noqa: B027  # a hook that most backends do not need
        pass

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the session is closed; open the artifact again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
