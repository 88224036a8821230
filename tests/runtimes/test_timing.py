import gc
import itertools
import time

import pytest

from crosshead.runtimes import VoidError, timing


class Ticks:
    """A clock that a step moves by itself, so that nothing here depends on the machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reading_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.reading_s = reading_s
        monkeypatch.setattr(time, "perf_counter_ns", lambda: round(self._read() * 1e9))
        monkeypatch.setattr(time, "perf_counter", self._read)
        monkeypatch.setattr(timing, "calendar_s", lambda: self.now_s)

    def _read(self) -> float:
        self.now_s += self.reading_s
        return self.now_s

    def step(self, durations: "itertools.cycle[float] | itertools.chain[float]") -> timing.Step:
        def call() -> None:
            self.now_s += next(durations)

        return call


def test_calls_per_sample_keeps_the_clock_under_a_thousandth() -> None:
    assert timing.calls_per_sample(1e-3, 50e-9) == 1
    assert timing.calls_per_sample(50e-6, 50e-9) == 1
    assert timing.calls_per_sample(10e-6, 50e-9) == 5
    assert timing.calls_per_sample(3e-6, 50e-9) == 17
    for call_s in (1e-7, 1e-6, 7e-6):
        assert timing.CLOCK_SHARE * call_s * timing.calls_per_sample(call_s, 50e-9) * (1 + 1e-12) >= 50e-9


def test_clock_cost_is_the_gap_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    Ticks(monkeypatch, reading_s=40e-9)
    assert timing.clock_cost_s() == pytest.approx(40e-9)


def test_a_sample_is_divided_by_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    assert timing.timed(ticks.step(itertools.cycle([0.1, 0.3])), 4) == pytest.approx(0.2)


def test_warm_up_ends_when_the_time_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch, reading_s=50e-9)
    slow_start = [0.1 / 2**number for number in range(12)]
    warm = timing.warm_up(ticks.step(itertools.chain(slow_start, itertools.repeat(1e-5))), 60.0, first_call_s=0.5)
    assert warm.steady
    assert warm.first_call_s == 0.5
    assert warm.call_s == pytest.approx(1e-5, rel=0.01)
    assert warm.calls_per_sample == 5
    assert warm.calls > len(slow_start)


def test_a_machine_that_is_never_quiet_does_not_hold_a_warm_up_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch, reading_s=50e-9)
    restless = itertools.chain([0.1] * 5, itertools.cycle([1.00e-2] * 5 + [1.06e-2] * 5 + [1.03e-2] * 5))
    warm = timing.warm_up(ticks.step(restless), 60.0, first_call_s=0.5)
    assert warm.steady
    assert warm.calls == 1 + 5 * 5, "one cold window, two that set the span, two that lie in it"


def test_warm_up_that_never_settles_ends_at_its_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch, reading_s=50e-9)
    growing = (1e-3 * 1.05**number for number in itertools.count())
    warm = timing.warm_up(ticks.step(itertools.chain(growing)), 2.0, first_call_s=1e-3)
    assert not warm.steady
    assert 2.0 <= ticks.now_s < 2.5


def test_a_call_longer_than_the_limit_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    warm = timing.warm_up(ticks.step(itertools.cycle([5.0])), 1.0, first_call_s=5.0)
    assert (warm.calls, warm.steady, warm.call_s) == (2, False, 5.0)


def test_recording_leaves_out_the_settling_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    step = ticks.step(itertools.chain(itertools.repeat(9.0, 2), itertools.repeat(1.0)))
    samples = timing.record(step, calls=2, settle_s=10.0, duration_s=6.0, min_samples=1)
    assert samples == [1.0, 1.0, 1.0]


def test_recording_takes_the_samples_it_needs_whatever_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    samples = timing.record(ticks.step(itertools.cycle([2.0])), calls=1, settle_s=0.0, duration_s=0.1, min_samples=4)
    assert samples == [2.0] * 4


def test_a_clock_that_goes_back_gives_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    step = ticks.step(itertools.chain([1.0, 1.0, -0.5], itertools.repeat(1.0)))
    with pytest.raises(VoidError, match="while measuring, the clock went back; measure again"):
        timing.record(step, calls=1, settle_s=0.0, duration_s=5.0, min_samples=1)


def test_a_suspended_machine_gives_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    outside = itertools.chain([0.0], itertools.repeat(3600.0))  # an hour more than the clock that stood still
    monkeypatch.setattr(timing, "calendar_s", lambda: ticks.now_s + next(outside))
    step = ticks.step(itertools.cycle([1.0]))
    with pytest.raises(VoidError, match=r"3\.6e\+03 s went by outside while the clock went on by 3 s: the machine was"):
        timing.record(step, calls=1, settle_s=0.0, duration_s=3.0, min_samples=1)


def test_no_collection_while_timing_and_its_state_comes_back() -> None:
    seen = []
    assert gc.isenabled()
    timing.record(lambda: seen.append(gc.isenabled()), calls=1, settle_s=0.0, duration_s=0.0, min_samples=3)
    assert seen == [False] * 3
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        timing.first_call(lambda: 1 // 0)
    assert gc.isenabled()


def test_median_of_copies_stops_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Ticks(monkeypatch)
    assert timing.median_s(ticks.step(itertools.cycle([0.3])), calls=15, limit_s=0.5) == pytest.approx(0.3)
    assert ticks.now_s == pytest.approx(0.6)
