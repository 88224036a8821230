"""What every value of a graph is, by the float64 oracle, and rounded to the dtype that it has in the graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, FormError
from crosshead.export.float64 import Float64Graph
from crosshead.harness.diagnose.cutting import CutGraph, reads

Values = dict[str, NDArray[Any]]


def oracle_values(graph: CutGraph, inputs: Arrays, known: Mapping[str, NDArray[Any]] = {}) -> Values:
    """Return the value of each tensor of a graph in float64, as far as it can be had.

    Args:
        graph: the graph.
        inputs: of the graph.
        known: values by name from another graph that computes the same, to be used where a node of this one has no
            float64 evaluation.
    """
    fed: Values = {name: np.asarray(array) for name, array in inputs.items()}
    values = dict(fed)

    def watch(node: onnx.NodeProto, _: Sequence[Any], outputs: Sequence[Any]) -> None:
        for name, array in zip(node.output, outputs, strict=False):
            if isinstance(array, np.ndarray | np.generic):
                values[name] = np.asarray(array)

    try:
        values.update(Float64Graph.of(graph.model).run(inputs, watch=watch))
    except FormError:
        return _one_by_one(graph, fed, known)
    return values


def _one_by_one(graph: CutGraph, values: Values, known: Mapping[str, NDArray[Any]]) -> Values:
    """Evaluate node by node; a node without an evaluation gives what `known` has under its names, or nothing."""
    for node in graph.nodes:
        needed = [name for name in dict.fromkeys(reads(node)) if name not in graph.constants]
        outputs = [name for name in node.output if name]
        found: Mapping[str, NDArray[Any]] = {}
        if all(name in values for name in needed):
            try:
                model = graph.cut([node], needed, outputs, values | dict.fromkeys(outputs, np.zeros(0)))
                found = Float64Graph.of(model).run({name: values[name] for name in needed})
            except FormError:
                found = {}
        values |= {
            name: found[name] if name in found else known[name] for name in outputs if name in found or name in known
        }
    return values


def rounded(graph: CutGraph, name: str, value: NDArray[Any]) -> NDArray[np.generic]:
    """Return a value in the dtype that it has in the graph."""
    with np.errstate(over="ignore"):  # beyond the range of the dtype it is infinite there, too
        return np.asarray(value).astype(graph.dtype(name, np.asarray(value)))
