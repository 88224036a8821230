"""When requests are sent in an open loop: Poisson arrivals, drawn ahead and by seed, so that anyone can repeat them."""

import numpy as np
from numpy.typing import NDArray

from crosshead.harness.errors import RequestError

MOST_REQUESTS = 1_000_000
"""Of one load: 32 MB of times, which are kept."""


def poisson_arrivals(rate_per_s: float, duration_s: float, seed: int) -> NDArray[np.float64]:
    """Return send times in seconds from the start, rising, all within the duration.

    Their count is Poisson distributed and, given the count, they lie independent and even over the duration: that is a
    Poisson process (Kingman 1993, "Poisson Processes", section 2.4).

    Args:
        rate_per_s: requests a second on average.
        duration_s: of sending.
        seed: of the draw.

    Raises:
        RequestError: these are more requests than can be kept.
    """
    if rate_per_s * duration_s > MOST_REQUESTS:
        raise RequestError(
            f"{rate_per_s:g} requests/s for {duration_s:.3g} s are more than {MOST_REQUESTS:,} requests; "
            "give a lower --rate or a shorter --time-budget"
        )
    random = np.random.default_rng(seed)
    times_s = random.uniform(0.0, duration_s, random.poisson(rate_per_s * duration_s))
    times_s.sort()
    return times_s


def draw_seed(seed: int, number: int) -> int:
    """Return the seed for the load of this number: the same for every cell of a test, and recorded."""
    return int(np.random.SeedSequence([seed % 2**63, number]).generate_state(1)[0])
