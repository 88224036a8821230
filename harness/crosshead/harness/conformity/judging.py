"""When a backend gives what the standard expects: a rule fit for the dtype of each output, and what is off."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays
from crosshead.export.error import relative_l2
from crosshead.results import ConformRule, WorstElement

RTOL: Final = 1e-3
"""The standard's own, for every case."""

ATOL: Final = 1e-7
"""The standard's own, for every case."""

ROUNDINGS: Final = 4.0
"""So many unit roundoffs of the output's dtype are allowed where that is more: 2^-9 in fp16, 2^-6 in bf16.

The standard's own runner allows bf16 the same 2^-6. Expected values are themselves computed in the case's dtype.
"""

Wide = NDArray[np.float64]


@dataclass(frozen=True)
class Tolerance:
    """A person's own rtol and atol; None for the derived one."""

    rtol: float | None = None
    atol: float | None = None

    def of(self, want: NDArray[Any]) -> tuple[float, float]:
        """Return rtol and atol for a floating output, whose typical magnitude is the median of its finite elements."""
        roundoff = ROUNDINGS * unit_roundoff(want.dtype)
        sizes = np.abs(want.astype(np.float64))
        sizes = sizes[np.isfinite(sizes) & (sizes > 0.0)]
        typical = float(np.median(sizes)) if sizes.size else 0.0
        return (
            max(RTOL, roundoff) if self.rtol is None else self.rtol,
            max(ATOL, roundoff * typical) if self.atol is None else self.atol,
        )

    def rule(self) -> ConformRule:
        """Return it in words, for the record."""
        rtol = f"max({RTOL:g}, 4 u)" if self.rtol is None else f"{self.rtol:g}"
        atol = f"max({ATOL:g}, 4 u m)" if self.atol is None else f"{self.atol:g}"
        derived = (
            "; u is the unit roundoff of the output's dtype, m the median magnitude of what is expected"
            if self.rtol is None or self.atol is None
            else ""
        )
        sentence = f"an element is right when |got - expected| <= atol + rtol |expected|, rtol {rtol}, atol {atol}"
        return ConformRule(sentence=f"{sentence}{derived}", rtol=self.rtol, atol=self.atol)


@dataclass(frozen=True)
class Judged:
    """One output: figures, and what is off in words (empty where nothing is)."""

    output: str
    reason: str = ""
    times_tolerance: float = 0.0
    max_abs: float | None = None
    rel_l2: float | None = None
    off: int = 0
    elements: int = 0
    worst: WorstElement | None = None


def unit_roundoff(dtype: "np.dtype[Any]") -> float:
    """Return half the distance from 1 to the next number of a floating dtype, bfloat16 included."""
    if dtype.name == "bfloat16":
        return 2.0**-8
    return float(np.finfo(dtype).eps) / 2.0


def judge_outputs(got: Arrays, want: Arrays, tolerance: Tolerance) -> list[Judged]:
    """Hold all outputs against what the standard expects; the dtype and the shape must be its own."""
    return [_judge(name, got, wanted, tolerance) for name, wanted in want.items()]


def same(got: Arrays, other: Arrays, want: Arrays, tolerance: Tolerance) -> bool:
    """Whether two backends give the same, by the rule for the expected outputs."""
    for name, wanted in want.items():
        a, b = got.get(name), other.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            return False
        if _is_floating(a) and _is_floating(wanted):
            if bool((_times(a, b, *tolerance.of(wanted)) > 1.0).any()):
                return False
        elif not np.array_equal(a, b):
            return False
    return True


def _judge(name: str, got: Mapping[str, NDArray[Any]], want: NDArray[Any], tolerance: Tolerance) -> Judged:
    array = got.get(name)
    if array is None:
        return Judged(name, f"output {name!r} is missing; it gave: {', '.join(got) or 'none'}", np.inf)
    if array.shape != want.shape:
        return Judged(name, f"output {name!r}: expected shape {want.shape}, got {array.shape}", np.inf)
    if array.dtype != want.dtype:
        return Judged(name, f"output {name!r}: expected {want.dtype.name}, got {array.dtype.name}", np.inf)
    times = _times(array, want, *tolerance.of(want)) if _is_floating(want) else np.where(array == want, 0.0, np.inf)
    off = int(np.count_nonzero(times > 1.0))
    if not off:
        return Judged(name, "", _largest(times), _max_abs(array, want), relative_l2(array, want), 0, times.size)
    place = np.unravel_index(int(np.argmax(times)), times.shape)
    worst = WorstElement(index=[int(i) for i in place], got=float(array[place]), want=float(want[place]))
    reason = f"output {name!r}: {off} of {times.size} elements are off"
    return Judged(
        name, reason, _largest(times), _max_abs(array, want), relative_l2(array, want), off, times.size, worst
    )


def _is_floating(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _times(got: NDArray[Any], want: NDArray[Any], rtol: float, atol: float) -> Wide:
    """Return the error of each element over what is allowed; the same NaN or infinity on both sides is no error."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    agree = (np.isnan(a) & np.isnan(b)) | (a == b)
    error = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    allowed = atol + rtol * np.abs(np.where(finite, b, 0.0))
    times = np.divide(error, allowed, out=np.full(error.shape, np.inf), where=allowed > 0.0)
    result: Wide = np.where(agree, 0.0, np.where(finite, times, np.inf))
    return result


def _largest(times: Wide) -> float:
    return float(times.max()) if times.size else 0.0


def _max_abs(got: NDArray[Any], want: NDArray[Any]) -> float:
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[finite] - b[finite]).max()) if finite.any() else 0.0
