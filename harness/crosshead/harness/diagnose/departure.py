"""The first node of a wrong graph whose value the right function does not have.

Values are matched by what they are, since names differ: the same numbers in the same order, after any permutation of
axes. A node is right when its value is matched, or when a value that is computed from it is. Of the others, one whose
inputs are all right is where the graph departs.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from crosshead.export.error import relative_l2
from crosshead.harness.diagnose.cutting import CutGraph, reads
from crosshead.harness.diagnose.values import Values

EXACT: Final = 1e-9
"""Distance up to which two values are the same, where no literal of the graph blurs them."""

_MOST_AXES: Final = 5


@dataclass(frozen=True)
class Departure:
    """Where a graph departs from what is right.

    Attributes:
        node: the first node whose value is not matched.
        weight: an initializer that it reads and that is no weight of the module, bit for bit; empty where there is
            none.
        followers: nodes after it that are not matched either.
        last_right: the values it reads that are matched.
    """

    node: onnx.NodeProto
    weight: str = ""
    followers: int = 0
    last_right: tuple[str, ...] = ()


class Known:
    """A pool of right values, asked by equality up to a permutation of axes."""

    def __init__(self, values: Iterable[NDArray[Any]], tolerance: float) -> None:
        """Sort the values by size and kind."""
        self._tolerance = tolerance
        self._pool: dict[tuple[int, bool], list[NDArray[Any]]] = defaultdict(list)
        for value in values:
            plain = _plain(value)
            if plain is not None and plain.size:
                self._pool[plain.size, plain.dtype.kind == "f"].append(plain)

    def holds(self, value: NDArray[Any]) -> bool:
        """Whether the pool has this value."""
        plain = _plain(value)
        if plain is None or not plain.size:
            return True
        return any(self._same(plain, right) for right in self._pool[plain.size, plain.dtype.kind == "f"])

    def _same(self, value: NDArray[Any], right: NDArray[Any]) -> bool:
        loose = 4 * self._tolerance
        if not np.isclose(_norm(value), _norm(right), rtol=max(loose, 1e-12), atol=0.0, equal_nan=True):
            return False
        flat = right.reshape(-1)
        axes = range(value.ndim) if value.ndim <= _MOST_AXES else ()
        orders = itertools.permutations(axes) if axes else iter([tuple(range(value.ndim))])
        return any(relative_l2(value.transpose(order).reshape(-1), flat) <= self._tolerance for order in orders)


def find_departure(
    graph: CutGraph, values: Values, right: Sequence[NDArray[Any]], *, tolerance: float, wrong: Sequence[str]
) -> Departure | None:
    """Return where a graph departs; None where every value that leads to a wrong output is matched.

    Args:
        graph: the wrong graph.
        values: of its tensors, float64, by name.
        right: every value of the right function, weights and inputs among them.
        tolerance: relative L2 up to which two values are the same.
        wrong: names of the outputs that are off; all where empty.
    """
    known = Known(right, max(tolerance, EXACT))
    makers = {name: node for node in graph.nodes for name in node.output if name}
    proven: set[int] = set()
    for node in reversed(graph.nodes):
        outputs = [name for name in node.output if name in values]
        if outputs and not set(outputs) & set(wrong) and all(known.holds(values[name]) for name in outputs):
            _prove(node, makers, proven)
    leading = {id(node) for node in graph.between(graph.input_names, list(wrong or graph.output_names))}
    suspects = [node for node in graph.nodes if id(node) in leading and id(node) not in proven]
    if not suspects:
        return None
    first = _first(suspects, graph, values, makers)
    computed = tuple(name for name in dict.fromkeys(reads(first)) if name in makers and id(makers[name]) in proven)
    return Departure(first, _foreign_weight(first, graph.constants, known), len(suspects) - 1, computed)


def _first(
    suspects: Sequence[onnx.NodeProto], graph: CutGraph, values: Values, makers: Mapping[str, onnx.NodeProto]
) -> onnx.NodeProto:
    """Return, of the suspects that read right values alone, the one that the most of the others descend from.

    What a module has no counterpart of, and may be right (arithmetic of places and lengths, a factor), is passed over
    where something else is left.
    """
    doubted = {id(node) for node in suspects}
    passed: set[int] = set()
    for node in suspects:
        sources = {id(makers[name]) for name in reads(node) if name in makers}
        if _is_incidental(node, graph, values) and not sources & (doubted - passed):
            passed.add(id(node))
    for allowed in (passed, set()):
        left = [node for node in suspects if id(node) not in allowed]
        edge = [
            node
            for node in left
            if not {id(makers[name]) for name in reads(node) if name in makers} & (doubted - allowed)
        ]
        if edge:
            return max(edge, key=lambda node: (_descendants(node, suspects), -suspects.index(node)))
    return suspects[0]


def _is_incidental(node: onnx.NodeProto, graph: CutGraph, values: Values) -> bool:
    arrays = [np.asarray(values[name]) for name in node.output if name in values]
    if arrays and all(array.dtype.kind in "iu" or (array.dtype.kind == "b" and array.size == 1) for array in arrays):
        return True
    if node.op_type not in ("Mul", "Div"):
        return False
    return any(name in graph.constants and _elements(graph.constants[name]) == 1 for name in node.input)


def _elements(constant: onnx.TensorProto | onnx.NodeProto) -> int:
    tensor = constant if isinstance(constant, onnx.TensorProto) else constant.attribute[0].t
    return int(np.prod(tensor.dims, dtype=np.int64))


def _descendants(node: onnx.NodeProto, suspects: Sequence[onnx.NodeProto]) -> int:
    reached, count = set(node.output), 0
    for other in suspects:
        if other is not node and reached & set(reads(other)):
            reached |= set(other.output)
            count += 1
    return count


def foreign_weights(graph: CutGraph, right: Sequence[NDArray[Any]]) -> list[str]:
    """Return the initializers of more than one float that are no weight of the module, bit for bit, in any layout."""
    known = Known(right, 0.0)
    found = []
    for name, constant in graph.constants.items():
        if isinstance(constant, onnx.TensorProto):
            array = numpy_helper.to_array(constant)
            if array.size > 1 and array.dtype.kind in "fV" and not known.holds(array):
                found.append(name)
    return found


def _foreign_weight(node: onnx.NodeProto, constants: Mapping[str, Any], known: Known) -> str:
    for name in reads(node):
        constant = constants.get(name)
        if isinstance(constant, onnx.TensorProto):
            array = numpy_helper.to_array(constant)
            if array.size > 1 and not known.holds(array):
                return name
    return ""


def _prove(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], proven: set[int]) -> None:
    """Mark a node, and all that its value is computed from, as right."""
    todo = [node]
    while todo:
        each = todo.pop()
        if id(each) in proven:
            continue
        proven.add(id(each))
        if each.op_type in ("Shape", "Size"):  # says nothing of the values that it reads
            continue
        todo += [makers[name] for name in reads(each) if name in makers]


def _plain(value: NDArray[Any]) -> NDArray[Any] | None:
    """Return numbers as float64 or int64, axes of size 1 left out; None for anything else."""
    array = np.asarray(value)
    if array.dtype.kind in "biu":
        return array.astype(np.int64).squeeze()
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        return array.astype(np.float64).squeeze()
    return None


def _norm(array: NDArray[Any]) -> float:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return float(np.linalg.norm(finite.astype(np.float64)))
