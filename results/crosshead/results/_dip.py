"""Hartigans' dip statistic: how far a sample is from the nearest distribution with one mode.

Hartigan and Hartigan 1985, "The dip test of unimodality", Annals of Statistics 13. The dip is the least, over all
unimodal distribution functions, of the largest distance to the sample's own. Among unimodal distributions the uniform
one gives the largest dips, so a critical value taken from it holds for all of them, skewed and heavy-tailed ones too.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


def dip(samples: Floats) -> float:
    """Return the dip of a sample, from 1 / 2n to 1 / 4.

    Start with the whole range as the modal interval. Within it, draw the greatest convex minorant and the least
    concave majorant of the distribution function; where they are farthest apart the modal interval must lie. Shrink to
    it, keep the largest misfit seen outside, and stop when nothing inside is farther apart than that misfit.

    Args:
        samples: (n,), n >= 1, in any order.
    """
    x, counts = np.unique(samples, return_counts=True)  # (distinct,)
    upper = counts.cumsum().astype(np.float64)  # samples at or below each value
    lower = upper - counts  # samples below it
    worst = float(counts.max())
    first, last = 0, x.size - 1
    while first < last:
        inside = slice(first, last + 1)
        convex = first + _hull(x[inside], lower[inside])
        concave = first + _hull(x[inside], -upper[inside])
        minorant = np.interp(x[inside], x[convex], lower[convex])  # (last - first + 1,)
        majorant = np.interp(x[inside], x[concave], upper[concave])  # (last - first + 1,)
        gap = majorant - minorant
        touching = np.union1d(convex, concave)
        farthest = int(touching[gap[touching - first].argmax()])
        if gap[farthest - first] <= worst:
            break
        new_first = int(convex[np.searchsorted(convex, farthest, side="right") - 1])
        new_last = int(concave[np.searchsorted(concave, farthest, side="left")])
        left = (upper[inside] - minorant)[: new_first - first + 1]
        right = (majorant - lower[inside])[new_last - first :]
        worst = max(worst, float(left.max()), float(right.max()))
        if (new_first, new_last) == (first, last):
            break
        first, last = new_first, new_last
    return worst / (2.0 * samples.size)


def _hull(x: Floats, y: Floats) -> Indices:
    """Return the indices at which the greatest convex minorant touches the points; x must rise."""
    touching: list[int] = []
    for i in range(x.size):
        while len(touching) > 1:
            a, b = touching[-2], touching[-1]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            touching.pop()
        touching.append(i)
    return np.asarray(touching, dtype=np.intp)
