"""Give a graph's inputs and outputs the names that people bind them by."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from crosshead.export.artifact import CaptureError

if TYPE_CHECKING:
    from crosshead.model_def import Block


def name_inputs(source: str, model: ir.Model, names: Sequence[str]) -> None:
    """Rename a graph's inputs after the source's, in order; an exporter calls a returned one `x_orig`.

    Raises:
        CaptureError: the exporter dropped or added inputs.
    """
    inputs = model.graph.inputs
    if len(inputs) != len(names):
        got = ", ".join(str(value.name) for value in inputs)
        raise CaptureError(f"{source}: the graph takes {len(inputs)} inputs ({got}), the module {len(names)}")
    _rename(model, list(inputs), names)


def name_outputs(source: str, model: ir.Model, names: Sequence[str], block: "Block | None") -> tuple[str, ...]:
    """Rename a graph's outputs after the ways to them in what the module returns, and return the names given.

    Args:
        source: for the message.
        model: the graph.
        names: from `program_outputs` or `result_outputs`.
        block: the built-in block, whose outputs have names of their own.

    Raises:
        CaptureError: the graph has another number of outputs.
    """
    if block is not None and "past_key" in block.takes and len(names) == 3:
        names = ["output", "present_key", "present_value"]
    outputs = list(model.graph.outputs)
    if len(outputs) != len(names):
        raise CaptureError(f"{source}: the module returns {len(names)} tensors, the graph {len(outputs)}")
    taken = {str(value.name) for value in model.graph.inputs}
    names = [f"{name}_out" if name in taken else name for name in names]  # a dict may be keyed like the inputs
    _rename(model, outputs, names)
    return tuple(names)


def program_outputs(source: str, program: ExportedProgram) -> list[str]:
    """Name each tensor that an exported program returns by the way to it: dict keys and positions.

    Raises:
        CaptureError: an output is no tensor, or there is none.
    """
    spec = program.call_spec.out_spec
    specs = [each for each in program.graph_signature.output_specs if each.kind.name == "USER_OUTPUT"]
    paths = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(len(specs))), spec))[0]
    return _output_names(
        source,
        [
            (path, "" if type(each.arg).__name__ == "TensorArgument" else type(getattr(each.arg, "value", 0)).__name__)
            for (path, _), each in zip(paths, specs, strict=True)
            if getattr(each.arg, "value", each) is not None  # a constant None holds no place among the outputs
        ],
    )


def result_outputs(source: str, result: object) -> list[str]:
    """Name each tensor of what a module returned, as `program_outputs` does."""
    paths = pytree.tree_flatten_with_path(result)[0]
    return _output_names(
        source,
        [
            (path, "" if isinstance(leaf, torch.Tensor) else type(leaf).__name__)
            for path, leaf in paths
            if leaf is not None
        ],
    )


def _output_names(source: str, leaves: Sequence[tuple[Any, str]]) -> list[str]:
    """Return a name for each leaf, given as the way to it and its type, empty for a tensor."""
    found: list[str] = []
    for path, kind in leaves:
        where = "_".join(_key(step) for step in path)
        if kind:
            raise CaptureError(f"{source}: output {where or '0'} is {_article(kind)} {kind}; return tensors alone")
        found.append(where)
    if not found:
        raise CaptureError(f"{source} returns no tensor; a graph needs an output")
    if len(found) == 1 and (not found[0] or found[0].isdecimal()):
        return ["output"]
    return [f"output_{name}" if name[:1].isdecimal() else name for name in found]


def _article(noun: str) -> str:
    return "an" if noun[:1].lower() in "aeiou" else "a"


def _key(step: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def _rename(model: ir.Model, values: Sequence[ir.Value], names: Sequence[str]) -> None:
    """Rename `values`, moving whatever else bears one of the names out of the way."""
    chosen = set(map(id, values))
    wanted = set(names)
    everything = _values(model.graph)
    taken = {str(value.name) for value in everything} | wanted
    for value in everything:
        if value.name in wanted and id(value) not in chosen:
            value.name = _free(str(value.name), taken)
    for value in values:  # out of each other's way first
        value.name = _free(str(value.name), taken)
    for value, name in zip(values, names, strict=True):
        value.name = name


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _values(graph: ir.Graph) -> list[ir.Value]:
    """Return every value of a graph and of the graphs inside its nodes."""
    found = [*graph.inputs, *graph.initializers.values()]
    for node in ir.traversal.RecursiveGraphIterator(graph):
        found += node.outputs
        for attribute in node.attributes.values():
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
                inner = attribute.as_graph()
                found += [*inner.inputs, *inner.initializers.values()]
            elif not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPHS:
                for inner in attribute.as_graphs():
                    found += [*inner.inputs, *inner.initializers.values()]
    return found
