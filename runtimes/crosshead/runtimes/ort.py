"""`ort-cpu`: ONNX Runtime on the CPU, and what every ONNX Runtime backend here shares.

`onnxruntime` is imported here only, when it is used. Which wheel is installed is found out without importing it.
"""

import abc
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import numpy as np

from crosshead.export.artifact import Artifact, Precision
from crosshead.runtimes import _ort_evidence, placement
from crosshead.runtimes._ort_errors import translate
from crosshead.runtimes._ort_wheels import CPU_WHEEL, GPU_WHEEL, find_wheels
from crosshead.runtimes.base import (
    Array,
    Available,
    Capabilities,
    Deviation,
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

CPU_PROVIDER = "CPUExecutionProvider"
OPSETS = (7, 28)
"""What onnxruntime 1.32 takes; an older one answers for itself when it loads the file."""

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_ERRORS_ONLY = 3
_PRODUCT_OPSET = 13

CPU_DEVIATIONS = (
    Deviation(
        op="ai.onnx::Attention",
        when="a row whose additive mask is the lowest finite float everywhere",
        effect="the row is taken for fully masked and becomes 0; the standard gives the mean of the values",
        seen_in="onnxruntime 1.32.0",
    ),
)


LEFT_OUT: Final[Mapping[Precision, tuple[str, ...]]] = {"fp16": ("NchwcTransformer",)}
"""Optimizers that a session goes without, by precision.

In 1.32.0 this one, which lays out convolutions anew, ends the process (SIGSEGV) on a fp16 MatMul by constant weights
whose other operand comes of a Transpose: `nn.MultiheadAttention` with batch_first begins so.
"""


class OrtRuntime(Runtime):
    """What the backends on ONNX Runtime share. A subclass names a provider and gives its options."""

    provider: ClassVar[str]
    device: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]] = ("numpy", "onnx", CPU_WHEEL, GPU_WHEEL)

    def import_library(self) -> None:
        """Import onnxruntime.

        Raises:
            BackendError: it is not installed.
        """
        _library()

    @abc.abstractmethod
    def provider_options(self, settings: Settings) -> dict[str, str]:
        """Return the options that the provider is given."""

    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> Session:  # noqa: ARG002  # it executes no source
        self.import_library()
        ort = _library()
        if settings.arena_shrinkage and not settings.memory_arena and self.device == "cpu":
            raise BackendError("arena_shrinkage=on shrinks the arena that memory_arena=off leaves out; set one of them")
        left_out = LEFT_OUT.get(artifact.manifest.precision, ())
        providers: list[Any] = [(self.provider, self.provider_options(settings))]
        if self.provider != CPU_PROVIDER:
            providers.append(CPU_PROVIDER)  # for shape arithmetic

        def build(profile: str | None = None, model: bytes | None = None) -> Any:
            options = session_options(ort, settings)
            if profile is not None:
                options.enable_profiling = True
                options.profile_file_prefix = profile
            more = {"disabled_optimizers": list(left_out)} if left_out else {}
            # Without enable_fallback Python retries on the CPU alone when a provider fails, and prints it at most.
            return ort.InferenceSession(
                model or str(artifact.model_path), options, providers=providers, enable_fallback=0, **more
            )

        try:
            session = build()
        except Exception as error:
            raise translate(error, artifact, _title(ort), self.device.upper()) from error
        return OrtSession(artifact, settings, ort, session, build, asked=self.provider, device=self.device)


class OrtCpu(OrtRuntime):
    """ONNX Runtime's CPU provider."""

    name: ClassVar[str] = "ort-cpu"
    provider: ClassVar[str] = CPU_PROVIDER
    device: ClassVar[str] = "cpu"
    # bf16 is declared so that each graph is asked: the answer names the first operator that has no kernel for it.
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="graph",
        precisions=("fp32", "fp16", "bf16"),
        opsets=OPSETS,
        calls_at_once=True,
        deviations=CPU_DEVIATIONS,
    )

    def probe(self) -> Available | Unavailable:
        """Look for either wheel: both hold the CPU provider."""
        wheels = find_wheels()
        if not wheels.package:
            return Unavailable(reason="ONNX Runtime is not installed", remedy="pip install 'crosshead[cpu]'")
        return Available(version=wheels.version, detail=wheels.clash or f"from the wheel {wheels.package}")

    def provider_options(self, settings: Settings) -> dict[str, str]:  # noqa: ARG002  # its settings are the session's
        """None: the CPU provider takes its settings from the session."""
        return {}


def _library() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError(f"ONNX Runtime cannot be imported ({error}); pip install 'crosshead[cpu]'") from error
    return onnxruntime


def _title(ort: Any) -> str:
    return f"onnxruntime {ort.__version__}"


def session_options(ort: Any, settings: Settings) -> Any:
    """Return the `SessionOptions` for our settings.

    Raises:
        UnsupportedError: this version has no such optimisation level.
    """
    level = getattr(ort.GraphOptimizationLevel, _LEVELS[settings.optimization], None)
    if level is None:
        raise UnsupportedError(f"{_title(ort)} has no optimisation level {settings.optimization!r}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = level
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spinning else "0")
    options.add_session_config_entry(_ort_evidence.RECORD_KEY, "1")
    return options


def run_options(ort: Any, settings: Settings, device: str) -> Any:
    """Return the `RunOptions` for our settings, or None where the defaults do.

    Arenas by name and number, as in the key's description in onnxruntime_run_options_config_keys.h.
    """
    if not settings.arena_shrinkage:
        return None
    options = ort.RunOptions()
    arena = "cpu:0" if device == "cpu" else "gpu:0"
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", arena)
    return options


class OrtSession(Session):
    """A session of ONNX Runtime with one provider asked for (and the CPU for shape arithmetic).

    On a device, `bind` holds inputs and outputs there and returns when the device is done; `copies` moves them apart.
    """

    def __init__(
        self,
        artifact: Artifact,
        settings: Settings,
        ort: Any,
        session: Any,
        build: Callable[..., Any],
        *,
        asked: str,
        device: str,
    ) -> None:
        super().__init__(artifact)
        self._settings = settings
        self._ort = ort
        self._session = session
        self._build = build
        self._asked = asked
        self._device = device
        self._run_options = run_options(ort, settings, device)
        self._names = [spec.name for spec in artifact.manifest.outputs]
        self._assigned = _ort_evidence.assigned_nodes(session)
        self._proven: Placement | None = None
        self._first_evidence()

    def _first_evidence(self) -> None:
        """Take what is known without a run: proof enough on the CPU alone, and grounds for refusal elsewhere.

        Raises:
            PlacementError: the provider was not created, or the record puts arithmetic elsewhere.
        """
        listed = self._session.get_providers()
        if self._asked not in listed:
            raise PlacementError(
                f"{self._asked} was asked for, but the session has only {', '.join(listed)}; "
                "`crosshead backends` says what is missing"
            )
        if self._assigned is None:
            return
        found = placement.judge(self._assigned, self._asked, proof="assignment")
        elsewhere = [node for node in self._assigned if node.provider != self._asked]
        if self._asked == CPU_PROVIDER and not elsewhere:
            shares = found.providers or {CPU_PROVIDER: ProviderShare(nodes=0, flops_share=1.0)}  # all folded away
            self._proven = Placement(providers=shares, proof=found.proof)
            return
        lost = [node for node in elsewhere if node.op_type in placement.ARITHMETIC]
        if lost and not self._settings.allow_fallback:  # a record may leave out nodes, but what it lists is so
            some = ", ".join(f"{node.op_type} {node.name}" for node in lost[:4]) + (", …" if len(lost) > 4 else "")
            raise PlacementError(
                f"{len(lost)} nodes with arithmetic are assigned to {lost[0].provider} instead of {self._asked}: "
                f"{some} (allow_fallback accepts that)"
            )

    def _prove(self, inputs: Mapping[str, Array]) -> None:
        if self._proven is not None:
            return
        try:
            profiled = _ort_evidence.profiled_nodes(self._build, self._names, _feeds(inputs))
        except Exception as error:
            raise self._translated(error) from error
        proof = "profile" if self._assigned is None else "profile and assignment"
        doubted = _ort_evidence.contradicted(self._assigned, profiled, self._asked)
        found = placement.judge(profiled, self._asked, proof, doubted)
        placement.enforce(found, self._asked, allow_fallback=self._settings.allow_fallback)
        self._proven = found

    def _placement(self) -> Placement | None:
        return self._proven

    def _run(self, inputs: Mapping[str, Array]) -> Outputs:
        feeds = _feeds(inputs)
        try:
            outputs = self._session.run(self._names, feeds, self._run_options)
        except Exception as error:
            raise self._translated(error) from error
        return dict(zip(self._names, outputs, strict=True))

    def _bind(self, inputs: Mapping[str, Array]) -> Step:
        session, names, feeds, options = self._session, self._names, _feeds(inputs), self._run_options
        if not self._settings.io_binding:
            return lambda: session.run(names, feeds, options)
        binding, held = self._binding(feeds)
        on_device = self._device != "cpu"

        def step() -> object:
            session.run_with_iobinding(binding, options)
            if on_device:
                binding.synchronize_outputs()
            return held  # the arrays behind the bound inputs live as long as the call does

        return step

    def _binding(self, feeds: Mapping[str, Array]) -> tuple[Any, list[Any]]:
        """Bind inputs where they are computed on, and outputs by device; return the binding and the bound inputs.

        The first run allocates the outputs, whatever their shapes turn out to be, and later runs write to them again.
        """
        binding = self._session.io_binding()
        values = []
        for name, array in feeds.items():
            values.append(self._ort.OrtValue.ortvalue_from_numpy(array, self._device, 0))
            binding.bind_ortvalue_input(name, values[-1])
        for name in self._names:
            binding.bind_output(name, self._device, 0)
        return binding, values

    def _product(self) -> Callable[[int], Step] | None:
        precision = self._artifact.manifest.precision
        if precision == "bf16":
            return None  # no array of NumPy's own to hand over
        session, dtype = self._build(None, _product_model(precision)), np.float32 if precision == "fp32" else np.float16

        def product(size: int) -> Step:
            binding, values = session.io_binding(), []
            for name in ("a", "b"):
                matrix = np.ones((size, size), dtype=dtype)
                values.append(self._ort.OrtValue.ortvalue_from_numpy(matrix, self._device, 0))
                binding.bind_ortvalue_input(name, values[-1])
            binding.bind_output("y", self._device, 0)

            def step() -> object:
                session.run_with_iobinding(binding)
                binding.synchronize_outputs()
                return values

            return step

        return product

    def _copying_threads(self) -> int | None:
        return self._settings.threads if self._device == "cpu" else None

    def _copies(self, inputs: Mapping[str, Array]) -> tuple[Step, Step] | None:
        if self._device == "cpu" or not self._settings.io_binding:
            return None
        feeds = _feeds(inputs)
        binding, values = self._binding(feeds)
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        outputs = binding.get_outputs()

        def to_device() -> None:
            for value, array in zip(values, feeds.values(), strict=True):
                value.update_inplace(array)

        def to_host() -> None:
            for value in outputs:
                value.numpy()

        return to_device, to_host

    def _details(self) -> dict[str, str]:
        options = self._session.get_session_options()
        details = {
            "intra_op_threads": str(options.intra_op_num_threads),
            "inter_op_threads": str(options.inter_op_num_threads),
            "optimization": str(options.graph_optimization_level).rpartition(".")[2],
            "memory_arena": str(options.enable_cpu_mem_arena),
            "memory_pattern": str(options.enable_mem_pattern),
            "arena_shrinkage": str(self._run_options is not None),
            "spinning": options.get_session_config_entry("session.intra_op.allow_spinning"),
            "io_binding": str(self._settings.io_binding),
            "providers": ", ".join(self._session.get_providers()),
        }
        left_out = LEFT_OUT.get(self._artifact.manifest.precision)
        if left_out:
            details["disabled_optimizers"] = ", ".join(left_out)
        given = self._session.get_provider_options().get(self._asked, {})
        if given:
            details[f"{self._asked} options"] = json.dumps(given, sort_keys=True)
        return details

    def _close(self) -> None:
        self._session = None

    def _translated(self, error: Exception) -> BackendError:
        return translate(error, self._artifact, _title(self._ort), self._device.upper())


def _product_model(precision: Precision) -> bytes:
    """Return the graph y = MatMul(a, b)."""
    from onnx import TensorProto, helper

    dtype = TensorProto.FLOAT if precision == "fp32" else TensorProto.FLOAT16
    a, b, y = (helper.make_tensor_value_info(name, dtype, ["rows", "columns"]) for name in "aby")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", [a, b], [y])
    opset = helper.make_opsetid("", _PRODUCT_OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=helper.find_min_ir_version_for([opset]))
    return bytes(model.SerializeToString())


def _feeds(inputs: Mapping[str, Array]) -> dict[str, Array]:
    for name, array in inputs.items():
        if array.dtype.name == "bfloat16":
            raise UnsupportedError(f"input {name!r} is bfloat16, which NumPy arrays cannot hand to ONNX Runtime")
    return {name: np.require(array, requirements="C") for name, array in inputs.items()}
