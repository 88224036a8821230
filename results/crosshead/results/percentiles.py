"""Percentiles of latency samples, and how many samples it takes to speak of one.

With n independent samples, all of them lie below the true p-quantile with probability p^n. A percentile is given only
where that has become unlikely: the smallest n with 1 - p^n >= 0.99. This is the distribution-free bound by order
statistics behind the early stopping of MLPerf LoadGen (github.com/mlcommons/inference, loadgen/early_stopping.cc; Reddi
et al. 2020, "MLPerf Inference Benchmark", section on statistical confidence), for the case in which no sample is set
aside. Samples that follow each other are not quite independent, so the count is the least that is needed.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.99
"""How sure one must be that the samples reach up to the percentile."""

PERCENTILES = {"p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""The percentiles of a latency record, by name."""


def samples_needed(p: float, confidence: float = CONFIDENCE) -> int:
    """Return the smallest n with 1 - p^n >= confidence.

    Args:
        p: the quantile, between 0 and 1 (0.99 for the 99th percentile).
        confidence: between 0 and 1.

    Raises:
        ValueError: `p` or `confidence` is not strictly between 0 and 1.
    """
    for name, value in (("p", p), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    return max(1, math.ceil(math.log1p(-confidence) / math.log(p)))


def percentile_or_missing(samples: Sequence[float] | NDArray[np.float64], p: float) -> tuple[float | None, int]:
    """Return the p-quantile and 0, or None and how many more samples it would take.

    Args:
        samples: in any order and unit.
        p: the quantile, between 0 and 1.

    Returns:
        The quantile in the samples' unit, interpolated between neighbours (NumPy's default), and the missing count.

    Raises:
        ValueError: `p` is not strictly between 0 and 1.
    """
    missing = samples_needed(p) - len(samples)
    if missing > 0:
        return None, missing
    return float(np.quantile(np.asarray(samples, dtype=np.float64), p)), 0
