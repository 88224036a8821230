"""Steps of a module that draw random numbers: dropout left on, or anything else, found before outputs are compared."""

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule, Node

from crosshead.export.float64._ops import RANDOM_OPS

_SHARES = ("p", "dropout_p", "dropout")
"""What operators call the share that they drop."""
_SWITCHES = ("train", "training", "is_training")
"""What operators call the mode in which they draw."""


def program_draws(program: torch.export.ExportedProgram) -> list[str]:
    """Return the steps of an exported program that draw random numbers: class and name of the module, and operator.

    torch marks such operators by a tag. A dropout of nothing, or out of training, is none. It sees more than the graph:
    the dynamo exporter leaves the dropout of `scaled_dot_product_attention` out of what it writes.
    """
    return [_described(node) for node in _calls(program.graph_module) if _draws(node)]


def traced_draws(model: ir.Model) -> list[str]:
    """Return the same of a TorchScript exporter's graph, by its nodes: it writes no Dropout where nothing is dropped.

    That of `scaled_dot_product_attention` it writes without training mode, so that the graph itself drops nothing.
    """
    return [
        f"{node.op_type} node {node.name!r}" for node in _nodes(model) if node.op_type in RANDOM_OPS or _drops(node)
    ]


def graph_draws(model: ir.Model) -> int:
    """Count the nodes of a graph that draw random numbers: Dropout in training mode, and the random operators."""
    return sum(node.op_type in RANDOM_OPS or (_drops(node) and _trains(node)) for node in _nodes(model))


def _calls(module: GraphModule) -> Iterator[Node]:
    """Yield the calls of a program and of the branches inside it."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


def _draws(node: Node) -> bool:
    operator: Any = node.target
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    given = {}
    for position, argument in enumerate(operator._schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        positional = node.args[position] if position < len(node.args) else default
        given[argument.name] = node.kwargs.get(argument.name, positional)
    if any(given.get(name) == 0 for name in _SHARES):
        return False
    return not any(given.get(name) is False for name in _SWITCHES)


def _described(node: Node) -> str:
    operator: Any = node.target
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "")
    name = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return f"{name or 'module'}{f' {path!r}' if path else ''} ({operator._schema.name.partition('::')[2]})"


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain in ("", "ai.onnx"))


def _drops(node: ir.Node) -> bool:
    """Whether a node is a Dropout of more than nothing; left out, its ratio is one half."""
    if node.op_type != "Dropout":
        return False
    ratio = _constant(node, 1)
    return ratio is None or bool(ratio.any())


def _trains(node: ir.Node) -> bool:
    """Whether a Dropout drops: it does so only where its training mode says so."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    mode = _constant(node, 2)
    return mode is None or bool(mode.any())  # computed by the graph: it may


def _constant(node: ir.Node, index: int) -> NDArray[Any] | None:
    value = node.inputs[index] if len(node.inputs) > index else None
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()
