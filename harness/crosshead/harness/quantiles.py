"""Quantiles of more numbers than fit into memory, exact: a radix selection over their bits.

The bits of a number that is not negative, read as a whole number, are in the order of the numbers. So one pass counts
the leading 16 bits of all of them, which tells those of the number with the wanted rank; the next pass counts the next
16 bits among the numbers that begin so; after four passes all 64 are known. A pass needs 65,536 counters a rank.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

KEPT = 1 << 21
"""So many numbers are kept and sorted (16 MiB) where there are no more."""

_DIGIT_BITS = 16


def quantiles(passes: Callable[[], Iterable[Float64]], count: int, shares: Sequence[float]) -> list[float]:
    """Return the quantiles of numbers that come in blocks, by linear interpolation between two ranks (NumPy's rule).

    Args:
        passes: gives all of them from the beginning, at each call the same ones: finite, at least 0, 1-D.
        count: how many there are; 1 at least.
        shares: each from 0 to 1.
    """
    if count <= KEPT:
        return [float(each) for each in np.quantile(np.concatenate(list(passes())), shares)]
    places = [share * (count - 1) for share in shares]
    ranks = sorted({rank for place in places for rank in (math.floor(place), math.ceil(place))})
    found = dict(zip(ranks, _ranked(passes, ranks), strict=True))
    return [_between(found[math.floor(place)], found[math.ceil(place)], place % 1.0) for place in places]


def _between(low: float, high: float, share: float) -> float:
    return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def _ranked(passes: Callable[[], Iterable[Float64]], ranks: Sequence[int]) -> list[float]:
    """Return the numbers with these ranks, 0 being the smallest."""
    begun = [(0, rank) for rank in ranks]  # bits known so far, and the rank among the numbers that begin so
    for shift in (48, 32, 16, 0):
        counts = {known: np.zeros(1 << _DIGIT_BITS, np.int64) for known, _ in begun}
        for block in passes():
            bits = (block + 0.0).view(np.int64) >> shift  # -0 is 0
            for known, counted in counts.items():
                here = bits - (known << _DIGIT_BITS)
                counted += np.bincount(here[(here >= 0) & (here < 1 << _DIGIT_BITS)], minlength=1 << _DIGIT_BITS)
        begun = [_next_digit(known, rank, counts[known].cumsum()) for known, rank in begun]
    return [float(np.int64(known).view(np.float64)) for known, _ in begun]


def _next_digit(known: int, rank: int, reached: NDArray[np.int64]) -> tuple[int, int]:
    digit = int(np.searchsorted(reached, rank, side="right"))
    below = int(reached[digit - 1]) if digit else 0
    return (known << _DIGIT_BITS) + digit, rank - below
