"""Where a graph in fp16 leaves the range of fp16. Looked for in float64, where nothing overflows on the way."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from crosshead.export.float64._bodies import PLAIN
from crosshead.export.float64._evaluator import describe
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64._split import split

LARGEST: Final = 65504.0
"""The largest finite number of fp16 (IEEE 754-2019, binary16)."""

_INFINITE_FROM = 65520.0  # half a step above it: from here on, round to nearest gives infinity
_ON_THE_WAY = {"Add", "Cast", "Div", "Identity", "Mul", "Reshape", "Sub", "Transpose", "Where"}
_Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Overflow:
    """The first value, in the order of the nodes, that fp16 does not hold.

    Attributes:
        node: the node that makes it, as a person finds it in the graph.
        largest: its largest magnitude.
        case: name of the case it was seen on.
    """

    node: str
    largest: float
    case: str


def first_overflow(model: onnx.ModelProto, cases: Mapping[str, _Arrays]) -> Overflow | None:
    """Return the first fp16 value of a graph that is beyond fp16 where nothing is rounded; None where all fit.

    Values that the graph keeps in a wider type do not count, nor do those inside the body of an operator, which a
    kernel may keep in whatever type it likes; the products inside Attention do, for its definition has them in the
    type of the query. A node that is given such a value in fp16 already (a mask filled with the lowest number, to which
    scores are added) is not the one that makes it, and a wider mask that becomes -inf by a Cast stays a mask.

    Args:
        model: the graph, its data loaded.
        cases: inputs by case name, tried in this order until something is found.

    Raises:
        FormError: the graph has no float64 evaluation.
    """
    names, wider = _watched(model)
    if not names:
        return None
    graph = Float64Graph.of(model, PLAIN)
    found: list[tuple[str, float]] = []

    def watch(node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if found or not any(name in names for name in node.output):
            return
        given = [array for name, array in zip(node.input, inputs, strict=True) if name not in wider]
        for name, array in zip(node.output, outputs, strict=False):
            largest = _largest(array, positive=node.op_type == "Cast") if name in names else 0.0
            if largest >= _INFINITE_FROM and all(_largest(array) < LARGEST for array in given):
                found.append((names[name], largest))
                return

    for case, inputs in cases.items():
        graph.run(inputs, watch=watch)
        if found:
            return Overflow(*found[0], case)
    return None


def _largest(array: Any, *, positive: bool = False) -> float:
    """Return the largest finite magnitude of a float array, or its largest positive number; 0 for anything else."""
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        return 0.0
    size = array if positive else np.abs(array)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def _watched(model: onnx.ModelProto) -> tuple[dict[str, str], frozenset[str]]:
    """Return by value name, for what counts, which node to blame; and the names of the values of a wider type."""
    opened = split(model, PLAIN).model
    values = (*opened.graph.input, *opened.graph.value_info, *opened.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    own = {name: node for node in model.graph.node for name in node.output if name}
    scores = set(_scores(model.graph))
    watched: dict[str, str] = {}
    owner: onnx.NodeProto | None = None
    for node in reversed(opened.graph.node):  # the last node of a body carries the output of the operator
        owner = next((own[name] for name in node.output if name in own), owner)
        for name in node.output:
            if types.get(name) != TensorProto.FLOAT16:
                continue
            if name in own:
                watched[name] = describe(own[name]) + (" (the scores)" if name in scores else "")
            elif node.op_type == "MatMul" and owner is not None and owner.op_type == "Attention":
                watched[name] = f"MatMul inside {describe(owner)}"
    wider = frozenset(name for name, kind in types.items() if kind in (TensorProto.FLOAT, TensorProto.DOUBLE))
    return watched, wider


def _scores(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the products that go into a Softmax, but for scales and masks on the way."""
    makers = {name: node for node in graph.node for name in node.output if name}
    for softmax in graph.node:
        if softmax.op_type != "Softmax":
            continue
        behind, seen = list(softmax.input), set[str]()
        while behind:
            name = behind.pop()
            node = makers.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            if node.op_type == "MatMul":
                yield name
            elif node.op_type in _ON_THE_WAY:
                behind += node.input
