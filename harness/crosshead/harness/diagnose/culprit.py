"""The node at which an error arises: cuts of the graph are fed the oracle's values, so that nothing is inherited.

Ranges of nodes are halved until one is left; where neither half is off alone, the nodes that have to run together are
named together. The method is delta debugging (Zeller and Hildebrandt 2002) on the order of a graph.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, FormError, Precision
from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.export.float64 import Float64Graph, graph_sensitivity
from crosshead.harness.diagnose.cutting import CutGraph, name_of, op_of
from crosshead.harness.diagnose.values import Values, rounded
from crosshead.harness.judge import PASS_TIMES_ALONE
from crosshead.runtimes import BackendError, UnsupportedError, WorkerError

LIMIT_TIMES: Final = PASS_TIMES_ALONE
"""Own error of a cut above which it is off, in units of its own sensitivity."""

HALF_LIMIT_TIMES: Final = 3.0
"""The same for one node in half precision, in units of the rounding of its own output (docs/method.md)."""

DRAWS: Final = 3
MOST_SINGLE: Final = 400
_MOST_ALIKE: Final = 24

Ask = Callable[[onnx.ModelProto, Arrays], Arrays]


@dataclass(frozen=True)
class Own:
    """One cut on its own, fed the oracle's values.

    Attributes:
        first, last: its nodes, by their place in the graph.
        model: the cut.
        inputs: what it was fed.
        got: what the backend gave; empty where it failed.
        want: the oracle's outputs on these very inputs.
        error, times: relative L2, and in units of the rounding that the cut must have.
        yards: the rounding that each output must have, over all of it and over its worst row.
        failed: what the backend said where it gave nothing.
        other_times: own error of the other backend, where two are compared.
        apart_times: how far the two are apart.
    """

    first: int
    last: int
    model: onnx.ModelProto
    inputs: Arrays
    got: Arrays
    want: Mapping[str, NDArray[Any]]
    error: float = 0.0
    times: float = 0.0
    yards: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    failed: str = ""
    other_times: float | None = None
    apart_times: float | None = None

    @property
    def off_by(self) -> float:
        """What decides: the distance of two backends where two are compared, else the error."""
        return self.times if self.apart_times is None else self.apart_times


@dataclass(frozen=True)
class Culprit:
    """What was found.

    Attributes:
        own: of the culprit.
        nodes: one, or those that show the fault only together.
        alike: other nodes of the same operator that are off on their own.
        inherited: error of what the culprit reads when the nodes before it run on the backend as well.
    """

    own: Own
    nodes: tuple[onnx.NodeProto, ...]
    alike: int = 0
    inherited: float | None = None


class Search:
    """The search in one graph for one backend, or for what sets two apart."""

    def __init__(
        self,
        graph: CutGraph,
        values: Values,
        ask: Ask,
        precision: Precision,
        *,
        unfused: CutGraph | None = None,
        other: Ask | None = None,
        crashes: bool = False,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            graph: what the backend runs.
            values: the oracle's, by name; nodes whose surroundings are not known are taken together.
            ask: runs a model on the backend.
            precision: of the graph.
            unfused: a graph of the same values, in which a cut without a float64 evaluation is evaluated.
            other: runs a model on the other backend.
            crashes: the fault is that the backend fails, not that it is off.
            on_step: told what is being asked.
        """
        self._graph, self._values, self._ask, self._other = graph, values, ask, other
        self._precision: Precision = precision
        self._unfused = unfused
        self._crashes = crashes
        self._on_step = on_step
        self._known: dict[tuple[int, int], Own | None] = {}
        self.asked = 0

    def find(self) -> Culprit | None:
        """Return the first culprit in the order of the graph; None where no cut is off on its own."""
        last = len(self._graph.nodes) - 1
        if last < 0:
            return None
        found = self._narrow(0, last) if self.is_off(0, last) else self._worst_single()
        if found is None:
            return None
        own = self.own(*found)
        assert own is not None, "it was found to be off"
        nodes = self._graph.nodes[found[0] : found[1] + 1]
        return Culprit(own, nodes, self._alike(found), self._inherited(own))

    def is_off(self, first: int, last: int) -> bool:
        """Whether a cut shows the fault."""
        own = self.own(first, last)
        if own is None:
            return False
        if self._crashes:
            return bool(own.failed)
        return not own.failed and not own.off_by <= self._limit(first, last)

    def own(self, first: int, last: int) -> Own | None:
        """Return the own error of the nodes from `first` to `last`; None where it cannot be asked."""
        if (first, last) not in self._known:
            self.asked += 1
            self._on_step(f"nodes {first + 1} to {last + 1} of {len(self._graph.nodes)} on their own")
            self._known[first, last] = self._measure(first, last)
        return self._known[first, last]

    # --- narrowing

    def _narrow(self, first: int, last: int) -> tuple[int, int]:
        while first < last:
            middle = (first + last) // 2
            if self.is_off(first, middle):
                last = middle
            elif self.is_off(middle + 1, last):
                first = middle + 1
            else:
                return self._together(first, last)
        return first, last

    def _together(self, first: int, last: int) -> tuple[int, int]:
        """Neither half is off alone: take nodes away from both ends as long as the rest is."""
        step = max(1, (last - first) // 2)
        while step:
            while first + step <= last and self.is_off(first + step, last):
                first += step
            while last - step >= first and self.is_off(first, last - step):
                last -= step
            step //= 2
        return first, last

    def _worst_single(self) -> tuple[int, int] | None:
        """The graph as a whole hides it: look at each node alone."""
        if len(self._graph.nodes) > MOST_SINGLE or self._crashes:
            return None
        off = [place for place in range(len(self._graph.nodes)) if self.is_off(place, place)]
        return (off[0], off[0]) if off else None

    def _alike(self, found: tuple[int, int]) -> int:
        if found[0] != found[1]:
            return 0
        op = op_of(self._graph.nodes[found[0]])
        same = [n for n, node in enumerate(self._graph.nodes) if op_of(node) == op and n != found[0]]
        return sum(self.is_off(place, place) for place in same[:_MOST_ALIKE])

    def _inherited(self, own: Own) -> float | None:
        """Return the error of what the culprit reads when all before it is run as well."""
        graph = self._graph
        computed = [name for name in own.inputs if name not in graph.input_names]
        if not computed:
            return 0.0
        try:
            nodes = graph.between(graph.input_names, computed)
            fed = {name: np.asarray(self._values[name]) for name in graph.input_names}
            model = graph.cut(nodes, graph.input_names, computed, self._values)
            got = self._ask(model, {name: rounded(graph, name, array) for name, array in fed.items()})
        except (FormError, BackendError, WorkerError, KeyError):
            return None
        errors = [relative_l2(got[name], self._values[name]) for name in computed if name in got]
        return max(errors, default=None)

    # --- measuring

    def _limit(self, first: int, last: int) -> float:
        return HALF_LIMIT_TIMES if first == last and self._precision != "fp32" else LIMIT_TIMES

    def _measure(self, first: int, last: int) -> Own | None:
        graph = self._graph
        inputs, outputs = graph.boundary(first, last)
        if any(name not in self._values for name in (*inputs, *outputs)):
            return None
        fed = {name: rounded(graph, name, self._values[name]) for name in inputs}
        try:
            model = graph.cut(graph.nodes[first : last + 1], inputs, outputs, self._values)
            want, yards = self._oracle(model, fed, outputs, single=first == last)
        except FormError:
            return None
        own = Own(first, last, model, fed, {}, want, yards=yards)
        try:
            got = self._ask(model, fed)
            apart = self._other(model, fed) if self._other is not None else None
        except (BackendError, WorkerError, FormError) as problem:
            own = replace(own, failed=" ".join(str(problem).split()) or type(problem).__name__)
            return None if isinstance(problem, UnsupportedError) and not self._crashes else own
        error, times = _largest(got, want, yards)
        own = replace(own, got=got, error=error, times=times)
        if apart is None:
            return own
        return replace(own, other_times=_largest(apart, want, yards)[1], apart_times=_largest(got, apart, yards)[1])

    def _oracle(
        self, model: onnx.ModelProto, fed: Arrays, outputs: Sequence[str], *, single: bool
    ) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, tuple[float, float]]]:
        """Return what a cut computes in float64, and the rounding that each output must have (whole, worst row).

        Raises:
            FormError: neither the cut nor the same part of the unfused graph has a float64 evaluation.
        """
        try:
            want: Mapping[str, NDArray[Any]] = Float64Graph.of(model).run(fed)
        except FormError:
            if self._unfused is None:
                raise
            nodes = self._unfused.between(list(fed), outputs)
            model = self._unfused.cut(nodes, list(fed), outputs, self._values)
            want = Float64Graph.of(model).run(fed)
        u = UNIT_ROUNDOFFS[self._precision]
        if single and self._precision != "fp32":
            return want, {name: _rounding(rounded(self._graph, name, array), array) for name, array in want.items()}
        moves = graph_sensitivity(model, fed, want, self._precision, draws=DRAWS)
        return want, {name: (max(whole, u / 2), max(row, u / 2)) for name, (whole, row) in moves.items()}


def _rounding(narrow: NDArray[Any], wide: NDArray[Any]) -> tuple[float, float]:
    tiny = float(np.finfo(np.float32).tiny)
    errors = relative_l2(narrow, wide), relative_l2_row(narrow, wide)
    return max(errors[0], tiny), max(errors[1], tiny)


def _largest(
    got: Mapping[str, NDArray[Any]], want: Mapping[str, NDArray[Any]], yards: Mapping[str, tuple[float, float]]
) -> tuple[float, float]:
    """Return the largest error over outputs, and the largest in units of what each must have."""
    errors, times = [0.0], [0.0]
    for name, array in want.items():
        mine = got.get(name)
        if mine is None or mine.shape != array.shape:
            return math.inf, math.inf
        whole, row = relative_l2(mine, array), relative_l2_row(mine, array)
        yard = yards.get(name)
        errors.append(whole)
        if yard is None:  # whole numbers and booleans are exact
            times.append(math.inf if whole > 0 else 0.0)
        else:
            times.append(max(_over(whole, yard[0]), _over(row, yard[1])))
    return max(errors), max(times)


def _over(error: float, yard: float) -> float:
    return error / yard if math.isfinite(yard) else 0.0


def label(node: onnx.NodeProto) -> str:
    """Return a node as a person looks for it: `MatMul node 'scores'`."""
    domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}::"
    return f"{domain}{node.op_type} node {name_of(node)!r}"
