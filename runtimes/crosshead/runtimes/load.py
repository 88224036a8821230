"""A server under load, inside one worker process: N calls at a time, requests served in the order they were to be sent.

Clients and server live in one process, so that no pipe stands between the clock and the call. Nobody dispatches either:
whichever of the N servers is free takes the next request off the line, waits until it is due if it came too early, and
calls. A request that is due before a server is free has waited in the queue, from its *intended* send time on; so a
stall delays all that were due meanwhile, and shows in each of them (what a client that waits for its last answer before
it sends again would leave out: "coordinated omission", Gil Tene, "How NOT to measure latency").

Open loop: the send times are given. Closed loop: as many clients as one says, each sending again when it was answered.

The same code runs by a virtual clock (`serve_in_turns`), where a call moves the clock and costs no time.
"""

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from crosshead.runtimes.base import Step
from crosshead.runtimes.load_clock import STILL_S, TICK_S, Clock, RealClock, VirtualClock, Watch, punctual
from crosshead.runtimes.load_line import FIELDS, Arrivals, Clients, Line, turn
from crosshead.runtimes.messages import Look
from crosshead.runtimes.timing import collection_off

Floats = NDArray[np.float64]
Stopped = Literal["end", "decided", "saturated"]

FOLLOWS_SHARE = 0.05
"""A server that left more than this share of the requests unanswered at the end does not keep up with their rate."""


@dataclass(frozen=True)
class Demand:
    """What is asked of a server.

    Attributes:
        duration_s: requests are sent for so long.
        arrivals_s: open loop: when requests are sent, seconds from the start, rising, all within the duration.
        clients: closed loop: how many clients there are.
        lead_s: requests that are to be sent before this are served and not counted.
        limits_s: latencies that `looks` count the excess of.
        looks: when to look whether enough is known to stop.
    """

    duration_s: float
    arrivals_s: Floats | None = None
    clients: int = 0
    lead_s: float = 0.0
    limits_s: Sequence[float] = ()
    looks: Sequence[Look] = ()

    def line(self, start_s: float) -> Line:
        """Return the requests, for a start at this time of the clock."""
        if self.arrivals_s is None:
            return Clients(self.clients, start_s, start_s + self.duration_s)
        return Arrivals((self.arrivals_s + start_s).tolist())


@dataclass(frozen=True)
class Served:
    """What came of a demand; times in seconds from the start, one entry a request, in the order of sending.

    Attributes:
        intended_s: when each was to be sent.
        started_s, ended_s: its call.
        idle: whether a server stood idle when it was to be sent; then `started_s - intended_s` is what the machine
            took to wake it, and no queueing.
        left: requests that were due by the end of the window and not answered by then (open loop).
        window_s: for how long requests were sent.
        stopped: why it ended: at its end; because enough was known; or because the requests came faster than they were
            answered, and those still waiting were given up.
        finding: why the times mean nothing; empty when all is well.
    """

    intended_s: Floats
    started_s: Floats
    ended_s: Floats
    idle: NDArray[np.bool_]
    left: int
    window_s: float
    stopped: Stopped
    finding: str


def most_left(sent: int, workers: int) -> float:
    """Return how many requests may be unanswered at the end of a window by chance alone.

    The queue of a server that only just keeps up strays like the square root of what was sent (a random walk that
    cannot go below zero); two of these, or `FOLLOWS_SHARE`, beside those being served.
    """
    return max(FOLLOWS_SHARE * sent, 2.0 * math.sqrt(sent)) + workers


class Overseer:
    """Looks after a test that is under way, from outside of its calls; ends it early where nothing more is to learn."""

    def __init__(self, demand: Demand, line: Line, samples: Sequence["array[float]"], start_s: float) -> None:
        self.stopped: Stopped = "end"
        self.ended_s = start_s + demand.duration_s
        self._demand = demand
        self._line = line
        self._samples = samples
        self._start_s = start_s
        self._looks = list(demand.looks)

    def look(self, now_s: float) -> None:
        """Take a look at this time of the clock."""
        if self._line.stopped:
            return
        if now_s >= self.ended_s:
            self._look_at_end()
        elif self._looks and self._answered() >= self._looks[0].count:
            self._look_at_samples(now_s)

    def _answered(self) -> int:
        return sum(map(len, self._samples)) // FIELDS

    def _look_at_end(self) -> None:
        """Give up those still waiting where the server did not keep up; else they are served."""
        arrivals_s = self._demand.arrivals_s
        if arrivals_s is not None and len(arrivals_s) - self._answered() > most_left(
            len(arrivals_s), len(self._samples)
        ):
            self.stopped = "saturated"
            self._line.stop()

    def _look_at_samples(self, now_s: float) -> None:
        rows = gather(self._samples) - np.array([self._start_s] * 3 + [0.0])
        latencies = (rows[:, 2] - rows[:, 0])[rows[:, 0] >= self._demand.lead_s]
        while self._looks and len(latencies) >= self._looks[0].count:
            look = self._looks.pop(0)
            over = [int(np.count_nonzero(latencies[: look.count] > limit_s)) for limit_s in self._demand.limits_s]
            if look.decides(over):
                self.stopped, self.ended_s = "decided", now_s
                self._line.stop()
                return


def gather(samples: Sequence["array[float]"]) -> Floats:
    """Return what all servers kept: (requests, FIELDS), in the order of sending. May be asked while they serve."""
    # A copy, not a view: an array that lends its memory cannot grow meanwhile.
    parts = [np.array(part[: len(part) // FIELDS * FIELDS]).reshape(-1, FIELDS) for part in samples]
    rows = np.concatenate(parts)  # (requests, FIELDS)
    return rows[np.argsort(rows[:, 0], kind="stable")]


def serve(demand: Demand, steps: Sequence[Step], *, settle_s: float) -> Served:
    """Serve a demand in real time, one thread a step; this thread serves as well.

    Args:
        demand: what is asked.
        steps: bound calls that may run at the same time, one for each server.
        settle_s: every server calls unrecorded for so long before the start, at least once.

    Raises:
        Exception: what a call raised; the others are stopped.
    """
    clock = RealClock()
    samples = [array("d") for _ in steps]
    run = _Run()

    def begin() -> None:
        start_s = clock.now()
        line = demand.line(start_s)
        run.line, run.overseer, run.start_s = line, Overseer(demand, line, samples, start_s), start_s

    barrier = threading.Barrier(len(steps) + 1, action=begin)

    def attend(number: int) -> None:
        try:
            with punctual():
                _settle(steps[number], settle_s, clock)
                if not _meet(barrier):
                    return
                while turn(run.line, steps[number], clock, samples[number]):
                    pass
        except Exception as error:  # noqa: BLE001  # whatever a backend raises; raised again below
            run.errors.append(error)
            barrier.abort()
            run.line.stop()

    def oversee() -> None:
        if not _meet(barrier):
            return
        run.watch = Watch(clock.now)
        while not run.over.wait(TICK_S):
            run.watch.look()
            run.overseer.look(clock.now())

    threads = [threading.Thread(target=attend, args=(number,), daemon=True) for number in range(1, len(steps))]
    overseer = threading.Thread(target=oversee, daemon=True)
    with collection_off():
        for thread in (*threads, overseer):
            thread.start()
        attend(0)
        for thread in threads:
            thread.join()
        run.over.set()
        overseer.join()
    if run.errors:
        raise run.errors[0]
    if run.watch is not None:
        run.watch.look()
    finding = run.watch.finding if run.watch is not None else ""
    return _served(demand, run.line, run.overseer, samples, run.start_s, finding)


class _Run:
    """What the threads of a test share."""

    overseer: Overseer

    def __init__(self) -> None:
        self.line: Line = Arrivals([])
        self.start_s = 0.0
        self.errors: list[Exception] = []
        self.over = threading.Event()
        self.watch: Watch | None = None


def _meet(barrier: threading.Barrier) -> bool:
    """Wait until all threads are there; False where one of them failed before."""
    try:
        barrier.wait()
    except threading.BrokenBarrierError:
        return False
    return True


def _settle(step: Step, settle_s: float, clock: Clock) -> None:
    end = clock.now() + settle_s
    step()
    while clock.now() < end:
        step()


def serve_in_turns(demand: Demand, steps: Sequence[Callable[[VirtualClock], object]]) -> Served:
    """Serve a demand in virtual time, one clock a server; the one whose clock is behind takes the next turn.

    Args:
        demand: what is asked.
        steps: calls; each moves the clock that it is given by what it takes.
    """
    clocks = [VirtualClock() for _ in steps]
    return serve_by_clocks(
        demand, clocks, [_with_clock(step, clock) for step, clock in zip(steps, clocks, strict=True)]
    )


def serve_by_clocks(demand: Demand, clocks: Sequence[Clock], steps: Sequence[Step]) -> Served:
    """Serve a demand in turns by any clocks, one a server, all starting at the same time."""
    start_s = clocks[0].now()
    samples = [array("d") for _ in steps]
    line = demand.line(start_s)
    overseer = Overseer(demand, line, samples, start_s)
    free = list(range(len(steps)))
    look_s = start_s
    while free:
        first = min(free, key=lambda number: clocks[number].now()) if len(free) > 1 else free[0]
        if not turn(line, steps[first], clocks[first], samples[first]):
            free.remove(first)
        now_s = clocks[first].now()
        if now_s >= look_s:
            look_s = now_s + TICK_S
            overseer.look(now_s)
    return _served(demand, line, overseer, samples, start_s, "")


def _with_clock(step: Callable[[VirtualClock], object], clock: VirtualClock) -> Step:
    return lambda: step(clock)


def _served(
    demand: Demand, line: Line, overseer: Overseer, samples: Sequence["array[float]"], start_s: float, finding: str
) -> Served:
    rows = gather(samples)
    intended_s, started_s, ended_s = (rows[:, :3] - start_s).T
    idle = rows[:, 3] > 0.0
    window_s = overseer.ended_s - start_s
    left = 0
    if demand.arrivals_s is not None:
        left = int(np.count_nonzero(demand.arrivals_s <= window_s)) - int(np.count_nonzero(ended_s <= window_s))
    return Served(
        intended_s=intended_s,
        started_s=started_s,
        ended_s=ended_s,
        idle=idle,
        left=left,
        window_s=window_s,
        stopped=overseer.stopped,
        finding=finding or _clock_finding(intended_s, started_s, idle, samples, line.back_s),
    )


def _clock_finding(
    intended_s: Floats,
    started_s: Floats,
    idle: NDArray[np.bool_],
    samples: Sequence["array[float]"],
    back_s: float,
) -> str:
    """Say where the times themselves show that the clock cannot have been right."""
    if not len(intended_s):
        return ""
    # By server, (start, end, start, end, …) never falls.
    in_order = [np.array(part).reshape(-1, FIELDS)[:, 1:3].ravel() for part in samples]
    back_s = max(back_s, *(-float(np.diff(times).min(initial=0.0)) for times in in_order))
    if back_s > 0.0:
        return f"the clock went back by {back_s:.3g} s"
    late_s = float((started_s - intended_s)[idle].max(initial=0.0))
    if late_s > STILL_S:
        return (
            f"a request was taken up {late_s:.3g} s late by a server that stood idle: the process was stopped, the "
            "machine suspended or too busy, or the clock was set"
        )
    return ""
