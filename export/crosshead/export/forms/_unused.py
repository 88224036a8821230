"""Removes what a rewrite left without a use."""

from collections.abc import Iterable

import onnx_ir as ir


def remove_unused(model: ir.Model) -> None:
    """Remove nodes none of whose outputs are used, and initializers that nothing uses, in place.

    Unlike onnx_ir's pass of this purpose it keeps the unused outputs of nodes that stay: an Attention that takes a
    past must name its present outputs, or ONNX Runtime refuses to run it.
    """
    graphs = list(model.graphs())
    for graph in reversed(graphs):  # subgraphs before what they use
        _remove_nodes(graph, reversed(list(graph)))
    for graph in graphs:
        for name, value in list(graph.initializers.items()):
            if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
                del graph.initializers[name]


def _remove_nodes(graph: ir.Graph, backwards: Iterable[ir.Node]) -> None:
    for node in backwards:
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
