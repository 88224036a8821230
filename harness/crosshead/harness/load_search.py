"""Looking for the largest rate that is kept: raised until it is not, then halved in between."""

from collections.abc import Callable

import numpy as np

RISES = (0.5, 0.7, 0.85, 0.95, 1.05)
"""Rates to begin with, in shares of what the server can do at its best."""

RISE = 1.2
"""Each rate beyond these over the one before it."""

NEAR = 0.03
"""Two rates that lie so near, relative to the lower, are not told apart: a draw of some thousand arrivals is off by as
much."""

MOST_TRIES = 16


def find_largest(attempt: Callable[[float], bool | None], capacity_per_s: float) -> None:
    """Try rates until the largest that is kept is known to `NEAR`, or none can be tried any more.

    Args:
        attempt: tries a rate in requests a second; True where it was kept, False where not, None where it could not be
            tried.
        capacity_per_s: about what the server can do.
    """
    kept, lost = 0.0, np.inf
    rates = [share * capacity_per_s for share in RISES]
    for _ in range(MOST_TRIES):
        rate = _next(kept, lost, rates)
        answer = attempt(rate)
        if answer is None:
            return
        if answer:
            kept = rate
        else:
            lost = rate
        if kept and lost <= kept * (1.0 + NEAR):
            return


def _next(kept: float, lost: float, rates: list[float]) -> float:
    if not np.isinf(lost):
        return (kept + lost) / 2.0
    return next((rate for rate in rates if rate > kept), kept * RISE)
