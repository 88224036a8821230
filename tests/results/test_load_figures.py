"""Figures and objectives of a load, against what can be counted by hand and what probability says."""

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom

from crosshead.results import LoadSamples, samples_needed
from crosshead.results.load_objective import MOST_LOOKS, judge, look_counts, looks, requests_to_meet
from crosshead.results.load_point import expected_queue_s, figures, spread


def samples(*rows: tuple[float, float, float, bool]) -> LoadSamples:
    intended_s, started_s, ended_s, idle = zip(*rows, strict=True)
    return LoadSamples(np.array(intended_s), np.array(started_s), np.array(ended_s), np.array(idle))


THREE = samples((0.5, 0.5, 1.5, True), (1.0, 1.5, 2.5, False), (3.0, 3.25, 4.25, True))


def test_latency_is_queueing_and_service() -> None:
    found = figures(THREE, lead_s=0.0, window_s=5.0, workers=1, open_loop=True)
    assert found["requests"] == 3
    assert found["throughput_per_s"] == pytest.approx(3 / 5)
    assert found["busy_share"] == pytest.approx(3 / 5)
    assert found["queue"].mean_s == pytest.approx((0.0 + 0.5 + 0.25) / 3)
    assert found["service"].mean_s == pytest.approx(1.0)
    assert found["latency"].max_s == pytest.approx(1.5)
    assert found["expected_queue_s"] == pytest.approx(0.6 * 1.0 / (2.0 * (1.0 - 0.6)))


def test_what_lies_outside_of_the_counted_window_counts_only_as_far_as_it_reaches_in() -> None:
    found = figures(THREE, lead_s=1.0, window_s=4.0, workers=2, open_loop=True)
    assert found["requests"] == 2  # sent from 1.0 on
    assert found["throughput_per_s"] == pytest.approx(2 / 3)  # answered at 1.5 and 2.5
    assert found["busy_share"] == pytest.approx((0.5 + 1.0 + 0.75) / (2 * 3.0))
    assert found["expected_queue_s"] is None  # of one worker only
    assert figures(THREE, lead_s=0.0, window_s=5.0, workers=1, open_loop=False)["expected_queue_s"] is None


@pytest.mark.parametrize(("lead_s", "window_s"), [(4.0, 5.0), (3.0, 3.0)])
def test_nothing_counted_is_no_figure(lead_s: float, window_s: float) -> None:
    with pytest.raises(ValueError, match="no request was counted"):
        figures(THREE, lead_s=lead_s, window_s=window_s, workers=1, open_loop=True)
    with pytest.raises(ValueError, match="got none"):
        spread([])


def test_a_percentile_needs_its_requests() -> None:
    few = spread([1.0] * 6)
    assert few.median_s is None
    assert few.missing_samples == {"median": 1, "p90": 38, "p95": 84, "p99": 453, "p999": 4597}
    many = spread(np.linspace(0.0, 1.0, 459))
    assert many.p99_s == pytest.approx(0.99)
    assert list(many.missing_samples) == ["p999"]


def test_expected_queueing_is_that_of_a_server_that_keeps_up() -> None:
    constant = np.full(10, 2.0)
    assert expected_queue_s(constant, 0.25) == pytest.approx(0.5 * 2.0 / (2.0 * 0.5))
    spread_out = np.random.default_rng(0).exponential(2.0, 1_000_000)
    assert expected_queue_s(spread_out, 0.25) == pytest.approx(0.5 * 2.0 / (1.0 - 0.5), rel=0.02)  # M/M/1
    assert expected_queue_s(constant, 0.5) is None


def test_the_requests_that_an_objective_takes_are_mlperf_s() -> None:
    # LoadGen's least counts, one query over: 64 for the 90th percentile (single stream), 662 for the 99th.
    assert (requests_to_meet(1, 0.9), requests_to_meet(1, 0.99)) == (64, 662)
    assert [requests_to_meet(over, 0.99) for over in range(3)] == [459, 662, 838]
    assert requests_to_meet(0, 0.9) == samples_needed(0.9) == 44
    for over in (0, 1, 7, 40):
        needed = requests_to_meet(over, 0.95)
        assert binom.cdf(over, needed, 0.05) <= 0.01 < binom.cdf(over, needed - 1, 0.05)


@pytest.mark.parametrize(
    ("requests", "over", "verdict"),
    [
        (459, 0, "met"),
        (458, 0, "undecided"),
        (459, 1, "undecided"),
        (662, 1, "met"),
        (459, 11, "missed"),
        (5, 5, "missed"),
    ],
)
def test_an_objective_is_decided_by_how_many_were_late(requests: int, over: int, verdict: str) -> None:
    latencies_s = [2.0] * over + [0.5] * (requests - over)
    found = judge("p99", 0.99, 1.0, latencies_s, looks([requests], 0.99))
    assert (found.verdict, found.requests, found.over) == (verdict, requests, over)
    assert judge("p99", 0.99, 1.0, latencies_s, []).verdict == verdict
    assert (found.missing_samples > 0) == (verdict == "undecided")
    if verdict == "undecided":
        more = latencies_s + [0.5] * found.missing_samples
        assert judge("p99", 0.99, 1.0, more, looks([len(more)], 0.99)).verdict == "met"


def test_without_requests_nothing_is_decided() -> None:
    found = judge("p99", 0.99, 1.0, [], [])
    assert (found.verdict, found.missing_samples) == ("undecided", 459)


def test_looks_are_few_and_share_the_risk() -> None:
    assert look_counts(300, [0.99]) == [300]
    assert look_counts(8_000, [0.99, 0.5]) == [2_000, 4_000, 8_000]
    assert look_counts(1_000, [0.99]) == [1_000]
    for p in (0.5, 0.99):
        at = looks([2_000, 4_000, 8_000], p)
        assert len(at) == MOST_LOOKS
        for bounds in at:
            assert binom.cdf(bounds.most_over, bounds.requests, 1.0 - p) <= 0.01 / 3
            assert binom.cdf(bounds.most_over + 1, bounds.requests, 1.0 - p) > 0.01 / 3
            assert binom.sf(bounds.least_over - 1, bounds.requests, 1.0 - p) <= 0.01 / 3
            assert binom.sf(bounds.least_over - 2, bounds.requests, 1.0 - p) > 0.01 / 3


def test_who_stops_at_the_first_look_that_suits_still_errs_seldom() -> None:
    random, p, tests = np.random.default_rng(1), 0.99, 2_000
    at = looks(look_counts(4_000, [p]), p)
    wrong = 0
    for _ in range(tests):
        late = np.cumsum(random.random(4_000) < (1.0 - p))  # right on the limit: neither should be said
        over = [int(late[bounds.requests - 1]) for bounds in at]
        wrong += any(n <= bounds.most_over for n, bounds in zip(over, at, strict=True))
    assert wrong / tests <= 0.01 + NormalDist().inv_cdf(0.999) * (0.01 * 0.99 / tests) ** 0.5
