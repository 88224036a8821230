"""The relative L2 error, the one error measure of this project (docs/method.md, "Tolerance is derived").

    relative_l2      ||got - want||2 / ||want||2
    relative_l2_row  the largest over rows r (last axis) of
                     ||got_r - want_r||2 / max(||want_r||2, ||want||2 / sqrt(rows))

Both are dimensionless and computed in float64. The floor in the row's denominator keeps a row of small values from
being judged by the rounding of its large neighbours. NumPy only: a target machine without torch imports this too.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 18  # elements widened at a time: 2 MiB a temporary
_Float64s = NDArray[np.float64]


def relative_l2(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Return ||got - want||2 / ||want||2 over all elements.

    Elements that are NaN on both sides, or the same infinity on both, agree and count on neither side. Any other NaN or
    infinity, and two shapes that differ, give inf. 0 / 0 is 0 and x / 0 is inf; empty arrays have no error.

    Args:
        got: any real dtype (bool, integer, float, bfloat16) and shape.
        want: the same shape; 64-bit integers beyond 2^53 are rounded.
    """
    return _errors(got, want)[0]


def relative_l2_row(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Return the largest relative L2 error of one row, so that one wrong row in many shows.

    Arguments and special values are those of `relative_l2`; a scalar or a 1-D array is one row.
    """
    return _errors(got, want)[1]


def _errors(got: NDArray[Any], want: NDArray[Any]) -> tuple[float, float]:
    """Return the error over the whole array and over its worst row."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return np.inf, np.inf
    if want.size == 0:
        return 0.0, 0.0
    width = want.shape[-1] if want.ndim else 1
    got, want = got.reshape(-1, width), want.reshape(-1, width)  # (…, width) -> (rows, width)
    scale = _largest_finite(want)  # squares of what is divided by it neither overflow nor vanish
    moved, norms = _row_squares(got, want, scale)
    return _ratio(moved.sum(keepdims=True), norms.sum(keepdims=True)), _ratio(moved, np.maximum(norms, norms.mean()))


def _ratio(moved: _Float64s, norms: _Float64s) -> float:
    """Return the largest sqrt(moved / norm), with 0 / 0 = 0 and x / 0 = inf."""
    some = moved > 0
    with np.errstate(divide="ignore"):
        return float(np.sqrt(moved[some] / norms[some]).max(initial=0.0))


def _largest_finite(array: NDArray[Any]) -> float:
    largest = 0.0
    for piece in _pieces(len(array), array.shape[1]):
        values = np.abs(array[piece].astype(np.float64))
        largest = max(largest, float(values.max(where=np.isfinite(values), initial=0.0)))
    return largest or 1.0


def _row_squares(got: NDArray[Any], want: NDArray[Any], scale: float) -> tuple[_Float64s, _Float64s]:
    """Return, for each row, ||got - want||^2 and ||want||^2, both over scale^2; inf where NaN or Inf disagree."""
    rows, width = want.shape
    moved, norms = np.zeros(rows), np.zeros(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        for piece in _pieces(rows, width):
            mine, true = got[piece].astype(np.float64), want[piece].astype(np.float64)
            agree = (mine == true) | (np.isnan(mine) & np.isnan(true))
            special = ~(np.isfinite(mine) & np.isfinite(true))
            mine[special], true[special] = 0.0, 0.0
            moves = (mine - true) / scale
            moves[special & ~agree] = np.inf
            true /= scale
            moved[piece[0]] += np.einsum("rw,rw->r", moves, moves)
            norms[piece[0]] += np.einsum("rw,rw->r", true, true)
    return moved, norms


def _pieces(rows: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Cut a (rows, width) array into blocks of at most about `_CHUNK` elements."""
    rows_each, width_each = max(1, _CHUNK // width), min(width, _CHUNK)
    for row in range(0, rows, rows_each):
        for column in range(0, width, width_each):
            yield slice(row, row + rows_each), slice(column, column + width_each)
