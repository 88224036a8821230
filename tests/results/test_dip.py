import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from crosshead.results._dip import dip
from crosshead.results.disturbances import DIP_LIMIT, DIP_SAMPLES


def dip_by_linear_programs(samples: NDArray[np.float64]) -> float:
    """The definition: over each place of the mode, the distribution function that is convex before and concave after it
    and nearest to the sample's own. Unknown: its values before (a) and from the mode on (b), and the distance t."""
    x = np.sort(samples)
    n = x.size
    best = 1.0
    for mode in range(n):
        a, b, t = mode + 1, n - mode, n + 1
        rows: list[NDArray[np.float64]] = []
        bounds: list[float] = []

        def at_most(bound: float, **terms: float) -> None:
            row = np.zeros(t + 1)  # noqa: B023  # called in this very round
            for place, factor in terms.items():
                row[int(place[1:])] += factor
            rows.append(row)  # noqa: B023
            bounds.append(bound)  # noqa: B023

        for i in range(mode + 1):  # below the mode, and its limit from the left
            at_most(-(i if i == mode else i + 1) / n, **{f"_{i}": -1.0, f"_{t}": -1.0})
            at_most(i / n, **{f"_{i}": 1.0, f"_{t}": -1.0})
        for i in range(mode, n):
            at_most(-(i + 1) / n, **{f"_{a + i - mode}": -1.0, f"_{t}": -1.0})
            at_most((i + 1 if i == mode else i) / n, **{f"_{a + i - mode}": 1.0, f"_{t}": -1.0})
        at_most(0.0, **{f"_{mode}": 1.0, f"_{a}": -1.0})
        for offset, sign, places in ((0, 1.0, range(1, mode)), (1, -1.0, range(mode + 1, n - 1))):
            for i in places:
                left, right = sign / (x[i] - x[i - 1]), sign / (x[i + 1] - x[i])
                k = i + offset
                at_most(0.0, **{f"_{k}": left + right, f"_{k - 1}": -left, f"_{k + 1}": -right})
        if mode > 0:
            at_most(0.0, _0=1.0, _1=-1.0)
        if b > 1:
            at_most(0.0, **{f"_{t - 2}": 1.0, f"_{t - 1}": -1.0})
        cost = np.zeros(t + 1)
        cost[t] = 1.0
        solved = linprog(cost, A_ub=np.array(rows), b_ub=bounds, bounds=[(0.0, 1.0)] * (t + 1))
        if solved.status == 0:
            best = min(best, float(solved.x[t]))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_distance_to_the_nearest_unimodal_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 12))
    samples = [
        rng.uniform(size=n),
        rng.exponential(size=n),
        np.concatenate([rng.normal(size=n // 2), rng.normal(6.0, 1.0, size=n - n // 2)]),
    ][seed % 3]
    assert dip(samples) == pytest.approx(dip_by_linear_programs(samples), abs=1e-8)


def test_known_values() -> None:
    assert dip(np.array([1.0])) == 0.5
    assert dip(np.arange(10.0)) == pytest.approx(0.05)  # evenly spaced: 1 / 2n
    assert dip(np.repeat([0.0, 1.0], 500)) == pytest.approx(0.25)  # two points of equal weight: the largest there is


def test_order_scale_and_place_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(size=200)
    assert dip(rng.permutation(samples)) == dip(samples)
    assert dip(3.0 * samples + 7.0) == pytest.approx(dip(samples))


def test_the_limit_is_passed_by_one_uniform_sample_in_a_thousand() -> None:
    rng = np.random.default_rng(1)
    draws = 1500
    passed = sum(math.sqrt(DIP_SAMPLES) * dip(rng.uniform(size=DIP_SAMPLES)) > DIP_LIMIT for _ in range(draws))
    assert passed <= 6
