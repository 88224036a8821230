"""Signs in the raw samples that something else than the model was measured.

Each sign needs to be both unlikely on a healthy machine and large enough to matter; the limits were set on simulated
healthy samples (skewed, correlated, with pauses of the scheduler), and a test holds their rate of false alarms.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from crosshead.results._dip import dip
from crosshead.results.records import Notice

Floats = NDArray[np.float64]

FEWEST_SAMPLES = 20
"""Of a process; below, nothing is said of it."""

VARIATION_LIMIT_CPU = 0.10
"""Coefficient of variation at which pyperf's `check` calls a benchmark unstable."""

VARIATION_LIMIT_GPU = 0.025
"""On a GPU, where nothing interrupts a kernel; docs/method.md."""

SLOWEST_SHARE = 0.01
"""Left out of the variation: one pause of the scheduler would weigh more than everything else."""

OUTLIER_Z = 3.5
"""Limit of the modified z score: Iglewicz and Hoaglin 1993, "How to detect and handle outliers", ASQC, p. 11."""

OUTLIER_DISTANCE = 0.05
"""An outlier is also this far from the median, relative to it: very even samples have harmless ones much nearer."""

OUTLIER_SHARE = 0.05
"""From here on outliers reach into the 95th percentile."""

TREND_BLOCKS = 8
TREND_Z = 3.0
TREND_SIZE = 0.02
"""Change over the whole measuring, relative to the median: the margin within which two cells count as the same."""

DIP_SAMPLES = 500
DIP_LIMIT = 0.72
"""sqrt(n) times the dip of n = 500 uniform samples stays below this in 99.9 % of draws (20,000 draws; less for fewer
samples)."""

MODE_DISTANCE = 0.05
MODE_SHARE = 0.10
"""Two groups are worth a word when they lie this far apart, relative to the lower, and each holds this share."""


def sample_notices(samples_s: Sequence[Sequence[float]], *, where: str, on_gpu: bool = False) -> list[Notice]:
    """Return a notice for each sign of disturbance in the samples of one cell.

    Args:
        samples_s: by process, seconds a call, in the order they were taken.
        where: names the cell in the notices.
        on_gpu: whether the samples are times of a GPU.

    Returns:
        At most one notice of each code: `noisy-machine` (coefficient of variation), `outliers`, `trend`, `bimodal`.
    """
    processes = [np.asarray(samples, dtype=np.float64) for samples in samples_s]
    processes = [samples for samples in processes if samples.size >= FEWEST_SAMPLES and np.median(samples) > 0.0]
    if not processes:
        return []
    limit = VARIATION_LIMIT_GPU if on_gpu else VARIATION_LIMIT_CPU
    checks: dict[str, Callable[[], str | None]] = {
        "noisy-machine": lambda: _variation(processes, limit),
        "outliers": lambda: _outliers(processes),
        "trend": lambda: _trend(processes),
        "bimodal": lambda: _bimodal(processes),
    }
    found = ((code, check()) for code, check in checks.items())
    return [Notice(code=code, message=message, where=where) for code, message in found if message is not None]


def _variation(processes: Sequence[Floats], limit: float) -> str | None:
    """Median over processes of the coefficient of variation, the slowest samples left out."""
    kept = [np.sort(samples)[: samples.size - math.ceil(SLOWEST_SHARE * samples.size)] for samples in processes]
    variation = float(np.median([samples.std(ddof=1) / samples.mean() for samples in kept]))
    if variation <= limit:
        return None
    return (
        f"single calls vary by {variation:.1%} (coefficient of variation; limit {limit:.1%}): "
        "close other programs and measure again, or give a longer --time-budget"
    )


def _outliers(processes: Sequence[Floats]) -> str | None:
    """Share of samples with a modified z score, 0.6745 (x - median) / MAD, beyond 3.5 to either side."""
    outside = 0
    for samples in processes:
        distance = np.abs(samples - np.median(samples))
        # More than half the samples equal: MAD is 0, and the mean absolute deviation stands in for it (Iglewicz and
        # Hoaglin, as above); 1.2533 and 1.4826 make either the standard deviation of a normal sample.
        scale = 1.4826 * float(np.median(distance)) or 1.2533 * float(distance.mean())
        far = np.maximum(OUTLIER_Z * scale, OUTLIER_DISTANCE * np.median(samples))
        outside += int(np.count_nonzero(distance > far))
    share = outside / sum(samples.size for samples in processes)
    if share <= OUTLIER_SHARE:
        return None
    return (
        f"{share:.0%} of the samples are outliers (modified z score over {OUTLIER_Z}): something interrupts the "
        "calls, and percentiles beyond the median are those of the disturbance; close other programs and measure again"
    )


def _trend(processes: Sequence[Floats]) -> str | None:
    """Rank test and slope over time, from the medians of consecutive blocks of each process.

    Kendall's S summed over processes (Hirsch and Slack 1984, the seasonal Kendall test, with processes as seasons),
    and the slope as the median over all pairs of blocks of a process (Sen 1968; Theil 1950).
    """
    score, variance = 0.0, 0.0
    slopes: list[float] = []
    for samples in processes:
        count = min(TREND_BLOCKS, samples.size // 4)
        blocks = np.array([np.median(block) for block in np.array_split(samples, count)]) / np.median(samples)
        first, second = np.triu_indices(count, k=1)
        rises = blocks[second] - blocks[first]
        score += float(np.sign(rises).sum())
        variance += count * (count - 1) * (2 * count + 5) / 18.0
        slopes += (rises / ((second - first) / (count - 1))).tolist()  # change over the whole measuring
    z = max(0.0, abs(score) - 1.0) / math.sqrt(variance)
    change = float(np.median(slopes))
    if z <= TREND_Z or abs(change) <= TREND_SIZE:
        return None
    word = "slower" if change > 0.0 else "faster"
    return (
        f"calls got {abs(change):.1%} {word} while measuring: the machine heats up, throttles or was not warm yet; "
        "measure again, for longer"
    )


def _bimodal(processes: Sequence[Floats]) -> str | None:
    """Hartigans' dip test on each process, on samples evenly spaced in time so that neighbours matter less."""
    split: list[tuple[float, float, float]] = []
    for samples in processes:
        count = min(samples.size, DIP_SAMPLES)
        thinned = samples[np.linspace(0, samples.size - 1, count).round().astype(np.intp)]
        if math.sqrt(count) * dip(thinned) <= DIP_LIMIT:
            continue
        low, high, share = _two_groups(thinned)
        if high / low - 1.0 > MODE_DISTANCE and MODE_SHARE <= share <= 1.0 - MODE_SHARE:
            split.append((low, high, share))
    if not split:
        return None
    low, high, share = max(split, key=lambda groups: groups[1] / groups[0])
    return (
        f"the samples of {len(split)} of {len(processes)} processes fall into two groups, {high / low - 1.0:.0%} apart "
        f"with {share:.0%} in the slower one: a change of clock frequency, of core, or another program's turns; "
        "the median may lie between the two: fix the clock frequency or close other programs, and measure again"
    )


def _two_groups(samples: Floats) -> tuple[float, float, float]:
    """Cut where the two parts are most even in themselves (Otsu 1979); return both medians and the upper's share."""
    x = np.sort(samples)
    n = x.size
    below = np.arange(1, n)  # sizes of the lower part
    sums = x.cumsum()
    between = (sums[:-1] / below - (sums[-1] - sums[:-1]) / (n - below)) ** 2 * below * (n - below)
    cut = int(between.argmax()) + 1
    return float(np.median(x[:cut])), float(np.median(x[cut:])), (n - cut) / n
