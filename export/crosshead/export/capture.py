"""From a module to the canonical graph: torch's dynamo exporter at opset 23, named as asked."""

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from crosshead.export._captured import Captured, check_alone, check_axes
from crosshead.export._failure import capture_error
from crosshead.export._naming import name_inputs, name_outputs, program_outputs
from crosshead.export._quiet import silence
from crosshead.export._randomness import program_draws
from crosshead.export._sizes import accidents, distinct
from crosshead.export._tensors import to_tensor
from crosshead.export.artifact import Arrays, ArtifactNotice, CaptureError
from crosshead.export.forms import Exporter
from crosshead.export.source import LoadedSource
from crosshead.export.torchscript import capture_torchscript

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["CANONICAL_OPSET", "EXPORTER", "Captured", "capture"]

EXPORTER: Final = "torch.onnx (dynamo)"
CANONICAL_OPSET: Final = 23
"""The first opset with Attention, RMSNormalization and RotaryEmbedding as operators of their own."""


def capture(loaded: LoadedSource, exporter: Exporter = "dynamo") -> Captured:
    """Export a module to the canonical graph, by the dynamo exporter unless the other is asked for.

    Where an example size could be mistaken (1, or equal to that of another axis), the module is exported on other sizes
    first; if it does not take them, on the example's, with a notice.

    Outputs are named `output`; or by the keys of a dict; or `output_0`, `output_1`, …; built-in blocks with a past give
    `output`, `present_key`, `present_value`. Nested ones are joined by an underscore.

    Raises:
        CaptureError: the exporter refused, with its innermost cause in one line; a dynamic axis was fixed; or an output
            is no tensor.
    """
    if exporter == "torchscript":
        return capture_torchscript(loaded)
    name = loaded.source.name
    notices: list[ArtifactNotice] = []
    mistakable = accidents(loaded.inputs, loaded.dynamic)
    program = None
    if mistakable:
        try:
            program = _export(loaded, distinct(loaded.inputs, loaded.dynamic))
        except Exception:  # noqa: BLE001  # whatever the exporter or the module raises, the example's own sizes are next
            told = ", ".join(f"{symbol!r} is {size}" for symbol, size in mistakable.items())
            message = (
                f"exported on the example's own sizes ({told}), as the module does not take others here; "
                "an axis of size 1, or of another axis' size, may have been taken for something else: try other sizes"
            )
            notices.append(ArtifactNotice(code="baked-dimension", message=message, where=name))
    if program is None:
        try:
            program = _export(loaded, loaded.inputs)
        except Exception as error:
            check_alone(loaded)
            raise capture_error(name, error, loaded.module, loaded.dynamic) from error
    model: ir.Model = program.model
    name_inputs(name, model, list(loaded.inputs))
    output_names = name_outputs(name, model, program_outputs(name, program.exported_program), loaded.block)
    notices += check_axes(loaded, model)
    notices += _check_bounds(loaded, program.exported_program)
    notices += _check_state(name, program.exported_program)
    draws = program_draws(program.exported_program)
    return Captured(EXPORTER, model, output_names, tuple(notices), tuple(draws))


def _export(loaded: LoadedSource, inputs: Arrays) -> Any:
    """Run the exporter; returns its ONNXProgram."""
    tensors = {name: to_tensor(array) for name, array in inputs.items()}
    shapes = {name: dict(loaded.dynamic[name]) if name in loaded.dynamic else None for name in inputs}
    with silence(), torch.no_grad():
        program = torch.onnx.export(
            loaded.module,
            args=(),
            kwargs=tensors,
            dynamic_shapes=shapes if loaded.dynamic else None,
            opset_version=CANONICAL_OPSET,
            dynamo=True,
            verbose=False,
        )
    if program is None:  # the older exporter's way; this one always returns its program
        raise CaptureError("the exporter returned nothing")
    return program


def _check_bounds(loaded: LoadedSource, program: torch.export.ExportedProgram) -> list[ArtifactNotice]:
    """Say which sizes the exporter assumed, where the module branches on one."""
    ranges = {str(symbol): found for symbol, found in program.range_constraints.items()}
    notices: dict[str, ArtifactNotice] = {}
    for node in program.graph.nodes:
        symbols = loaded.dynamic.get(node.name, {}) if node.op == "placeholder" else {}
        for axis, symbol in symbols.items():
            found = ranges.get(str(node.meta["val"].shape[axis]))
            if found is None or symbol in notices:
                continue
            low, high = _whole(found.lower, 0), _whole(found.upper, None)
            if (low or 0) <= 2 and high is None:
                continue
            limits = [f"at least {low}"] if (low or 0) > 2 else []
            limits += [f"at most {high}"] if high is not None else []
            message = (
                f"axis {symbol!r} must be {' and '.join(limits)}: the module branches on it, and the graph holds one "
                "branch alone"
            )
            notices[symbol] = ArtifactNotice(code="baked-dimension", message=message, where=loaded.source.name)
    return list(notices.values())


def _whole(bound: Any, unbounded: int | None) -> int | None:
    """Return a bound as a whole number; `unbounded` for an infinite one, however it is spelled."""
    try:
        return unbounded if math.isinf(float(bound)) else int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return unbounded


def _check_state(name: str, program: torch.export.ExportedProgram) -> list[ArtifactNotice]:
    """Say what the module changes besides returning something: a graph keeps none of it."""
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if not changed:
        return []
    message = f"the module changes {', '.join(map(repr, changed))} when it is called; the graph does not"
    return [ArtifactNotice(code="state-not-kept", message=message, where=name)]
