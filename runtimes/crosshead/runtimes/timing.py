"""The timing loop: what one process can say about one bound call.

Nothing but the call itself stands inside a timed block: no messages, no files, no garbage collection. How processes
and turns are combined is the harness's business (docs/method.md, "Set-up that does not lie").
"""

import gc
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import repeat

import msgspec

from crosshead.runtimes.errors import VoidError
from crosshead.runtimes.load_clock import Watch, calendar_s

Step = Callable[[], object]

CLOCK_SHARE = 1e-3
"""Reading the clock may cost this share of a sample."""

STEADY = 0.02
"""A window agrees with those before it when its median is no farther than this share outside of what theirs span."""

STEADY_TIMES = 2
"""Steady: so many times in a row a window agrees. The first window only shows how cold the process was."""

WINDOW_CALLS = 5
WINDOW_S = 0.03
"""A window of the warm-up spans at least so many calls and so many seconds."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a warm-up found.

    Attributes:
        first_call_s: seconds of the very first call.
        calls: how many calls it took, the first included.
        steady: whether a steady state was reached within the limit.
        call_s: median seconds a call in the last window.
        calls_per_sample: how many calls a sample has to span.
    """

    first_call_s: float
    calls: int
    steady: bool
    call_s: float
    calls_per_sample: int


@contextmanager
def collection_off() -> Generator[None]:
    """Collect garbage, then keep the collector off, as `timeit` does."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def clock_cost_s(readings: int = 1001) -> float:
    """Return what one reading of the clock costs, in seconds: the median over many pairs of readings."""
    gaps = []
    for _ in range(readings):
        before = time.perf_counter_ns()
        gaps.append(time.perf_counter_ns() - before)
    return statistics.median(gaps) * 1e-9


def calls_per_sample(call_s: float, clock_s: float) -> int:
    """Return how many calls a sample has to span, so that reading the clock costs under `CLOCK_SHARE` of it.

    Args:
        call_s: seconds a call.
        clock_s: seconds that one reading of the clock costs; a sample holds one.
    """
    if call_s <= 0.0:
        return 1_000_000
    return max(1, -int(-clock_s // (CLOCK_SHARE * call_s)))


def timed(step: Step, calls: int = 1) -> float:
    """Return seconds a call over a block of `calls`."""
    started = time.perf_counter_ns()
    for _ in repeat(None, calls):
        step()
    return (time.perf_counter_ns() - started) * 1e-9 / calls


def first_call(step: Step) -> float:
    """Return the seconds of one call."""
    with collection_off():
        return timed(step)


def warm_up(step: Step, limit_s: float, first_call_s: float) -> WarmUp:
    """Call until the medians of windows lie among those seen before, or until `limit_s` has gone by.

    Not until two successive ones are equal: on a machine with other guests they go up and down by more than `STEADY`
    for as long as one looks. What a warm-up has to outlast is calls that go on becoming faster, or slower.

    Args:
        step: the call.
        limit_s: seconds; a call that has begun is finished.
        first_call_s: what `first_call` gave, passed on.
    """
    deadline = time.perf_counter() + limit_s
    calls, agreed = 1, 0  # the first call says nothing about the steady state
    seen: list[float] = []
    with collection_off():
        clock_s = clock_cost_s()
        while True:
            middle, made = _window(step, deadline)
            calls += made
            agreed = agreed + 1 if _lies_among(middle, seen[1:]) else 0
            seen.append(middle)
            if agreed >= STEADY_TIMES or time.perf_counter() >= deadline:
                break
    return WarmUp(
        first_call_s=first_call_s,
        calls=calls,
        steady=agreed >= STEADY_TIMES,
        call_s=middle,
        calls_per_sample=calls_per_sample(middle, clock_s),
    )


def _lies_among(middle: float, seen: Sequence[float]) -> bool:
    return bool(seen) and (1.0 - STEADY) * min(seen) <= middle <= (1.0 + STEADY) * max(seen)


def _window(step: Step, deadline: float) -> tuple[float, int]:
    """Return the median seconds a call of one window, and how many calls it took."""
    times: list[float] = []
    end = time.perf_counter() + WINDOW_S
    while len(times) < WINDOW_CALLS or time.perf_counter() < end:
        times.append(timed(step))
        if time.perf_counter() >= deadline:
            break
    return statistics.median(times), len(times)


def record(step: Step, *, calls: int, settle_s: float, duration_s: float, min_samples: int) -> list[float]:
    """Call unrecorded for `settle_s`, then return samples (seconds a call) for `duration_s`.

    Args:
        step: the call.
        calls: calls a sample.
        settle_s: a woken process finds its caches cold and its threads asleep; these calls are not kept.
        duration_s: seconds of recording.
        min_samples: at least so many samples, whatever the time.

    Raises:
        VoidError: the clock went back, or the machine was suspended meanwhile.
    """
    # Whether calls keep a processor busy is their own affair, so no processor time is looked at.
    watch = Watch(time.perf_counter, used=time.perf_counter, calendar=calendar_s)
    samples: list[float] = []
    with collection_off():
        end = time.perf_counter() + settle_s
        while time.perf_counter() < end:
            timed(step, calls)
        end = time.perf_counter() + duration_s
        while len(samples) < min_samples or time.perf_counter() < end:
            samples.append(timed(step, calls))
    watch.look()
    if watch.finding or min(samples) < 0.0:
        raise VoidError(f"while measuring, {watch.finding or 'the clock went back'}; measure again")
    return samples


def median_s(step: Step, calls: int = 15, limit_s: float = 0.5) -> float:
    """Return the median seconds of up to `calls` calls; at least one, and none begun after `limit_s`."""
    times: list[float] = []
    end = time.perf_counter() + limit_s
    with collection_off():
        while not times or (len(times) < calls and time.perf_counter() < end):
            times.append(timed(step))
    return statistics.median(times)
