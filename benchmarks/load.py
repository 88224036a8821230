"""Does `crosshead load` queue as queueing theory says, and does it show what a waiting client hides?

    .venv/bin/python benchmarks/load.py [--seconds 40] [--call-ms 3]

1. By a virtual clock, where a call takes the same time always: the mean queueing time against that of M/D/1,
   u S / (2 (1 - u)), at 50, 70 and 90 % utilisation, over several draws.
2. By the same clock, one call of 200 ms among calls of 1 ms: percentiles from the intended send time, and from the
   actual one, as a client has them that waits for its answer.
3. In real time, the `fake` backend in a worker of its own, which sleeps in each call: the same against M/D/1 at the
   service time and the rate that were measured, at 50 and 70 %; and against the wait that the very same arrivals have
   at a server without any disturbance, which takes the luck of the draw out.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crosshead.harness import LoadFinished, LoadPlan, Plan, export, load
from crosshead.results import LoadPointRecord, LoadSamples, read_load_samples
from crosshead.runtimes import Settings
from crosshead.runtimes.load import Demand, serve_in_turns
from crosshead.runtimes.load_clock import VirtualClock

Floats = NDArray[np.float64]

CALL_S = 1e-3
VIRTUAL_LIMIT, REAL_LIMIT = 0.03, 0.15
STALL_S, STALLED = 0.2, 5_000


def main() -> None:
    """Print the three comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each real load")
    parser.add_argument("--call-ms", type=float, default=3.0, help="sleep of a real call")
    given = parser.parse_args()
    virtual()
    stall()
    real(given.seconds, given.call_ms * 1e-3)


def md1_s(busy: float, call_s: float) -> float:
    """Return the mean queueing time of M/D/1."""
    return busy * call_s / (2.0 * (1.0 - busy))


def arrivals(busy: float, count: int, seed: int) -> Floats:
    """Return Poisson arrivals that keep one server busy for this share of the time."""
    return np.cumsum(np.random.default_rng(seed).exponential(CALL_S / busy, count))


def virtual() -> None:
    """Compare with M/D/1 by a virtual clock."""
    print("virtual clock: mean queueing time over that of M/D/1")
    for busy, count in ((0.5, 300_000), (0.7, 400_000), (0.9, 1_000_000)):
        ratios = []
        for seed in range(5):
            times_s = arrivals(busy, count, seed)
            served = serve_in_turns(
                Demand(duration_s=float(times_s[-1]), arrivals_s=times_s), [lambda clock: clock.wait(CALL_S)]
            )
            ratios.append(float((served.started_s - served.intended_s).mean()) / md1_s(busy, CALL_S))
        off = max(abs(ratio - 1.0) for ratio in ratios)
        shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
        print(f"    {busy:.0%} busy   {shown}   {count:,} requests a draw   {word(off, VIRTUAL_LIMIT)}")


def stall() -> None:
    """Show a stall from the intended and from the actual send time."""
    number = iter(range(10**9))

    def step(clock: VirtualClock) -> None:
        clock.wait(STALL_S if next(number) == STALLED else CALL_S)

    times_s = arrivals(0.5, 2 * STALLED, 0)
    served = serve_in_turns(Demand(duration_s=float(times_s[-1]), arrivals_s=times_s), [step])
    latency_s, service_s = served.ended_s - served.intended_s, served.ended_s - served.started_s
    print(
        f"\nvirtual clock: one call of {STALL_S * 1e3:.0f} ms in {len(times_s):,} of {CALL_S * 1e3:.0f} ms, 50 % busy"
    )
    for name, values in (("from the intended send time", latency_s), ("from the actual send time", service_s)):
        shown = "   ".join(f"p{100 * p:g} {np.quantile(values, p) * 1e3:7.2f} ms" for p in (0.5, 0.9, 0.99, 0.999))
        print(f"    {name:28} {shown}")


def real(seconds: float, call_s: float) -> None:
    """Compare a worker with M/D/1 in real time."""
    with tempfile.TemporaryDirectory() as folder:
        small = {"d_model": 32, "num_heads": 4}
        made = export(
            Plan(source="mha", options=small, forms=("standard",), batches=(1,), lengths=(8,), out=Path(folder))
        )

        def serve(budget_s: float, clients: tuple[int, ...], rates: tuple[float, ...]) -> LoadFinished:
            plan = Plan(
                source=str(made.folder),
                backends=("fake",),
                settings=Settings(fake={"sleep_s": call_s}),
                threads=1,
                time_budget_s=budget_s,
                out=Path(folder) / "loads",
            )
            return load(LoadPlan(plan=plan, clients=clients, rates_per_s=rates))

        (closed,) = serve(6.0, (1,), ()).record.cells[0].points
        if closed.service is None:
            raise SystemExit(f"the closed loop has no figures: {closed.reason}")
        best = 1.0 / closed.service.mean_s
        print(f"\nreal time: fake, a call takes {closed.service.mean_s * 1e3:.3f} ms in a closed loop")
        finished = serve(2.0 * seconds, (), (0.5 * best, 0.7 * best))
        samples = read_load_samples(finished.folder)
        for place, point in enumerate(finished.record.cells[0].points):
            show(point, samples.get((0, place)))


def show(point: LoadPointRecord, samples: LoadSamples | None) -> None:
    """Print one real load against what it should be."""
    rate, offered = point.rate_per_s or 0.0, point.offered_per_s
    if point.service is None or point.queue is None or offered is None or samples is None:
        print(f"    {rate:.1f}/s: {point.status}, {point.reason}")
        return
    service_s, queue_s = point.service.mean_s, point.queue.mean_s
    busy = offered * service_s
    formula_s, same_s = md1_s(busy, service_s), undisturbed_s(samples, point.lead_s, service_s)
    off = abs(queue_s / formula_s - 1.0)
    print(
        f"    {rate:.1f}/s, {busy:.1%} busy, {point.requests:,} requests: a call {service_s * 1e3:.3f} ms, queueing "
        f"{queue_s * 1e3:.3f} ms\n"
        f"        over M/D/1, {formula_s * 1e3:.3f} ms                   {queue_s / formula_s:.3f}   "
        f"{word(off, REAL_LIMIT)}\n"
        f"        over M/G/1 by the calls that were measured {over(queue_s, point.expected_queue_s)}\n"
        f"        over the same arrivals, undisturbed        {queue_s / same_s:.3f}\n"
        f"        an idle worker takes up a request after    {(point.wake_median_s or 0.0) * 1e6:.0f} µs (median)"
    )


def over(value: float, against: float | None) -> str:
    """Return a ratio in words."""
    return "–" if not against else f"{value / against:.3f}"


def undisturbed_s(samples: LoadSamples, lead_s: float, call_s: float) -> float:
    """Return the mean wait of the same arrivals at a server whose calls all take the same time (Lindley 1952)."""
    free_s, waits = 0.0, []
    for arrival_s in samples.intended_s.tolist():
        waits.append(max(0.0, free_s - arrival_s))
        free_s = max(free_s, arrival_s) + call_s
    return float(np.array(waits)[samples.intended_s >= lead_s].mean())


def word(off: float, limit: float) -> str:
    """Say whether a ratio is as near to 1 as it is to be."""
    return f"within {limit:.0%}" if off <= limit else f"OFF by {off:.1%} (limit {limit:.0%})"


if __name__ == "__main__":
    main()
