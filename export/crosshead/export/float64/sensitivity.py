"""How far the float64 oracle moves when its inputs and weights are rounded: the scale of every honest error.

A backend reads inputs and weights rounded to its precision and rounds every product on the way; an error near the
sensitivity is what this very case must have. The estimate is Monte Carlo arithmetic (Parker 1997) cut down to the
inputs: the largest of a few draws, in each of which every element moves by one unit roundoff up or down.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import Precision
from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.export.float64._graph import Float64Graph, scale_constants, widen_array

if TYPE_CHECKING:
    from torch import nn

UNIT_ROUNDOFF: Mapping[Precision, float] = MappingProxyType({"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8})
"""Half the distance from 1 to the next number of each precision, relative."""

DRAWS = 8
_SEED = 20100
_Arrays = Mapping[str, NDArray[Any]]
Sensitivity = dict[str, tuple[float, float]]


def module_sensitivity(
    module: "nn.Module", inputs: _Arrays, expected: _Arrays, precision: Precision, *, draws: int = DRAWS
) -> Sensitivity:
    """Return how far each output of a module moves under one unit roundoff of `precision`.

    Every float element of the inputs and of the module's parameters, buffers and plain tensor attributes moves.
    Booleans, integers, infinities, NaN and mask fills at the end of a type's range stay, and so does a float input of
    whole numbers alone: a mask of 0 and 1, which no precision rounds, and from which code computes 1 - mask.

    Args:
        module: its weights are not changed.
        inputs: as for `module_outputs_float64`.
        expected: the oracle's outputs for these inputs, in the order of the module's outputs.
        precision: whose unit roundoff.
        draws: random sign draws, seeded.

    Returns:
        For each float output (over the whole output, over its worst row), by the formulas of `crosshead.export.error`.

    Raises:
        SourceError: as `module_outputs_float64`.
    """
    from crosshead.export.float64.oracle import Float64Module

    oracle = Float64Module(module)
    nudge = _Nudge(UNIT_ROUNDOFF[precision])

    def draw(rng: np.random.Generator) -> _Arrays:
        oracle.restore()
        for _, _, wide in oracle.state:
            weight = wide.numpy()
            weight[...] = nudge(weight, rng)
        return oracle.run({name: nudge.input(array, rng) for name, array in inputs.items()}, list(expected))

    return _largest_moves(draw, expected, draws)


def graph_sensitivity(
    model: onnx.ModelProto, inputs: _Arrays, expected: _Arrays, precision: Precision, *, draws: int = DRAWS
) -> Sensitivity:
    """Return how far each output of a bare graph moves under one unit roundoff of `precision`.

    A bare graph does not say which of its constants are weights: every float initializer counts, and every other float
    constant of more than one element, save single whole numbers (an exponent, a bound) and the scales of Resize.

    Args:
        model: any model with its data loaded; it is not changed.
        inputs: by graph input name.
        expected: `evaluate_float64` of the same inputs.
        precision: whose unit roundoff.
        draws: random sign draws, seeded.

    Raises:
        FormError: as `evaluate_float64`.
    """
    graph = Float64Graph.of(model)
    nudge = _Nudge(UNIT_ROUNDOFF[precision])
    weights = [name for name, array in graph.constants.items() if _is_weight(graph, name, array)]

    def draw(rng: np.random.Generator) -> _Arrays:
        moved = {name: nudge.input(array, rng) for name, array in inputs.items()}
        return graph.run(moved, {name: nudge(graph.constants[name], rng) for name in weights})

    return _largest_moves(draw, expected, draws)


def _is_weight(graph: Float64Graph, name: str, array: NDArray[Any]) -> bool:
    if array.dtype != np.float64 or name in scale_constants(graph.model):
        return False
    if array.size == 1:
        return name in graph.initializers and not float(array.reshape(-1)[0]).is_integer()
    return True


class _Nudge:
    """Move each float element by one unit roundoff, up or down as a generator says."""

    def __init__(self, unit_roundoff: float) -> None:
        self._u = unit_roundoff

    def __call__(self, array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        wide = widen_array(np.asarray(array))
        if wide.dtype != np.float64:
            return wide
        with np.errstate(over="ignore"):
            moved = np.asarray(wide * (1.0 + self._u * random_signs(wide.shape, rng)))
        size = np.abs(wide)
        if size.max(initial=0.0) < _RANGE_ENDS[0]:
            return moved
        return np.where(np.isin(size, _RANGE_ENDS), wide, moved)  # a mask fill is an infinity, which nothing moves

    def input(self, array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Move an input, unless it holds whole numbers and infinities alone."""
        wide = widen_array(np.asarray(array))
        return wide if wide.dtype == np.float64 and np.all(wide == np.rint(wide)) else self(wide, rng)


# The largest numbers of fp16, bf16, fp32 and fp64.
_RANGE_ENDS = (65504.0, (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-23) * 2.0**127, float(np.finfo(np.float64).max))


def random_signs(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return an array of -1 and +1."""
    return rng.integers(0, 2, size=shape, dtype=np.int8).astype(np.float64) * 2.0 - 1.0


def _largest_moves(draw: Callable[[np.random.Generator], _Arrays], expected: _Arrays, draws: int) -> Sensitivity:
    floats = [name for name, array in expected.items() if np.asarray(array).dtype.kind == "f"]
    largest = dict.fromkeys(floats, (0.0, 0.0))
    for number in range(draws if floats else 0):
        moved = draw(np.random.default_rng((_SEED, number)))
        for name, (whole, row) in largest.items():
            got, want = moved[name], np.asarray(expected[name])
            largest[name] = max(whole, relative_l2(got, want)), max(row, relative_l2_row(got, want))
    return largest
