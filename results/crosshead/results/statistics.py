"""Medians, their intervals, and the ratio of two latencies.

The unit of repetition is the *process*: two processes of the same model differ steadily, by where the kernel put their
memory, and more calls inside one of them do not average that away (Kalibera and Jones 2013, "Rigorous benchmarking in
reasonable time"; Mytkowicz et al. 2009). So every interval is drawn over the per-process medians. It is Student's, on
their logarithms: effects on time multiply, and below ten processes a percentile bootstrap is too sure of itself.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crosshead.results.records import RatioResult

CONFIDENCE = 0.95
"""Of every interval here, before the correction for many pairs."""

MARGIN = 1.02
"""Ratios from 1/1.02 to 1.02 count as the same speed."""

LEAST_PROCESSES = 5
"""Below this many processes a side no winner is named."""


def median(samples: Sequence[float]) -> float:
    """Return the median.

    Raises:
        ValueError: there are no samples.
    """
    if len(samples) == 0:
        raise ValueError("the median of no samples is not defined")
    return float(np.median(np.asarray(samples, dtype=np.float64)))


def median_interval(process_medians: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median, drawn over processes; None below two processes.

    Student's t on the logarithms. It is centred on the geometric mean of the processes; where they fall into two
    groups their median can lie outside it, and then the interval is stretched to hold that as well.

    Args:
        process_medians: one entry a process, above 0, in any unit.

    Raises:
        ValueError: an entry is not above 0 or not finite.
    """
    logs = _logs(process_medians)
    if logs.size < 2:
        return None
    reach = _t_quantile(logs.size - 1, CONFIDENCE) * float(logs.std(ddof=1)) / math.sqrt(logs.size)
    middle, centre = median(process_medians), float(logs.mean())
    return min(_exp(centre - reach), middle), max(_exp(centre + reach), middle)


def compare_latency(
    a_process_medians: Sequence[float], b_process_medians: Sequence[float], pairs: int = 1
) -> tuple[float, float | None, float | None, RatioResult]:
    """Compare two latencies by Welch's t test on the logarithms of the per-process medians.

    The ratio is that of the geometric means over processes, which is what the interval is centred on. The degrees of
    freedom are Welch and Satterthwaite's (Welch 1947, "The generalization of Student's problem when several different
    population variances are involved"); with many pairs the interval is widened by Bonferroni's correction, so that
    all of them hold together at 95 %.

    Args:
        a_process_medians: one entry a process, above 0.
        b_process_medians: the same for the other side, in the same unit.
        pairs: how many comparisons are made together.

    Returns:
        Ratio a / b (below 1: a is faster), the ends of its interval (None where a side has one process only), and the
        verdict: *faster* or *slower* where the interval excludes 1 and the ratio is outside ±2 %; *same* where the
        interval lies inside ±2 %; otherwise, and always below five processes a side, *undecided*.

    Raises:
        ValueError: a side is empty, an entry is not above 0 or not finite, or `pairs` is below 1.
    """
    if pairs < 1:
        raise ValueError(f"pairs must be at least 1, got {pairs}")
    a, b = _logs(a_process_medians), _logs(b_process_medians)
    if a.size == 0 or b.size == 0:
        raise ValueError(f"a ratio needs a process on each side, got {a.size} and {b.size}")
    log_ratio = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return _exp(log_ratio), None, None, "undecided"
    a_square, b_square = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size  # squared standard errors
    reach = 0.0
    if a_square + b_square > 0.0:
        # Satterthwaite's formula with shares of the variance, since squares of tiny variances underflow.
        a_share = a_square / (a_square + b_square)
        freedom = 1.0 / (a_share**2 / (a.size - 1) + (1.0 - a_share) ** 2 / (b.size - 1))
        reach = _t_quantile(freedom, 1.0 - (1.0 - CONFIDENCE) / pairs) * math.sqrt(a_square + b_square)
    low, high = log_ratio - reach, log_ratio + reach
    verdict = _verdict(log_ratio, low, high) if min(a.size, b.size) >= LEAST_PROCESSES else "undecided"
    return _exp(log_ratio), _exp(low), _exp(high), verdict


def _verdict(log_ratio: float, low: float, high: float) -> RatioResult:
    margin = math.log(MARGIN)
    if high < 0.0 and log_ratio < -margin:
        return "faster"
    if low > 0.0 and log_ratio > margin:
        return "slower"
    return "same" if -margin <= low and high <= margin else "undecided"


def _logs(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array) & (array > 0.0)):
        raise ValueError(f"latencies must be finite and above 0, got {list(values)}")
    logs: NDArray[np.float64] = np.log(array)
    return logs


def _exp(value: float) -> float:
    """Return e to the `value`, infinity where that is too large: two processes and many pairs reach that far."""
    return math.exp(value) if value < 709.0 else math.inf


def _t_quantile(freedom: float, confidence: float) -> float:
    """Return how many standard errors a two-sided interval of Student's t reaches."""
    from scipy.special import stdtrit  # takes a third of a second to import, and only timed runs need it

    return float(stdtrit(freedom, 0.5 + confidence / 2.0))
