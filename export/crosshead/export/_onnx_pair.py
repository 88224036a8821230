"""Two bare .onnx files against each other in float64: is the second the same function as the first? Free of torch."""

from collections.abc import Mapping

import onnx

from crosshead.export.artifact import Arrays, GraphVerdict
from crosshead.export.error import relative_l2
from crosshead.export.float64._bits import BitIndex
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64.graph_check import EXACT, LITERAL_FACTOR, WEAK
from crosshead.export.float64.literals import Literals


def compare_graphs(
    new: onnx.ModelProto, old: onnx.ModelProto, inputs: Mapping[str, Arrays], expected: Mapping[str, Arrays]
) -> GraphVerdict:
    """Ask of two graphs what `check_graph` asks of a graph and its module, by the same rule.

    A constant that stands in both files bit for bit, also transposed or packed with others, is a weight; any other
    rounded one is a literal, and L is the larger of the two graphs' literal sensitivities.

    Args:
        new: the graph in question, its data loaded.
        old: the graph that `expected` was evaluated from.
        inputs: by case name.
        expected: by case name, the old graph's outputs in float64.

    Raises:
        FormError: a graph has no float64 evaluation.
    """
    graphs = Float64Graph.of(new), Float64Graph.of(old)
    literals = [
        Literals.of(graph, other.native.values()) for graph, other in zip(graphs, reversed(graphs), strict=True)
    ]
    equal = _holds(graphs[0], graphs[1]) and _holds(graphs[1], graphs[0])
    worst, sensitivity, failures = 0.0, 0.0, []
    for case, arrays in inputs.items():
        got, want = graphs[0].run(arrays), expected[case]
        moves = [each.sensitivity(arrays, base) for each, base in zip(literals, (got, want), strict=True)]
        for name, array in want.items():
            error = relative_l2(got[name], array)
            moved = max(move.get(name, 0.0) for move in moves)
            worst, sensitivity = max(worst, error), max(sensitivity, moved)
            if error > (max(EXACT, LITERAL_FACTOR * moved) if array.dtype.kind == "f" else 0.0):
                failures.append(f"output {name!r} of case {case} is off by {error:.3g}")
    return GraphVerdict(
        verdict="fail" if failures else "weak" if sensitivity > WEAK else "pass",
        rel_l2=worst,
        literal_sensitivity=sensitivity,
        parameters_equal=equal,
        detail="; ".join([*failures[:3], *([] if equal else ["the weights of the two files differ"])]),
    )


def _holds(graph: Float64Graph, other: Float64Graph) -> bool:
    """Whether every float weight of `graph`, a constant of more than one element, stands in `other` bit for bit."""
    index = BitIndex(other.native.values())
    weights = [
        array for name, array in graph.native.items() if array.size > 1 and graph.constants[name].dtype.kind == "f"
    ]
    return not any(index.missing(array).any() for array in weights)
