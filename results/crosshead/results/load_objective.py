"""Does a latency objective hold? A percentile against a limit, decided by how many requests took longer.

The objective "p99 at most T" says that a request takes longer than T with probability 1 - p at most, p = 0.99. Of n
requests, k took longer. If that probability were above 1 - p, k or fewer would come with probability
P[Binomial(n, 1 - p) <= k] = I_p(n - k, k + 1) at most; where this is at most 1 %, the objective is *met* at 99 %
confidence. This is the odds test of MLPerf LoadGen's early stopping (github.com/mlcommons/inference,
loadgen/early_stopping.cc, confidence 0.99, tolerance 0; Reddi et al. 2020, "MLPerf Inference Benchmark"). With k = 0
it is the rule by which percentiles are given (`crosshead.results.percentiles`): 459 requests for p99. The same test the
other way round, P[Binomial(n, 1 - p) >= k] at most 1 %, says that it is *missed*; between them it is undecided.

Whoever looks several times and stops at the first answer that suits errs more often than 1 %. So looks are few and set
before the start, and share the 1 % among them (Bonferroni).

Requests that wait in one queue depend on each other, the more so the busier the server: near saturation the confidence
is less than it says.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from crosshead.results.load_records import ObjectiveRecord
from crosshead.results.percentiles import CONFIDENCE, samples_needed

MOST_LOOKS = 3
"""A test may be ended at a quarter, at half, and at its end."""


class Bounds(NamedTuple):
    """Of the first `requests`: up to `most_over` late ones it is met, from `least_over` on missed."""

    requests: int
    most_over: int
    least_over: int


def look_counts(requests: int, quantiles: Sequence[float]) -> list[int]:
    """Return after how many requests to look; the last look is at the end.

    Args:
        requests: how many there will be.
        quantiles: of the objectives, each between 0 and 1.
    """
    risk = (1.0 - CONFIDENCE) / MOST_LOOKS
    least = max(samples_needed(p, 1.0 - risk) for p in quantiles)
    shares = [requests // 2**halvings for halvings in reversed(range(MOST_LOOKS))]
    return [count for count in shares if count >= least] or [requests]


def looks(counts: Sequence[int], p: float) -> list[Bounds]:
    """Return the bounds of each look, which share the risk.

    Args:
        counts: of `look_counts`.
        p: the quantile.
    """
    return [_bounds(count, p, (1.0 - CONFIDENCE) / len(counts)) for count in counts]


def judge(name: str, p: float, limit_s: float, latencies_s: Sequence[float], at: Sequence[Bounds]) -> ObjectiveRecord:
    """Judge by the last look that the requests reach, or by all of them where they reach none.

    Args:
        name: of the percentile.
        p: the quantile.
        limit_s: the latency that it is to be at most.
        latencies_s: from the intended send time on, in the order of sending.
        at: of `looks`.
    """
    reached = [bounds for bounds in at if bounds.requests <= len(latencies_s)]
    bounds = reached[-1] if reached else _bounds(len(latencies_s), p, (1.0 - CONFIDENCE) / max(1, len(at)))
    over = sum(latency_s > limit_s for latency_s in latencies_s[: bounds.requests])
    decided = "met" if over <= bounds.most_over else "missed" if over >= bounds.least_over else "undecided"
    missing = 0 if decided == "met" else requests_to_meet(over, p) - bounds.requests
    return ObjectiveRecord(
        name=name,
        limit_s=limit_s,
        verdict=decided,  # type: ignore[arg-type]  # one of the three
        requests=bounds.requests,
        over=over,
        missing_samples=max(0, missing) if decided == "undecided" else 0,
    )


def requests_to_meet(over: int, p: float) -> int:
    """Return how many requests it takes in all to call an objective met when so many of them are late."""
    high = samples_needed(p)
    while _at_most(over, high, 1.0 - p) > 1.0 - CONFIDENCE:
        high *= 2
    return bisect_left(range(high), True, key=lambda n: n > over and _at_most(over, n, 1.0 - p) <= 1.0 - CONFIDENCE)


def _bounds(count: int, p: float, risk: float) -> Bounds:
    late = 1.0 - p
    most_over = bisect_left(range(count + 1), True, key=lambda k: _at_most(k, count, late) > risk) - 1
    least_over = bisect_left(range(count + 2), True, key=lambda k: k > 0 and 1.0 - _at_most(k - 1, count, late) <= risk)
    return Bounds(count, most_over, least_over)


def _at_most(over: int, count: int, share: float) -> float:
    """Return P[Binomial(count, share) <= over]."""
    from scipy.special import bdtr  # takes a third of a second to import, and only objectives need it

    return float(bdtr(over, count, share)) if over < count else 1.0
