"""How far one output is from the float64 oracle: every figure of docs/method.md, "What each comparison records"."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.results import HistogramRecord, UlpRecord, WorstElement

Array = NDArray[np.generic]
Float64 = NDArray[np.float64]

_DISTRIBUTION_TOLERANCE = 1e-6


def is_floating(array: Array) -> bool:
    """Whether an array holds floating numbers, bfloat16 included (which NumPy counts as a void type)."""
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"


def measure_error(got: Array, want: Float64) -> dict[str, Any]:
    """Return the fields of an `OutputRecord` that say how far `got` is from `want`.

    Args:
        got: what the backend gave; any shape, that of a scalar included; a floating dtype.
        want: the oracle; the same shape, float64.

    Returns:
        `max_abs`, `max_rel`, `rel_l2`, `rel_l2_row`, `cosine_distance`, `snr_db`, `ulp`, `worst`, `argmax_agreement`,
        `histogram`, and the counts of NaN and Inf on both sides. Elements that are NaN or Inf on both sides alike
        count as equal; where the sides disagree the error is infinite.
    """
    shape = want.shape
    got, want = np.atleast_1d(got), np.atleast_1d(want)  # () -> (1,)
    wide = got.astype(np.float64)
    found: dict[str, Any] = {
        "nan": int(np.isnan(wide).sum()),
        "expected_nan": int(np.isnan(want).sum()),
        "inf": int(np.isinf(wide).sum()),
        "expected_inf": int(np.isinf(want).sum()),
    }
    if want.size == 0:
        return found | {"max_abs": 0.0, "max_rel": 0.0, "rel_l2": 0.0, "rel_l2_row": 0.0}
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(wide - want)
    error[_same_nonfinite(wide, want)] = 0.0
    error[np.isnan(error)] = np.inf
    at = np.unravel_index(int(np.argmax(error)), error.shape)
    index = [int(i) for i in at] if shape else []
    found["max_abs"] = float(error[at])
    found["max_rel"] = _largest_relative(error, want, got.dtype)
    found["rel_l2"] = relative_l2(wide, want)
    found["rel_l2_row"] = relative_l2_row(wide, want)
    found["worst"] = WorstElement(index=index, got=float(wide[at]), want=float(want[at]))
    finite = np.isfinite(wide) & np.isfinite(want)
    if finite.all():
        found["cosine_distance"] = _cosine_distance(wide, want)
        found["snr_db"] = _snr_db(error, want)
        found["ulp"] = _ulp(got, want)
        found["argmax_agreement"] = _argmax_agreement(wide, want)
    found["histogram"] = _histogram(error[np.isfinite(error)])
    return found


def _same_nonfinite(a: Float64, b: Float64) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))
    return same


def _largest_relative(error: Float64, want: Float64, dtype: np.dtype[np.generic]) -> float:
    floor = float(_finfo(dtype).smallest_normal)
    scale = np.maximum(np.abs(want), floor)
    with np.errstate(invalid="ignore", over="ignore"):
        relative = error / scale
    relative[error == 0.0] = 0.0
    relative[np.isinf(error)] = np.inf
    return float(relative.max())


def _finfo(dtype: np.dtype[np.generic]) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # NumPy's fields, and bfloat16 as well


def _cosine_distance(got: Float64, want: Float64) -> float:
    if not got.any() or not want.any():
        return 0.0 if not got.any() and not want.any() else 1.0
    a, b = got / np.abs(got).max(), want / np.abs(want).max()  # squares of tiny or huge numbers are none
    return max(0.0, 1.0 - float(np.vdot(a, b)) / float(np.linalg.norm(a) * np.linalg.norm(b)))


def _snr_db(error: Float64, want: Float64) -> float | None:
    noise = float(np.linalg.norm(error))
    signal = float(np.linalg.norm(want))
    if noise == 0.0 or signal == 0.0:
        return None
    return 20.0 * math.log10(signal / noise)


def _ulp(got: Array, want: Float64) -> UlpRecord:
    """Distance in units in the last place of `got`'s dtype at the oracle's value."""
    info = _finfo(got.dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(want), float(info.smallest_normal))))
    unit = np.exp2(exponent) * float(info.eps)
    with np.errstate(over="ignore"):
        distance = np.minimum(np.abs(got.astype(np.float64) - want) / unit, np.finfo(np.float64).max)
    median, p99 = np.quantile(distance, [0.5, 0.99])
    return UlpRecord(median=float(median), p99=float(p99), max=float(distance.max()))


def _argmax_agreement(got: Float64, want: Float64) -> float | None:
    """Share of rows with the same argmax; None where the oracle's last axis is no distribution."""
    if want.ndim == 0 or want.shape[-1] < 2 or (want < 0).any():
        return None
    sums = want.sum(axis=-1)
    rows = np.abs(sums - 1.0) < _DISTRIBUTION_TOLERANCE
    if not rows.any() or not np.all(rows | (sums == 0.0)):
        return None
    same = got.argmax(axis=-1) == want.argmax(axis=-1)
    return float(same[rows].mean())


def _histogram(error: Float64) -> HistogramRecord:
    """Count absolute errors by decade."""
    positive = error[error > 0.0]
    zeros = int(error.size - positive.size)
    if positive.size == 0:
        return HistogramRecord(edges_log10=[], counts=[], zeros=zeros)
    decades = np.floor(np.log10(positive)).astype(int)
    low, high = int(decades.min()), int(decades.max())
    counts = np.bincount(decades - low, minlength=high - low + 1)
    return HistogramRecord(edges_log10=list(range(low, high + 2)), counts=[int(n) for n in counts], zeros=zeros)
