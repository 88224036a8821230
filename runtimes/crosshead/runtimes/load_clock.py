"""The clock that a load test runs by: the machine's, or a virtual one that moves only when it is told to."""

import ctypes
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1
_DEFAULT_SLACK = 0

EARLY_S = 50e-6
"""A wait ends so much before its time; what is left is gone through in the shortest sleeps there are."""

TICK_S = 0.05
"""How often one looks after a load test that is under way."""

STILL_S = 0.25
"""Who comes so much late did not merely wait for a processor: the process, the machine or the clock was stopped."""


class Clock(Protocol):
    """Seconds since some moment, and a way to let them pass."""

    def now(self) -> float:
        """Return the time in seconds."""

    def wait(self, seconds: float) -> None:
        """Let up to so many seconds go by; it may come back before."""


class RealClock:
    """`time.perf_counter`, which no change of the date moves. Waits so that other threads run meanwhile."""

    def now(self) -> float:
        """Return seconds of `time.perf_counter`."""
        return time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Sleep until shortly before the end, or, there already, as short as can be."""
        time.sleep(max(0.0, seconds - EARLY_S))


class VirtualClock:
    """A clock for simulations: an hour goes by in no time."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        """Return virtual seconds."""
        return self._now_s

    def wait(self, seconds: float) -> None:
        """Move on by so many seconds."""
        self._now_s += seconds


@contextmanager
def punctual() -> Generator[None]:
    """Let sleeps of this thread end on time, not up to 50 µs late so that the kernel can wake several at once.

    Linux only (`man 2 PR_SET_TIMERSLACK`); elsewhere it does nothing.
    """
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_TIMERSLACK, _SLACK_NS, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, _DEFAULT_SLACK, 0, 0, 0)


def calendar_s() -> float:
    """Return seconds that go on while the machine sleeps, which `time.perf_counter` need not do."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:  # noqa: RET505  # the type checker follows platforms through else alone
        return time.time()


class Watch:
    """Finds out whether the process ran all along, from looks about `TICK_S` apart.

    A call that stalls is the backend's own, and this thread goes on looking beside it. When these looks themselves come
    late and the process used no processor time meanwhile, then nothing of it ran: it was stopped, or the machine was. A
    machine asleep may stop `now` too; the calendar goes on.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.process_time,
        calendar: Callable[[], float] = calendar_s,
    ) -> None:
        """Take the first look.

        Args:
            now: the clock that is measured by, in seconds.
            used: processor time of this process, in seconds.
            calendar: a clock that goes on while the machine sleeps.
        """
        self._clocks = (now, used, calendar)
        self._last = [clock() for clock in self._clocks]
        self.finding = ""
        """What was seen first; empty when all is well."""

    def look(self) -> None:
        """Compare how far the three clocks went since the last look."""
        read = [clock() for clock in self._clocks]
        passed_s, used_s, calendar_passed_s = (a - b for a, b in zip(read, self._last, strict=True))
        self._last = read
        if self.finding:
            return
        if passed_s < 0.0:
            self.finding = f"the clock went back by {-passed_s:.3g} s"
        elif abs(calendar_passed_s - passed_s) > STILL_S:
            self.finding = (
                f"{calendar_passed_s:.3g} s went by outside while the clock went on by {passed_s:.3g} s: "
                "the machine was suspended, or a clock was set"
            )
        elif passed_s - TICK_S > STILL_S and used_s < 0.5 * passed_s:
            self.finding = (
                f"the process stood still for {passed_s:.3g} s: it was stopped, or the machine was suspended or too "
                "busy to run it"
            )
