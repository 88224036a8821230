"""A server under load by a virtual clock, held against queueing theory; and in real time, without asserting on it."""

import heapq
import re
import threading
import time
from array import array
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from crosshead.runtimes.load import Demand, Served, most_left, serve, serve_by_clocks, serve_in_turns
from crosshead.runtimes.load_clock import STILL_S, TICK_S, RealClock, VirtualClock, Watch, calendar_s, punctual
from crosshead.runtimes.load_line import Arrivals, Clients, turn
from crosshead.runtimes.messages import Look

CALL_S = 1e-3
Floats = NDArray[np.float64]


def calls(clock: VirtualClock) -> None:
    clock.wait(CALL_S)


def poisson(busy: float, requests: int, seed: int = 0) -> Floats:
    """Arrivals at which one server is busy for this share of the time."""
    return np.cumsum(np.random.default_rng(seed).exponential(CALL_S / busy, requests))


def demand(arrivals_s: Floats, **fields: object) -> Demand:
    return Demand(duration_s=float(arrivals_s[-1]), arrivals_s=arrivals_s, **fields)  # type: ignore[arg-type]  # of it


def queued(served: Served) -> Floats:
    waits: Floats = served.started_s - served.intended_s
    return waits


@pytest.mark.parametrize(("busy", "requests"), [(0.5, 300_000), (0.7, 400_000), (0.9, 1_000_000)])
def test_queueing_is_that_of_m_d_1(busy: float, requests: int) -> None:
    served = serve_in_turns(demand(poisson(busy, requests)), [calls])
    assert len(served.intended_s) == requests
    assert not served.finding
    expected_s = busy * CALL_S / (2.0 * (1.0 - busy))
    assert float(queued(served).mean()) == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_line_is_first_come_first_served_by_whoever_is_free(workers: int) -> None:
    random = np.random.default_rng(workers)
    arrivals_s = np.cumsum(random.exponential(CALL_S / workers / 0.8, 5_000))
    lengths_s = random.exponential(CALL_S, 5_000)
    left = iter(lengths_s.tolist())
    served = serve_in_turns(demand(arrivals_s), [lambda clock: clock.wait(next(left))] * workers)
    free_s = [0.0] * workers
    starts_s = []
    for arrival_s, length_s in zip(arrivals_s.tolist(), lengths_s.tolist(), strict=True):
        starts_s.append(max(arrival_s, heapq.heappop(free_s)))
        heapq.heappush(free_s, starts_s[-1] + length_s)
    assert np.allclose(served.started_s, starts_s, rtol=0, atol=1e-9)


def test_a_stall_shows_from_the_intended_send_time_and_hides_from_the_actual_one() -> None:
    number = iter(range(100_000))

    def stalls_once(clock: VirtualClock) -> None:
        clock.wait(0.2 if next(number) == 2_000 else CALL_S)

    served = serve_in_turns(demand(poisson(0.5, 5_000)), [stalls_once])
    service_s, latency_s = served.ended_s - served.started_s, served.ended_s - served.intended_s
    assert float(np.quantile(service_s, 0.999)) == pytest.approx(CALL_S)  # what waits for its last answer sees
    assert float(np.quantile(latency_s, 0.99)) > 0.1
    late = int(np.count_nonzero(latency_s > 0.02))
    assert 100 < late < 400  # those due in 0.2 s, and in about as long again until the queue is gone


@pytest.mark.parametrize(("clients", "workers"), [(1, 1), (4, 1), (4, 2), (3, 3)])
def test_clients_of_a_closed_loop_share_the_workers(clients: int, workers: int) -> None:
    served = serve_in_turns(Demand(duration_s=2.0, clients=clients), [calls] * workers)
    steady = served.intended_s > 0.1
    latency_s = (served.ended_s - served.intended_s)[steady]
    assert np.allclose(latency_s, CALL_S * clients / workers)
    assert len(served.intended_s) == pytest.approx(workers * 2.0 / CALL_S, abs=2 * clients)
    assert served.left == 0
    assert served.stopped == "end"


def test_a_server_that_does_not_keep_up_is_stopped_at_the_end_and_what_waits_is_counted() -> None:
    served = serve_in_turns(demand(poisson(1.5, 3_000)), [calls])
    assert served.stopped == "saturated"
    assert served.left == pytest.approx(1_000, rel=0.15)
    assert len(served.intended_s) == pytest.approx(2_000, rel=0.15)
    assert served.window_s == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("requests", [50, 300, 2_000])
def test_a_server_that_keeps_up_is_seldom_taken_for_saturated(requests: int) -> None:
    stopped = [serve_in_turns(demand(poisson(0.9, requests, seed)), [calls]).stopped for seed in range(100)]
    assert stopped.count("saturated") <= 2
    assert most_left(requests, 2) == most_left(requests, 1) + 1


def test_a_test_ends_when_every_limit_is_decided() -> None:
    arrivals_s = poisson(0.5, 20_000)
    looks = [Look(count=count, most_over=[0, 10], least_over=[1, 10_000]) for count in (1_000, 2_000, 20_000)]
    decided = serve_in_turns(demand(arrivals_s, limits_s=(1.0, 1.0), looks=looks), [calls])
    assert decided.stopped == "decided"
    assert 1_000 <= len(decided.intended_s) < 1_100
    assert decided.window_s < arrivals_s[1_200]
    late = serve_in_turns(demand(arrivals_s, limits_s=(0.5 * CALL_S, 1.0), looks=looks), [calls])
    assert late.stopped == "decided"
    open_looks = [Look(count=1_000, most_over=[-1], least_over=[1])]
    undecided = serve_in_turns(demand(arrivals_s, limits_s=(1.0,), looks=open_looks), [calls])
    assert undecided.stopped == "end"
    assert len(undecided.intended_s) == 20_000


def test_looks_leave_out_what_was_sent_before_the_lead() -> None:
    arrivals_s = poisson(0.5, 4_000)
    looks = [Look(count=1_000, most_over=[0], least_over=[10_000])]
    number = iter(range(100_000))

    def stalls_at_first(clock: VirtualClock) -> None:
        clock.wait(0.1 if next(number) == 0 else CALL_S)

    lead_s = float(arrivals_s[1_000])
    led = serve_in_turns(demand(arrivals_s, limits_s=(0.05,), looks=looks, lead_s=lead_s), [stalls_at_first])
    assert led.stopped == "decided"
    assert 2_000 <= len(led.intended_s) < 2_100


class Jumping(VirtualClock):
    """A clock that jumps once, when it reaches some time."""

    def __init__(self, at_s: float, by_s: float) -> None:
        super().__init__()
        self._at_s, self._by_s = at_s, by_s

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if self._by_s and self._now_s >= self._at_s:
            self._now_s, self._by_s = self._now_s + self._by_s, 0.0


def jumped(by_s: float, *, idle: bool) -> Served:
    clock = Jumping(0.5, by_s)
    step: Callable[[], object] = (lambda: None) if idle else (lambda: clock.wait(CALL_S))
    return serve_by_clocks(demand(poisson(0.3, 600)), [clock], [step])


def test_a_clock_that_steps_is_a_finding() -> None:
    assert re.search(r"went back by 0\.(39|4)", jumped(-0.4, idle=False).finding)
    assert "taken up" in jumped(5.0, idle=True).finding
    assert not jumped(0.0, idle=True).finding


class Readings:
    """Three clocks that are read together, one row of times after the other."""

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self._left = [iter(column) for column in zip(*rows, strict=True)]

    def watch(self) -> Watch:
        now, used, calendar = (lambda column=column: next(column) for column in self._left)
        return Watch(now, used, calendar)


@pytest.mark.parametrize(
    ("later", "finding"),
    [
        ((TICK_S, 0.0, TICK_S), ""),
        ((TICK_S + 0.9 * STILL_S, 0.0, TICK_S + 0.9 * STILL_S), ""),
        ((5.0, 4.0, 5.0), ""),  # a call that holds the interpreter lock works, and is the backend's own
        ((5.0, 0.1, 5.0), "stood still for 5 s"),
        ((-2.0, 0.0, TICK_S), "went back by 2 s"),
        ((TICK_S, 0.0, 60.0), "suspended"),
    ],
)
def test_a_process_that_stood_still_is_a_finding(later: tuple[float, float, float], finding: str) -> None:
    watch = Readings([(0.0, 0.0, 0.0), later, (9.0, 9.0, 9.0)]).watch()
    watch.look()
    assert finding in watch.finding
    first = watch.finding
    watch.look()
    assert not first or watch.finding == first


def test_a_thread_waits_for_its_request_and_takes_the_next_at_once_when_it_is_late() -> None:
    clock, samples = VirtualClock(), array("d")
    line = Arrivals([1.0, 1.5, 9.0])
    while turn(line, lambda: clock.wait(1.0), clock, samples):
        pass
    assert samples.tolist() == [1.0, 1.0, 2.0, 1.0, 1.5, 2.0, 3.0, 0.0, 9.0, 9.0, 10.0, 1.0]


def test_a_line_that_was_stopped_hands_out_nothing() -> None:
    for line in (Arrivals([0.0, 1.0]), Clients(2, 0.0, 10.0)):
        assert line.take() == 0.0
        line.stop()
        assert line.take() is None
    waiting = Arrivals([100.0])
    clock = Jumping(1.0, 0.0)
    stopping = Stopping(waiting, clock)
    assert not turn(waiting, lambda: None, stopping, array("d"))


class Stopping:
    """A clock in whose first wait the line is stopped."""

    def __init__(self, line: Arrivals, clock: VirtualClock) -> None:
        self._line, self._clock = line, clock

    def now(self) -> float:
        return self._clock.now()

    def wait(self, seconds: float) -> None:
        self._line.stop()
        self._clock.wait(seconds)


def test_requests_are_served_in_real_time() -> None:
    made: list[float] = []
    arrivals_s = np.linspace(0.0, 0.2, 41)
    served = serve(
        Demand(duration_s=0.2, arrivals_s=arrivals_s), [lambda: made.append(time.perf_counter())], settle_s=0.0
    )
    assert len(made) == 42  # one unrecorded call before
    assert np.allclose(served.intended_s, arrivals_s)
    assert np.all(served.started_s >= served.intended_s)
    assert np.all(served.ended_s >= served.started_s)
    assert np.all(np.diff(served.started_s) >= 0.0)


def test_calls_of_several_workers_run_at_the_same_time() -> None:
    meeting, met = threading.Barrier(3), threading.Event()

    def meets() -> None:
        if not met.is_set():
            meeting.wait(60.0)
            met.set()

    served = serve(Demand(duration_s=0.1, clients=3), [meets] * 3, settle_s=0.0)
    assert met.is_set()
    assert len(served.intended_s) >= 3


@pytest.mark.parametrize("place", [0, 1])
def test_what_a_call_raises_ends_the_test(place: int) -> None:
    count = iter(range(1_000))

    def fails() -> None:
        if next(count) == 3:
            raise ValueError("no more")

    steps = [lambda: time.sleep(0.001)] * 2
    steps[place] = fails
    with pytest.raises(ValueError, match="no more"):
        serve(Demand(duration_s=600.0, clients=2), steps, settle_s=0.0)
    with pytest.raises(ZeroDivisionError):
        serve(Demand(duration_s=600.0, clients=2), [lambda: 1 / 0] * 2, settle_s=0.0)


def test_the_real_clock_moves_on() -> None:
    clock = RealClock()
    before = clock.now(), calendar_s()
    with punctual():
        clock.wait(0.002)
        clock.wait(0.0)
    assert clock.now() > before[0]
    assert calendar_s() > before[1]
