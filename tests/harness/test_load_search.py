"""The search for the largest rate, and what follows from loads, on made-up servers."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosshead.harness import RequestError, poisson_arrivals
from crosshead.harness.load_schedule import draw_seed
from crosshead.harness.load_search import MOST_TRIES, NEAR, find_largest
from crosshead.harness.load_verdict import kept_rate, load_exit_status, overall_load, saturation
from crosshead.results import LoadCellRecord, LoadPointRecord, LoadRecord, ObjectiveRecord
from crosshead.runtimes.load import Demand, serve_in_turns


@settings(deadline=None)
@given(limit=st.floats(0.02, 3.0), capacity=st.floats(0.1, 1e5))
def test_the_largest_rate_is_found_wherever_it_is(limit: float, capacity: float) -> None:
    tried: list[float] = []

    def attempt(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit * capacity

    find_largest(attempt, capacity)
    kept = max(rate for rate in tried if rate <= limit * capacity)
    lost = min(rate for rate in tried if rate > limit * capacity)
    assert lost <= kept * (1.0 + NEAR)
    assert len(tried) <= MOST_TRIES


def test_the_search_ends_when_nothing_can_be_tried_or_nothing_is_kept() -> None:
    answers = iter([True, False, None])
    tried: list[float] = []

    def attempt(rate: float) -> bool | None:
        tried.append(rate)
        return next(answers)

    find_largest(attempt, 100.0)
    assert tried == [50.0, 70.0, 60.0]
    never = itertools.count()
    find_largest(lambda _: next(never) < 0, 100.0)
    assert next(never) == MOST_TRIES


def test_on_a_virtual_server_the_search_comes_near_to_what_it_can_do() -> None:
    call_s, followed = 1e-3, []

    def attempt(rate: float) -> bool:
        times_s = poisson_arrivals(rate, 5.0, draw_seed(0, int(rate)))
        served = serve_in_turns(Demand(duration_s=5.0, arrivals_s=times_s), [lambda clock: clock.wait(call_s)])
        if served.stopped == "end":
            followed.append(rate)
        return served.stopped == "end"

    find_largest(attempt, 1.0 / call_s)
    assert 0.9 / call_s < max(followed) < 1.1 / call_s


def test_arrivals_are_a_poisson_process_that_its_seed_repeats() -> None:
    times_s = poisson_arrivals(1_000.0, 100.0, 3)
    assert np.array_equal(times_s, poisson_arrivals(1_000.0, 100.0, 3))
    assert not np.array_equal(times_s, poisson_arrivals(1_000.0, 100.0, 4))
    assert np.all(np.diff(times_s) >= 0.0)
    assert times_s[0] >= 0.0
    assert times_s[-1] < 100.0
    counts = np.histogram(times_s, bins=1_000, range=(0.0, 100.0))[0]
    assert counts.mean() == pytest.approx(100.0, rel=0.02)
    assert counts.var() == pytest.approx(100.0, rel=0.2)  # mean and variance of a Poisson count are equal
    gaps_s = np.diff(times_s)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.05)
    with pytest.raises(RequestError, match="shorter --time-budget"):
        poisson_arrivals(1e6, 100.0, 0)


def test_each_load_draws_by_a_seed_of_its_own() -> None:
    assert len({draw_seed(seed, number) for seed in (-1, 0, 1, 2**40) for number in range(20)}) == 80


def point(rate: float, status: Any = "ok", objective: Any = None, **fields: Any) -> LoadPointRecord:
    objectives = [ObjectiveRecord(name="p99", limit_s=0.1, verdict=objective)] if objective else []
    figures = {"throughput_per_s": min(rate, 100.0)} if status in ("ok", "saturated") else {}
    known: dict[str, Any] = {"loop": "open", "workers": 1, "duration_s": 1.0, "rate_per_s": rate, "status": status}
    return LoadPointRecord(**known | figures | {"objectives": objectives} | fields)


def found(rate: float, objective: Any) -> LoadPointRecord:
    return point(rate, objective=objective, given=False)


def test_saturation_lies_between_what_was_followed_and_what_was_not() -> None:
    between = saturation([point(50.0), point(120.0, "saturated"), point(90.0), point(200.0, "saturated")])
    assert between is not None
    assert (between.follows_per_s, between.stops_per_s, between.throughput_per_s) == (90.0, 120.0, 100.0)
    doubtful = saturation([point(50.0), point(80.0, "saturated"), point(90.0)])
    assert doubtful is not None
    assert (doubtful.follows_per_s, doubtful.stops_per_s) == (50.0, 80.0)
    never = saturation([point(50.0), point(60.0, "void")])
    assert never is not None
    assert (never.follows_per_s, never.stops_per_s) == (50.0, None)
    assert saturation([point(50.0, "void"), point(60.0, "too-short")]) is None


def test_the_largest_rate_that_is_kept_lies_below_the_first_that_is_not() -> None:
    points = [point(10.0, objective="met"), point(40.0, objective="missed"), point(20.0, objective="met")]
    best = kept_rate([*points, point(60.0, objective="met"), point(30.0, objective="undecided")], "")
    assert (best.kept_per_s, best.lost_per_s, best.reason) == (20.0, 40.0, "")
    none = kept_rate([point(10.0, objective="missed")], "")
    assert none.kept_per_s is None
    assert none.reason
    unknown = kept_rate([point(10.0, objective="undecided")], "the time was too short")
    assert (unknown.kept_per_s, unknown.lost_per_s, unknown.reason) == (None, None, "the time was too short")


@pytest.mark.parametrize(
    ("points", "status", "verdict", "exits"),
    [
        ([point(10.0, objective="met")], "ok", "pass", (0, 0)),
        ([point(10.0, objective="missed")], "ok", "fail", (1, 1)),
        ([point(10.0, objective="undecided")], "ok", "suspect", (0, 1)),
        ([found(10.0, "missed"), found(5.0, "met")], "ok", "pass", (0, 0)),
        ([found(10.0, "missed")], "ok", "fail", (1, 1)),
        ([found(10.0, "undecided")], "ok", "suspect", (0, 1)),
        ([point(10.0), point(20.0, "void")], "ok", "suspect", (0, 1)),
        ([point(10.0), point(20.0, "void", given=False)], "ok", "pass", (0, 0)),
        ([], "failed", "fail", (1, 1)),
        ([], "void", "suspect", (0, 1)),
        ([], "unsupported", "suspect", (2, 2)),
    ],
)  # fmt: skip
def test_verdict_and_exit_status(
    points: list[LoadPointRecord], status: Any, verdict: str, exits: tuple[int, int], load_record: Any
) -> None:
    kept = kept_rate(points, "") if any(p.objectives for p in points) else None
    cell = LoadCellRecord(artifact="a", backend="fake", case="1x3", threads=1, status=status, points=points, kept=kept)
    searched = bool(points) and not points[0].given
    record: LoadRecord = load_record(cells=[cell])
    assert overall_load(record, searched=searched) == verdict
    record = load_record(cells=[cell], verdict=verdict)
    exited = tuple(
        load_exit_status(record, by_name={"fake"}, strict=strict, interrupted=False) for strict in (False, True)
    )
    assert exited == exits
    assert load_exit_status(record, by_name=(), strict=False, interrupted=True) == 130


@pytest.fixture
def load_record() -> Any:
    """Return a function that makes a record with these fields."""
    from crosshead.results import LoadPlanRecord, read_environment

    environment = read_environment({})

    def make(**fields: Any) -> LoadRecord:
        plan = LoadPlanRecord(source="mha", backends=["fake"], threads=1, time_budget_s=1.0, seed=0)
        return LoadRecord(id="x", crosshead="0", started="now", plan=plan, environment=environment, **fields)

    return make
