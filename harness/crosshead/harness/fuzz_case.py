"""One drawn input with what must come out, and how far something is off on it, by the rows that count."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.apart import apart_rows, counted
from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Precision
from crosshead.export.error import relative_l2_both
from crosshead.export.float64 import Float64Graph, graph_sensitivity
from crosshead.export.stress_draws import Draw

RANGES: Final[Mapping[Precision, float]] = {"fp32": 3.4e38, "bf16": 3.3e38, "fp16": 65504.0}
"""The largest number of each precision."""

_FILL: Final = 3e38
"""Numbers beyond this are what masks are filled with."""

DRAWS: Final = 4


@dataclass(frozen=True)
class FuzzCase:
    """One input.

    Attributes:
        draw: it, and the rows that decide nothing.
        want: the oracle's outputs, float64.
        own: the graph's, float64: what is rounded on the way is told by how these move.
    """

    draw: Draw
    want: Mapping[str, NDArray[Any]]
    own: Mapping[str, NDArray[Any]]
    _known: dict[tuple[Precision, int], dict[str, tuple[float, float]]] = field(default_factory=dict)

    @property
    def judgeable(self) -> bool:
        """Whether the oracle has numbers in the rows that count, and not all of them zero."""
        floats = [
            counted(array, apart_rows(array.shape, self.draw.apart))
            for array in map(np.asarray, self.want.values())
            if array.dtype.kind == "f"
        ]
        return bool(floats) and all(np.isfinite(each).all() for each in floats) and any(map(np.any, floats))

    def times(self, errors: Mapping[str, tuple[float, float]], yards: Mapping[str, tuple[float, float]]) -> float:
        """Return the largest error in units of what the output must have."""
        over = [max(errors[name][0] / yard[0], errors[name][1] / yard[1]) for name, yard in yards.items()]
        return max(over, default=0.0)

    def errors(self, got: Mapping[str, NDArray[Any]]) -> dict[str, tuple[float, float]]:
        """Return the error of each output: over all rows that count, over the worst one; infinite by shape."""
        found = {}
        for name, want in self.want.items():
            mine = got.get(name)
            if mine is None or mine.shape != want.shape:
                found[name] = (math.inf, math.inf)
                continue
            rows = apart_rows(want.shape, self.draw.apart)
            errors = relative_l2_both(counted(np.asarray(mine), rows), counted(np.asarray(want), rows))
            found[name] = (errors[0], errors[1])
        return found

    def yards(self, model: onnx.ModelProto, precision: Precision, draws: int = DRAWS) -> dict[str, tuple[float, float]]:
        """Return the rounding that each float output must have: over all rows that count, over the worst one.

        Computed once: it takes longer than all backends together. One draw gives a first idea, which is too small if
        anything.
        """
        if (precision, draws) not in self._known:
            rows = {name: apart_rows(np.asarray(want).shape, self.draw.apart) for name, want in self.own.items()}
            judged = {name: partial(counted, rows=apart) for name, apart in rows.items() if apart is not None}
            moves = graph_sensitivity(model, self.draw.inputs, self.own, precision, draws=draws, judged=judged)
            u = UNIT_ROUNDOFFS[precision] / 2
            self._known[precision, draws] = {name: (max(whole, u), max(row, u)) for name, (whole, row) in moves.items()}
        return self._known[precision, draws]


def largest_value(graph: Float64Graph, inputs: Arrays) -> tuple[Mapping[str, NDArray[Any]], float]:
    """Evaluate a graph in float64; return its outputs, and the largest finite number on the way, fills left out.

    Raises:
        FormError: it cannot be evaluated on these inputs.
    """
    largest = 0.0

    def watch(_: onnx.NodeProto, __: Sequence[Any], outputs: Sequence[Any]) -> None:
        nonlocal largest
        for array in outputs:
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size:
                size = np.abs(array)
                largest = max(largest, float(size.max(where=size < _FILL, initial=0.0)))

    return graph.run(inputs, watch=watch), largest
