import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from crosshead.results import compare_latency, median, median_interval

SPREAD = 0.015  # between processes, as measured with calm memory
PROCESSES = 5

medians = st.lists(st.floats(1e-7, 10.0), min_size=2, max_size=8)


def draw(rng: np.random.Generator, count: int, spread: float = SPREAD, center: float = 1e-3) -> list[float]:
    return [center * math.exp(spread * step) for step in rng.normal(size=count)]


# --- medians and their intervals


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_one_process_has_no_interval() -> None:
    assert median_interval([1e-3]) is None


def test_the_interval_is_students_on_logarithms() -> None:
    values = [1.00e-3, 1.02e-3, 0.99e-3, 1.05e-3, 1.01e-3]
    logs = np.log(values)
    low, high = stats.t.interval(0.95, 4, loc=logs.mean(), scale=stats.sem(logs))
    assert median_interval(values) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)


@given(medians)
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = median_interval(values)
    assert found is not None
    assert found[0] <= median(values) <= found[1]


def test_the_interval_holds_the_median_of_two_groups_too() -> None:
    values = [1.0] * 6 + [2.0] * 4
    found = median_interval(values)
    assert found is not None
    assert found[0] == 1.0 < found[1]


def test_equal_processes_give_a_point() -> None:
    assert median_interval([2e-3] * 5) == pytest.approx((2e-3, 2e-3), rel=1e-12)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [median_interval(draw(rng, PROCESSES)) for _ in range(3000)]
    assert np.mean([low <= 1e-3 <= high for low, high in filter(None, found)]) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("bad", [0.0, -1e-3, math.nan, math.inf])
def test_a_latency_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        median_interval([1e-3, bad])
    with pytest.raises(ValueError, match="finite and above 0"):
        compare_latency([1e-3], [bad])


# --- comparing two latencies


@given(medians, medians, st.integers(1, 50))
def test_the_interval_is_that_of_welchs_test(a: list[float], b: list[float], pairs: int) -> None:
    assume(np.ptp(np.log(a)) > 1e-6 and np.ptp(np.log(b)) > 1e-6)
    ratio, low, high, _ = compare_latency(a, b, pairs)
    welch = stats.ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(1.0 - 0.05 / pairs)
    assert low is not None
    assert high is not None
    assert math.log(ratio) == pytest.approx(np.log(a).mean() - np.log(b).mean(), abs=1e-12)
    if high < 1e300 and low > 1e-300:
        assert math.log(low) == pytest.approx(welch.low, rel=1e-9, abs=1e-9)
        assert math.log(high) == pytest.approx(welch.high, rel=1e-9, abs=1e-9)


@given(medians, medians)
def test_swapping_the_sides_turns_the_answer_round(a: list[float], b: list[float]) -> None:
    ratio, low, _, verdict = compare_latency(a, b)
    back, _, back_high, back_verdict = compare_latency(b, a)
    assert ratio * back == pytest.approx(1.0)
    assert low is not None
    assert back_high is not None
    assert low == pytest.approx(1.0 / back_high, rel=1e-9) if back_high < math.inf else low < 1e-300
    assert {verdict, back_verdict} in ({"faster", "slower"}, {"same"}, {"undecided"})


@given(medians, medians, st.sampled_from([1e-3, 1e3]))
def test_the_unit_does_not_matter(a: list[float], b: list[float], scale: float) -> None:
    ratio, low, high, _ = compare_latency(a, b)
    scaled = compare_latency([scale * value for value in a], [scale * value for value in b])
    assert scaled[:3] == pytest.approx((ratio, low, high), rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [(0.90, 0.004, "faster"), (1.10, 0.004, "slower"), (1.0, 0.004, "same"), (1.0, 0.10, "undecided")],
)
def test_verdicts(ratio: float, spread: float, verdict: str) -> None:
    steps = spread * np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    b = np.exp(steps).tolist()
    found = compare_latency([ratio * value for value in b], b)
    assert found[0] == pytest.approx(ratio)
    assert found[3] == verdict


def test_a_difference_within_two_percent_names_no_winner_however_sure() -> None:
    _, low, high, verdict = compare_latency(
        [1.01, 1.0101, 1.0102, 1.0103, 1.0104], [1.0, 1.0001, 1.0002, 1.0003, 1.0004]
    )
    assert low is not None
    assert low > 1.0
    assert high is not None
    assert high < 1.02
    assert verdict == "same"


def test_an_interval_across_the_margin_is_undecided() -> None:
    a = [1.019 * value for value in (0.998, 0.999, 1.0, 1.001, 1.002)]
    _, low, high, verdict = compare_latency(a, [0.998, 0.999, 1.0, 1.001, 1.002])
    assert low is not None
    assert high is not None
    assert 1.0 < low < 1.02 < high
    assert verdict == "undecided"


@pytest.mark.parametrize(("a", "b"), [(4, 5), (5, 4), (2, 50)])
def test_below_five_processes_a_side_nothing_is_decided(a: int, b: int) -> None:
    assert compare_latency([1.0] * a, [2.0] * b) == (0.5, 0.5, 0.5, "undecided")


def test_one_process_gives_a_ratio_without_interval() -> None:
    assert compare_latency([1.0], [2.0] * 5) == (0.5, None, None, "undecided")


def test_without_any_variance_the_interval_is_a_point_and_decides() -> None:
    assert compare_latency([1.0] * 5, [2.0] * 5) == (0.5, 0.5, 0.5, "faster")
    assert compare_latency([2.0] * 5, [2.0] * 5) == (1.0, 1.0, 1.0, "same")


def test_two_processes_and_many_pairs_do_not_overflow() -> None:
    _, low, high, verdict = compare_latency([1.0, 3.0], [1.0, 2.0], pairs=100_000)
    assert (low, high, verdict) == (0.0, math.inf, "undecided")


def test_a_side_without_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0 and 5"):
        compare_latency([], [1.0] * 5)
    with pytest.raises(ValueError, match="pairs"):
        compare_latency([1.0], [1.0], pairs=0)


# --- how often it is right, at five processes a side


def test_welchs_interval_covers_the_truth_also_with_unequal_spread_and_counts() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(3000):
        _, low, high, _ = compare_latency(draw(rng, 5, 0.005), draw(rng, 8, 0.03))
        assert low is not None
        assert high is not None
        covered += low <= 1.0 <= high
    assert covered / 3000 == pytest.approx(0.95, abs=0.015)


def test_false_winners_are_at_most_one_in_twenty() -> None:
    rng = np.random.default_rng(3)
    verdicts = [compare_latency(draw(rng, PROCESSES), draw(rng, PROCESSES))[3] for _ in range(4000)]
    false = sum(verdict in ("faster", "slower") for verdict in verdicts)
    assert 0.005 < false / 4000 <= 0.05  # the interval alone: 5 %; with a ratio outside ±2 % besides: 2 %


def test_with_ten_pairs_one_false_winner_in_any_of_them_stays_as_rare() -> None:
    rng = np.random.default_rng(4)
    families = 600
    false = sum(
        any(
            compare_latency(draw(rng, PROCESSES), draw(rng, PROCESSES), pairs=10)[3] in ("faster", "slower")
            for _ in range(10)
        )
        for _ in range(families)
    )
    assert false / families <= 0.06


@pytest.mark.parametrize(("planted", "least"), [(1.05, 0.97), (1.03, 0.70)])
def test_a_planted_difference_is_found_most_times(planted: float, least: float) -> None:
    rng = np.random.default_rng(5)
    verdicts = [
        compare_latency(draw(rng, PROCESSES, center=planted), draw(rng, PROCESSES, center=1.0))[3] for _ in range(1000)
    ]
    assert verdicts.count("slower") / 1000 >= least
    assert verdicts.count("faster") == 0


def test_equal_cells_on_a_calm_machine_are_called_the_same() -> None:
    rng = np.random.default_rng(6)
    verdicts = [compare_latency(draw(rng, PROCESSES, 0.005), draw(rng, PROCESSES, 0.005))[3] for _ in range(500)]
    assert verdicts.count("same") / 500 >= 0.95
