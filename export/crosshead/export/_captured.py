"""What an exporter gave, and what is held against the source whichever exporter it was."""

from dataclasses import dataclass

import onnx_ir as ir
import torch

from crosshead.export._naming import result_outputs
from crosshead.export._quiet import silence
from crosshead.export._tensors import to_tensor
from crosshead.export.artifact import ArtifactNotice, CaptureError
from crosshead.export.source import LoadedSource


@dataclass(frozen=True)
class Captured:
    """The canonical graph.

    Attributes:
        exporter: which of torch's exporters made it, for the record.
        model: at opset `CANONICAL_OPSET`; inputs named and ordered as the source's.
        output_names: in the order of the module's tensors.
        notices: what a person should know about the graph.
        draws: each step of the module that draws random numbers, in words; empty where none does.
    """

    exporter: str
    model: ir.Model
    output_names: tuple[str, ...]
    notices: tuple[ArtifactNotice, ...]
    draws: tuple[str, ...] = ()


def check_alone(loaded: LoadedSource) -> None:
    """Call a module that the exporter refused by itself: its own complaint tells real sizes, the exporter's symbols.

    Raises:
        CaptureError: the module fails without any exporter, or returns something else than tensors.
    """
    tensors = {name: to_tensor(array) for name, array in loaded.inputs.items()}
    try:
        with silence(), torch.no_grad():
            result = loaded.module(**tensors)
    except Exception as error:
        said = " ".join(str(error).split()) or "(no message)"
        raise CaptureError(
            f"{loaded.source.name}: the module fails on its own inputs: {type(error).__name__}: {said}"
        ) from error
    result_outputs(loaded.source.name, result)


def check_axes(loaded: LoadedSource, model: ir.Model) -> list[ArtifactNotice]:
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
