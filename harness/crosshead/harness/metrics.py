"""How far an output is from the oracle: every figure of docs/method.md, "What each comparison records".

Large outputs are read in blocks, some times over; no figure needs more than a few blocks in memory.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Readable
from crosshead.export.error import Errors, errors_of
from crosshead.export.pair import Pair
from crosshead.harness.quantiles import quantiles
from crosshead.results import HistogramRecord, UlpRecord, WorstElement

Float64 = NDArray[np.float64]

_DISTRIBUTION_TOLERANCE = 1e-6
_EXPONENT = 0x7FF0000000000000
"""The bits of a float64 that are those of a power of two: the largest one below a positive number."""
_LOWEST_DECADE, _DECADES = -324, 634  # of float64, subnormal numbers included


def is_floating(array: Readable) -> bool:
    """Whether an array holds floating numbers, bfloat16 included (which NumPy counts as a void type)."""
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"


def measure_error(got: Readable, want: Readable, kept: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Return the fields of an `OutputRecord` that say how far `got` is from `want`.

    Args:
        got: what the backend gave; any shape, that of a scalar included; a floating dtype; in memory or on disk.
        want: the oracle; the same shape, a floating dtype, float64 as a rule.
        kept: the leading axes of both; what is false there is left out, as by `array[kept]`.

    Returns:
        `max_abs`, `max_rel`, `rel_l2`, `rel_l2_row`, `cosine_distance`, `snr_db`, `ulp`, `worst`, `argmax_agreement`,
        `histogram`, and the counts of NaN and Inf on both sides. Elements that are NaN or Inf on both sides alike
        count as equal; where the sides disagree the error is infinite. The index of `worst` is that among the kept.
    """
    pair = Pair(got, want, kept)
    survey = _Survey.of(pair)
    found: dict[str, Any] = {
        "nan": survey.nan,
        "expected_nan": survey.expected_nan,
        "inf": survey.inf,
        "expected_inf": survey.expected_inf,
    }
    if not pair.size:
        return found | {"max_abs": 0.0, "max_rel": 0.0, "rel_l2": 0.0, "rel_l2_row": 0.0}
    errors = errors_of(pair, survey.largest_want or 1.0)
    index = [int(each) for each in np.unravel_index(survey.worst_at, pair.shape)] if pair.shape else []
    found["max_abs"] = survey.max_abs
    found["max_rel"] = survey.max_rel
    found["rel_l2"], found["rel_l2_row"] = errors.whole, errors.row
    found["worst"] = WorstElement(index=index, got=survey.worst_got, want=survey.worst_want)
    if not (survey.nan or survey.expected_nan or survey.inf or survey.expected_inf):
        found["cosine_distance"] = _cosine_distance(pair, survey, errors)
        found["snr_db"] = _snr_db(errors)
        found["ulp"] = _ulp(pair)
        found["argmax_agreement"] = survey.argmax.agreement
    found["histogram"] = survey.histogram()
    return found


@dataclass
class _Survey:
    """What one pass over a pair tells, whatever the size."""

    nan: int = 0
    expected_nan: int = 0
    inf: int = 0
    expected_inf: int = 0
    max_abs: float = -1.0
    max_rel: float = 0.0
    worst_at: int = 0
    worst_got: float = 0.0
    worst_want: float = 0.0
    largest_got: float = 0.0
    largest_want: float = 0.0
    zeros: int = 0
    decades: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_DECADES, np.int64))
    argmax: "_Argmax" = field(default_factory=lambda: _Argmax())

    @staticmethod
    def of(pair: Pair) -> "_Survey":
        survey, begins = _Survey(), 0
        floor = float(_finfo(pair.dtypes[0]).smallest_normal) if pair.size else 0.0
        if pair.width < 2:
            survey.argmax.possible = False
        for block in pair.blocks():
            got, want = block.got.astype(np.float64), block.want.astype(np.float64, copy=False)
            survey._add(got, want, begins, floor)
            survey.argmax.add(got, want, block.ends)
            begins += want.size
        return survey

    def _add(self, got: Float64, want: Float64, begins: int, floor: float) -> None:
        finite_got, finite_want = np.isfinite(got), np.isfinite(want)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(got - want)
        finite = bool(finite_got.all() and finite_want.all())
        if not finite:
            self._count_nonfinite(got, want)
            error[_same_nonfinite(got, want)] = 0.0
            error[np.isnan(error)] = np.inf
        sizes = np.abs(want)
        self.largest_got = max(self.largest_got, float(np.abs(got).max(where=finite_got, initial=0.0)))
        self.largest_want = max(self.largest_want, float(sizes.max(where=finite_want, initial=0.0)))
        at = int(error.argmax())
        if error.flat[at] > self.max_abs:
            self.max_abs, self.worst_at = float(error.flat[at]), begins + at
            self.worst_got, self.worst_want = float(got.flat[at]), float(want.flat[at])
        self.max_rel = max(self.max_rel, _largest_relative(error, sizes, floor, finite))
        positive = error[(error > 0.0) & np.isfinite(error)]
        self.zeros += int((error == 0.0).sum())
        decades = np.floor(np.log10(positive)).astype(int) - _LOWEST_DECADE
        self.decades += np.bincount(decades, minlength=_DECADES)

    def _count_nonfinite(self, got: Float64, want: Float64) -> None:
        self.nan += int(np.isnan(got).sum())
        self.expected_nan += int(np.isnan(want).sum())
        self.inf += int(np.isinf(got).sum())
        self.expected_inf += int(np.isinf(want).sum())

    def histogram(self) -> HistogramRecord:
        """Count absolute errors by decade."""
        seen = np.flatnonzero(self.decades)
        if not seen.size:
            return HistogramRecord(edges_log10=[], counts=[], zeros=self.zeros)
        low, high = int(seen[0]), int(seen[-1])
        edges = list(range(low + _LOWEST_DECADE, high + _LOWEST_DECADE + 2))
        return HistogramRecord(edges_log10=edges, counts=self.decades[low : high + 1].tolist(), zeros=self.zeros)


@dataclass
class _Argmax:
    """Counts rows with the same argmax, as long as the oracle's rows are distributions or zeros.

    Of a row that comes in parts, `parts` holds (length, the oracle's sum, largest of `got`, its place, largest of
    `want`, its place) of each.
    """

    possible: bool = True
    rows: int = 0
    same: int = 0
    parts: list[tuple[int, float, float, int, float, int]] = field(default_factory=list)

    @property
    def agreement(self) -> float | None:
        """Share of rows with the same argmax; None where the oracle's last axis is no distribution."""
        return self.same / self.rows if self.possible and self.rows else None

    def add(self, got: Float64, want: Float64, ends: bool) -> None:
        """Count the rows of a block; `ends` as of `Block`."""
        if not self.possible:
            return
        if (want < 0).any():
            self.possible = False
            return
        sums, mine, true = want.sum(axis=-1), got.argmax(axis=-1), want.argmax(axis=-1)  # (rows, width) -> (rows,)
        if self.parts or not ends:
            i, j = int(mine[0]), int(true[0])
            self.parts.append((want.size, float(sums[0]), float(got[0, i]), i, float(want[0, j]), j))
            if not ends:
                return
            sums, mine, true = self._joined()
        distributions = np.abs(sums - 1.0) < _DISTRIBUTION_TOLERANCE
        self.possible = bool(np.all(distributions | (sums == 0.0)))
        self.rows += int(distributions.sum())
        self.same += int((mine == true)[distributions].sum())

    def _joined(self) -> tuple[Float64, NDArray[np.intp], NDArray[np.intp]]:
        """Return sum and places of a row that came in parts, each of shape (1,)."""
        sizes, totals, mine, mine_at, true, true_at = (np.array(column) for column in zip(*self.parts, strict=True))
        self.parts = []
        begins = np.cumsum(sizes) - sizes
        i, j = int(mine.argmax()), int(true.argmax())
        return totals.sum(keepdims=True), (begins + mine_at)[[i]], (begins + true_at)[[j]]


def _largest_relative(error: Float64, sizes: Float64, floor: float, finite: bool) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        relative = error / np.maximum(sizes, floor)
    if not finite:
        relative[error == 0.0] = 0.0
        relative[np.isinf(error)] = np.inf
    return float(relative.max())


def _same_nonfinite(a: Float64, b: Float64) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))
    return same


def _finfo(dtype: np.dtype[Any]) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # NumPy's fields, and bfloat16 as well


def _cosine_distance(pair: Pair, survey: _Survey, errors: Errors) -> float:
    if not survey.largest_got or not survey.largest_want:
        return 0.0 if survey.largest_got == survey.largest_want else 1.0
    product = square = 0.0  # of what is divided by its largest element: squares of tiny or huge numbers are none
    for block in pair.blocks():
        got = block.got.astype(np.float64).ravel() / survey.largest_got  # (rows, width) -> (elements,)
        want = block.want.astype(np.float64).ravel() / survey.largest_want
        product += float(np.einsum("n,n->", got, want))
        square += float(np.einsum("n,n->", got, got))
    return max(0.0, 1.0 - product / math.sqrt(square * errors.norm))


def _snr_db(errors: Errors) -> float | None:
    if not errors.moved or not errors.norm or not math.isfinite(errors.moved):
        return None
    return 10.0 * math.log10(errors.norm / errors.moved)


def _ulp(pair: Pair) -> UlpRecord:
    """Distance in units in the last place of `got`'s dtype at the oracle's value."""
    info = _finfo(pair.dtypes[0])
    largest = 0.0

    def distances() -> Iterator[Float64]:
        nonlocal largest
        for block in pair.blocks():
            want = block.want.astype(np.float64).ravel()  # (rows, width) -> (elements,)
            sizes = np.maximum(np.abs(want), float(info.smallest_normal))
            unit = (sizes.view(np.int64) & _EXPONENT).view(np.float64) * float(info.eps)
            with np.errstate(over="ignore"):
                distance = np.abs(block.got.astype(np.float64).ravel() - want) / unit
            distance = np.minimum(distance, np.finfo(np.float64).max)
            largest = max(largest, float(distance.max()))
            yield distance

    median, p99 = quantiles(distances, pair.size, (0.5, 0.99))
    return UlpRecord(median=median, p99=p99, max=largest)
