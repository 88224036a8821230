"""How far the float64 oracle moves when its inputs and weights are rounded: the scale of every honest error.

A backend reads inputs and weights rounded to its precision and rounds every product on the way; an error near the
sensitivity is what this very case must have. The estimate is Monte Carlo arithmetic (Parker 1997) cut down to the
inputs: the largest of a few draws, in each of which every element moves by one unit roundoff up or down.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Precision
from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.export.float64._graph import Float64Graph, is_float, scale_constants, widen_array

if TYPE_CHECKING:
    from torch import nn

DRAWS = 8
_SEED = 20100
_Arrays = Mapping[str, NDArray[Any]]
Sensitivity = dict[str, tuple[float, float]]
Judged = Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]]


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
    (found,) = module_sensitivities(module, [(inputs, expected)], precision, draws=draws)
    return found


def module_sensitivities(
    module: "nn.Module",
    cases: Sequence[tuple[_Arrays, _Arrays]],
    precision: Precision,
    *,
    draws: int = DRAWS,
    judged: Sequence[Judged] = (),
) -> list[Sensitivity]:
    """Return the sensitivity of many cases; a draw moves the weights once for all of them.

    Args:
        module: as for `module_sensitivity`.
        cases: inputs and expected outputs of each.
        precision: as for `module_sensitivity`.
        draws: as for `module_sensitivity`.
        judged: for each case, by output name, what takes the part of an output that counts; empty for all of it.
    """
    from crosshead.export.float64.oracle import Float64Module

    oracle = Float64Module(module)
    nudge = _Nudge(UNIT_ROUNDOFFS[precision])
    largest = [dict.fromkeys(_floats(expected), (0.0, 0.0)) for _, expected in cases]
    for number in range(draws if any(largest) else 0):
        rng = np.random.default_rng((_SEED, number))
        oracle.restore()
        for _, _, wide in oracle.state:
            nudge.in_place(wide.view(-1).numpy(), rng)
        for index, (inputs, expected) in enumerate(cases):
            if largest[index]:
                moved = oracle.run({name: nudge.input(array, rng) for name, array in inputs.items()}, list(expected))
                _enlarge(largest[index], moved, expected, judged[index] if judged else {})
    return largest


def graph_sensitivity(
    model: onnx.ModelProto,
    inputs: _Arrays,
    expected: _Arrays,
    precision: Precision,
    *,
    draws: int = DRAWS,
    judged: Judged | None = None,
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
        judged: by output name, what takes the part of an output that counts; empty for all of it.

    Raises:
        FormError: as `evaluate_float64`.
    """
    graph = Float64Graph.of(model)
    nudge = _Nudge(UNIT_ROUNDOFFS[precision])
    weights = [name for name in graph.native if _is_weight(graph, name)]

    def draw(rng: np.random.Generator) -> _Arrays:
        moved = {name: nudge.input(array, rng) for name, array in inputs.items()}
        return graph.run(moved, _NudgedWeights(graph, weights, nudge, int(rng.integers(2**32))))

    return _largest_moves(draw, expected, draws, judged)


def _is_weight(graph: Float64Graph, name: str) -> bool:
    array = graph.native[name]
    if not is_float(array.dtype) or name in scale_constants(graph.model):
        return False
    if array.size == 1:
        return name in graph.initializers and not float(array.reshape(-1)[0]).is_integer()
    return True


class _NudgedWeights(Mapping[str, NDArray[Any]]):
    """The weights of a graph, moved when they are looked at, so that not all are in memory in double."""

    def __init__(self, graph: Float64Graph, names: Sequence[str], nudge: "_Nudge", seed: int) -> None:
        self._graph, self._nudge, self._seed = graph, nudge, seed
        self._numbers = {name: number for number, name in enumerate(names)}

    def __getitem__(self, name: str) -> NDArray[Any]:
        rng = np.random.default_rng((self._seed, self._numbers[name]))
        return self._nudge(self._graph.native[name], rng)

    def __contains__(self, name: object) -> bool:  # the one that Mapping gives looks the array up
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


class _Nudge:
    """Move each float element by one unit roundoff, up or down as a generator says."""

    def __init__(self, unit_roundoff: float) -> None:
        self._u = unit_roundoff

    def __call__(self, array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        wide = np.array(array, dtype=np.float64) if is_float(array.dtype) else array
        if is_float(array.dtype):
            self.in_place(wide.reshape(-1), rng)
        return wide

    def in_place(self, flat: NDArray[np.float64], rng: np.random.Generator) -> None:
        """Move the elements of a contiguous 1-D array, a piece at a time."""
        for start in range(0, flat.size, _PIECE):
            piece = flat[start : start + _PIECE]
            with np.errstate(over="ignore"):
                moved = piece * (1.0 + self._u * random_signs(piece.shape, rng))
            size = np.abs(piece)
            if size.max() >= _RANGE_ENDS[0]:  # a mask fill at the end of a range is an infinity, which nothing moves
                np.copyto(moved, piece, where=np.isin(size, _RANGE_ENDS))
            piece[...] = moved

    def input(self, array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
        """Move an input, unless it holds whole numbers and infinities alone."""
        wide = widen_array(np.asarray(array))
        return wide if wide.dtype == np.float64 and np.all(wide == np.rint(wide)) else self(wide, rng)


_PIECE = 1 << 18  # elements: 2 MiB a temporary
# The largest numbers of fp16, bf16, fp32 and fp64.
_RANGE_ENDS = (65504.0, (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-23) * 2.0**127, float(np.finfo(np.float64).max))


def random_signs(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return an array of -1 and +1."""
    size = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), dtype=np.uint8), count=size)
    return np.array([-1.0, 1.0])[bits].reshape(shape)


def _largest_moves(
    draw: Callable[[np.random.Generator], _Arrays], expected: _Arrays, draws: int, judged: Judged | None = None
) -> Sensitivity:
    largest = dict.fromkeys(_floats(expected), (0.0, 0.0))
    for number in range(draws if largest else 0):
        _enlarge(largest, draw(np.random.default_rng((_SEED, number))), expected, judged or {})
    return largest


def _floats(expected: _Arrays) -> list[str]:
    return [name for name, array in expected.items() if np.asarray(array).dtype.kind == "f"]


def _enlarge(largest: Sensitivity, moved: _Arrays, expected: _Arrays, judged: Judged) -> None:
    """Take one draw into the largest moves."""
    for name, (whole, row) in largest.items():
        got, want = moved[name], np.asarray(expected[name])
        if name in judged:
            got, want = judged[name](got), judged[name](want)
        largest[name] = max(whole, relative_l2(got, want)), max(row, relative_l2_row(got, want))
