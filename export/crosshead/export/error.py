"""The relative L2 error, the one error measure of this project (docs/method.md, "Tolerance is derived").

    relative_l2      ||got - want||2 / ||want||2
    relative_l2_row  the largest over rows r (last axis) of
                     ||got_r - want_r||2 / max(||want_r||2, ||want||2 / sqrt(rows))

Both are dimensionless and computed in float64, block by block, so that neither array need be in memory. The floor in
the row's denominator keeps a row of small values from being judged by the rounding of its large neighbours. NumPy only:
a target machine without torch imports this too.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Readable, StoredArray
from crosshead.export.pair import Block, Pair

_ROWS_KEPT = 1 << 20
"""Sums of at most so many rows are kept (8 MiB a side), others computed again when the floor is known."""

_Float64s = NDArray[np.float64]


class Errors(NamedTuple):
    """What `Pair.blocks` add up to.

    Attributes:
        whole, row: as `relative_l2` and `relative_l2_row`.
        moved, norm: ||got - want||^2 and ||want||^2, both over the square of the same scale.
    """

    whole: float
    row: float
    moved: float
    norm: float


def relative_l2(got: Readable, want: Readable) -> float:
    """Return ||got - want||2 / ||want||2 over all elements.

    Elements that are NaN on both sides, or the same infinity on both, agree and count on neither side. Any other NaN or
    infinity, and two shapes that differ, give inf. 0 / 0 is 0 and x / 0 is inf; empty arrays have no error.

    Args:
        got: any real dtype (bool, integer, float, bfloat16) and shape, in memory or on disk.
        want: the same shape; 64-bit integers beyond 2^53 are rounded.
    """
    return relative_l2_both(got, want)[0]


def relative_l2_row(got: Readable, want: Readable) -> float:
    """Return the largest relative L2 error of one row, so that one wrong row in many shows.

    Arguments and special values are those of `relative_l2`; a scalar or a 1-D array is one row.
    """
    return relative_l2_both(got, want)[1]


def relative_l2_both(got: Readable, want: Readable, kept: NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """Return `relative_l2` and `relative_l2_row`, had at once.

    Args:
        got: as for `relative_l2`.
        want: as for `relative_l2`.
        kept: the leading axes of them; what is false there is left out.
    """
    got, want = (each if isinstance(each, StoredArray) else np.asarray(each) for each in (got, want))
    if got.shape != want.shape:
        return np.inf, np.inf
    return errors_of(Pair(got, want, kept))[:2]


def errors_of(pair: Pair, scale: float | None = None) -> Errors:
    """Return both errors of a pair, and the sums that they are made of.

    Args:
        pair: what is compared.
        scale: the largest finite size of an element of `want`, where it is known already; 1 where that is 0.
    """
    if not pair.size:
        return Errors(0.0, 0.0, 0.0, 0.0)
    scale = _largest_finite(pair) if scale is None else scale  # squares of what is divided by it do not overflow
    if pair.rows <= _ROWS_KEPT:
        sums = list(_row_squares(pair, scale))
        moved, norms = (np.concatenate([each[side] for each in sums]) for side in (0, 1))
        total, norm = moved.sum(keepdims=True), norms.sum(keepdims=True)
        worst = _ratio(moved, np.maximum(norms, norm / pair.rows))
    else:
        total = norm = np.zeros(1)
        for moved, norms in _row_squares(pair, scale):
            total, norm = total + moved.sum(), norm + norms.sum()
        floor = norm / pair.rows
        worst = max(_ratio(moved, np.maximum(norms, floor)) for moved, norms in _row_squares(pair, scale))
    return Errors(_ratio(total, norm), worst, float(total[0]), float(norm[0]))


def _ratio(moved: _Float64s, norms: _Float64s) -> float:
    """Return the largest sqrt(moved / norm), with 0 / 0 = 0 and x / 0 = inf."""
    some = moved > 0
    with np.errstate(divide="ignore"):
        return float(np.sqrt(moved[some] / norms[some]).max(initial=0.0))


def _largest_finite(pair: Pair) -> float:
    largest = 0.0
    for block in pair.blocks():
        values = np.abs(block.want.astype(np.float64))
        largest = max(largest, float(values.max(where=np.isfinite(values), initial=0.0)))
    return largest or 1.0


def _row_squares(pair: Pair, scale: float) -> Iterator[tuple[_Float64s, _Float64s]]:
    """Yield, for rows that follow each other, ||got - want||^2 and ||want||^2, both over scale^2."""
    begun = np.zeros((2, 1))  # of a row that comes in parts
    for block in pair.blocks():
        sums = _squares(block, scale)  # (2, rows)
        if not block.ends:
            begun += sums
            continue
        sums[:, :1] += begun
        begun = np.zeros((2, 1))
        yield sums[0], sums[1]


def _squares(block: Block, scale: float) -> _Float64s:
    """Return (2, rows): ||got - want||^2 and ||want||^2 over scale^2; inf where NaN or Inf disagree."""
    with np.errstate(over="ignore", invalid="ignore"):
        mine, true = block.got.astype(np.float64), block.want.astype(np.float64)
        finite = np.isfinite(mine) & np.isfinite(true)
        if finite.all():
            moves = (mine - true) / scale
        else:
            agree = (mine == true) | (np.isnan(mine) & np.isnan(true))
            mine[~finite], true[~finite] = 0.0, 0.0
            moves = (mine - true) / scale
            moves[~finite & ~agree] = np.inf
        true /= scale
        return np.stack([np.einsum("rw,rw->r", moves, moves), np.einsum("rw,rw->r", true, true)])
