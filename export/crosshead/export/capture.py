"""From a module to the canonical graph: torch's dynamo exporter at opset 23, named as asked."""

import math
from dataclasses import dataclass
from typing import Any, Final

import onnx_ir as ir
import torch

from crosshead.export._failure import capture_error
from crosshead.export._naming import name_inputs, name_outputs
from crosshead.export._quiet import silence
from crosshead.export._sizes import accidents, distinct
from crosshead.export._tensors import to_tensor
from crosshead.export.artifact import Arrays, ArtifactNotice, CaptureError
from crosshead.export.source import LoadedSource

EXPORTER: Final = "torch.onnx (dynamo)"
CANONICAL_OPSET: Final = 23
"""The first opset with Attention, RMSNormalization and RotaryEmbedding as operators of their own."""


@dataclass(frozen=True)
class Captured:
    """The canonical graph.

    Attributes:
        model: at opset `CANONICAL_OPSET`; inputs named and ordered as the source's.
        output_names: in the order of the module's tensors.
        notices: what a person should know about the graph.
    """

    model: ir.Model
    output_names: tuple[str, ...]
    notices: tuple[ArtifactNotice, ...]


def capture(loaded: LoadedSource) -> Captured:
    """Export a module to the canonical graph.

    Where an example size could be mistaken (1, or equal to that of another axis), the module is exported on other sizes
    first; if it does not take them, on the example's, with a notice.

    Outputs are named `output`; or by the keys of a dict; or `output_0`, `output_1`, …; built-in blocks with a past give
    `output`, `present_key`, `present_value`. Nested ones are joined by an underscore.

    Raises:
        CaptureError: the exporter refused, with its innermost cause in one line; a dynamic axis was fixed; or an output
            is no tensor.
    """
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
            _check_alone(loaded)
            raise capture_error(name, error, loaded.module, loaded.dynamic) from error
    model: ir.Model = program.model
    name_inputs(name, model, list(loaded.inputs))
    output_names = name_outputs(name, model, program.exported_program, loaded.block)
    notices += _check_axes(loaded, model)
    notices += _check_bounds(loaded, program.exported_program)
    notices += _check_state(name, program.exported_program)
    return Captured(model, output_names, tuple(notices))


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


def _check_alone(loaded: LoadedSource) -> None:
    """Call a module that the exporter refused by itself: its own complaint tells real sizes, the exporter's symbols.

    Raises:
        CaptureError: the module fails without any exporter.
    """
    tensors = {name: to_tensor(array) for name, array in loaded.inputs.items()}
    try:
        with silence(), torch.no_grad():
            loaded.module(**tensors)
    except Exception as error:
        said = " ".join(str(error).split()) or "(no message)"
        raise CaptureError(
            f"{loaded.source.name}: the module fails on its own inputs: {type(error).__name__}: {said}"
        ) from error


def _check_axes(loaded: LoadedSource, model: ir.Model) -> list[ArtifactNotice]:
    """Hold the graph's inputs against the declared axes.

    Raises:
        CaptureError: an axis declared dynamic came out fixed, or bound to one of another size.
    """
    name, notices = loaded.source.name, []
    sizes: dict[str, tuple[int, str]] = {}
    for value in model.graph.inputs:
        key = str(value.name)
        array, symbols = loaded.inputs[key], loaded.dynamic.get(key, {})
        dims = value.shape or ()
        if len(dims) != array.ndim:
            raise CaptureError(f"{name}: input {key!r} has {len(dims)} axes in the graph, {array.ndim} in the example")
        for axis, (dim, size) in enumerate(zip(dims, array.shape, strict=True)):
            if isinstance(dim, int):
                if axis in symbols:
                    raise CaptureError(
                        f"{name} (baked-dimension): axis {axis} ({symbols[axis]!r}) of input {key!r} came out fixed at "
                        f"{dim}; compute it from the input's shape, or leave the axis out of the dynamic axes"
                    )
                continue
            got = str(dim.value)
            bound, where = sizes.setdefault(got, (size, key))
            if bound != size:
                raise CaptureError(
                    f"{name}: the graph needs axis {axis} of {key!r} to equal {got!r}, which is {bound} in {where!r}, "
                    f"but it is {size} in the example; if it is broadcast, leave it out of the dynamic axes"
                )
            if got != symbols.get(axis):
                message = f"axis {axis} ({symbols.get(axis)!r}) of input {key!r} must equal {got!r} in this graph"
                notices.append(ArtifactNotice(code="baked-dimension", message=message, where=key))
    return notices


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
