"""From a module to the canonical graph by the older route: torch's TorchScript exporter, brought up to opset 23.

It runs the module once on its example inputs and records what ran. So a branch is taken as it was for them, and a size
that the module reads as a plain number stands in the graph as that number.
"""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir
import torch
from torch import nn
from torch.utils import _pytree as pytree

from crosshead.export._captured import Captured, check_alone, check_axes
from crosshead.export._failure import innermost
from crosshead.export._naming import name_outputs, result_outputs
from crosshead.export._quiet import silence
from crosshead.export._randomness import traced_draws
from crosshead.export._tensors import to_tensor
from crosshead.export.artifact import CaptureError, FormError
from crosshead.export.forms import bring_up
from crosshead.export.forms._shapes import infer_missing
from crosshead.export.source import LoadedSource

EXPORTER: Final = "torch.onnx (torchscript)"
OPSET: Final = 20
"""The highest opset that this exporter writes; lower ones are reached from the canonical graph, as for the other."""

_LONGEST = 300
_ADVICE = "try --exporter dynamo"


def capture_torchscript(loaded: LoadedSource) -> Captured:
    """Export a module by the TorchScript exporter; result and names are those of `capture`.

    Inputs that reach no output are dropped by this exporter; they are put back into the graph's signature.

    Raises:
        CaptureError: the exporter refused, with its innermost cause in one line; a dynamic axis was fixed; or an output
            is no tensor.
    """
    name = loaded.source.name
    recorded = _Recorded(_own_copy(loaded.module), list(loaded.inputs))
    try:
        model = _export(loaded, recorded)
    except Exception as error:
        check_alone(loaded)
        raise CaptureError(f"{name} cannot be exported by TorchScript: {_told(error)}; {_ADVICE}") from error
    _strip_prefix(model)
    _restore_inputs(loaded, model)
    output_names = name_outputs(name, model, result_outputs(name, recorded.returned), loaded.block)
    try:
        bring_up(model)
        _name_axes(model)
    except FormError as error:
        raise CaptureError(f"{name}: {error}; {_ADVICE}") from error
    return Captured(EXPORTER, model, output_names, tuple(check_axes(loaded, model)), tuple(traced_draws(model)))


class _Recorded(nn.Module):
    """Calls a module by argument name with tensors alone, and returns its tensors flat.

    Without it this exporter hands over every default of `forward`, booleans included, as a tensor; and it orders the
    entries of a returned dict by its own rule.
    """

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module
        self._names = names
        self.returned: object = None

    def forward(self, *tensors: torch.Tensor) -> tuple[object, ...]:
        """Return what the module returns, flattened, without None."""
        self.returned = self.module(**dict(zip(self._names, tensors, strict=True)))
        return tuple(leaf for leaf in pytree.tree_leaves(self.returned) if leaf is not None)


def _own_copy(module: nn.Module) -> nn.Module:
    """Return a copy with the same parameters: the module really runs, and may change buffers or keep traced tensors."""
    kept: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    try:
        return copy.deepcopy(module, kept)
    except Exception:  # noqa: BLE001  # what cannot be copied is run itself
        return module


def _export(loaded: LoadedSource, recorded: _Recorded) -> ir.Model:
    tensors = tuple(to_tensor(array) for array in loaded.inputs.values())
    with tempfile.TemporaryDirectory(prefix="crosshead-") as folder:
        path = Path(folder) / "model.onnx"
        with silence(), _reference_paths(), torch.no_grad():
            torch.onnx.export(
                recorded,
                tensors,
                path,
                dynamo=False,
                opset_version=OPSET,
                input_names=list(loaded.inputs),
                dynamic_axes={name: dict(axes) for name, axes in loaded.dynamic.items()},
                training=torch.onnx.TrainingMode.PRESERVE,  # the source is in the mode that was asked for
            )
        model = ir.load(path)
        return ir.external_data.load_to_model(model)  # weights beyond 2 GB come in files beside it


@contextmanager
def _reference_paths() -> Iterator[None]:
    """Turn torch's fused encoder off, which has no ONNX counterpart, and keep the generators as they stand."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


def _strip_prefix(model: ir.Model) -> None:
    """Take the wrapper out of names: parameters are called as in the module, nodes and values after its parts."""
    graph, nodes = model.graph, list(ir.traversal.RecursiveGraphIterator(model.graph))
    values = [*graph.initializers.values(), *(value for node in nodes for value in node.outputs)]
    taken = {str(value.name) for value in (*graph.inputs, *values)}
    for value in values:
        plain = _plain(str(value.name))
        if plain not in taken:
            taken.add(plain)
            value.name = plain
    for node in nodes:
        node.name = _plain(str(node.name))


def _plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("/module/").removeprefix("/")


def _name_axes(model: ir.Model) -> None:
    """Let the names of the inputs' axes reach the outputs; this exporter calls each axis after the node it came from.

    Sizes that inference does not find stay as the exporter told them, and names that it does not find are dropped.
    """
    told = {output: output.shape for output in model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    infer_missing(model)
    for output, shape in told.items():
        found = output.shape if output.shape is not None and shape is not None else [None] * len(shape or ())
        if shape is None or len(found) != len(shape):
            continue
        output.shape = ir.Shape(
            [
                size if isinstance(size, int) or (size is not None and size.value is not None) else given
                for size, given in zip(found, (dim if isinstance(dim, int) else None for dim in shape), strict=True)
            ]
        )


def _restore_inputs(loaded: LoadedSource, model: ir.Model) -> None:
    """Put back the inputs that this exporter dropped since nothing reads them: a graph is called as its module is."""
    kept = {value.name: value for value in model.graph.inputs}
    for position, (name, array) in enumerate(loaded.inputs.items()):
        if name in kept:
            continue
        symbols = loaded.dynamic.get(name, {})
        shape = ir.Shape([symbols.get(axis, size) for axis, size in enumerate(array.shape)])
        dtype = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        model.graph.inputs.insert(position, ir.Value(name=name, shape=shape, type=dtype))


def _told(error: BaseException) -> str:
    """Return the cause in one line, without the graph and the source lines that this exporter appends."""
    cause = innermost(error)
    text = str(cause).partition("  [Caused by")[0].strip()
    said = " ".join(text.splitlines()[:2]) or "(no message)"
    if len(said) > _LONGEST:
        said = said[: _LONGEST - 1].rstrip() + "…"
    return f"{type(cause).__name__}: {said}"
