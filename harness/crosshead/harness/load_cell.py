"""One (artifact, backend, case) under load: a worker is warmed up and then serves one load after the other."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import pack_arrays, unpack_arrays, write_whole
from crosshead.harness.accuracy import Limits, failure_record, launch, providers
from crosshead.harness.cells import Cell
from crosshead.harness.load_plan import LoadPlan, Objective
from crosshead.harness.load_schedule import MOST_REQUESTS, draw_seed, poisson_arrivals
from crosshead.harness.load_search import find_largest
from crosshead.harness.load_verdict import kept_rate, saturation
from crosshead.harness.surroundings import VOID_STEAL_SHARE
from crosshead.results import CellRecord, CpuTimes, samples_needed, scrub
from crosshead.results.load_objective import Bounds, judge, look_counts, looks
from crosshead.results.load_point import LoadSamples, figures
from crosshead.results.load_records import LoadCellRecord, LoadPointRecord, ObjectiveRecord
from crosshead.runtimes import BackendError, Worker, WorkerError
from crosshead.runtimes.load import most_left
from crosshead.runtimes.messages import Load, Loaded, Look

WARM_UP_SHARE, WARM_UP_LONGEST_S = 0.15, 3.0
"""The warm-up may take this share of a cell's budget, and no longer."""

LEAD_SHARE = 0.1
"""The first part of a load is served and not counted: it begins with an empty queue, as no busy server does."""

SETTLE_SHARE, SETTLE_LONGEST_S = 0.05, 0.2
"""Before each load every worker calls unrecorded for so long: threads start, caches warm."""

SEARCH_WEIGHT = 6
"""A search gets as much time as so many loads that were asked for."""

SHORTEST_CALLS = 2.0
"""A load that is to last no longer than so many calls is not begun."""

MORE_REQUESTS = 1.2
"""A load that is to decide an objective is planned for so many times the requests it takes if none is late."""

FULL_SHARE = 0.99
"""A load ends before its draw could hold more requests than can be kept."""

MOST_VOID = 2
"""A search ends when so many of its loads were void."""

Keep = Callable[..., None]


def begun(record: CellRecord) -> LoadCellRecord:
    """Return what is known of a cell before it was put under load."""
    names = ("artifact", "backend", "case", "threads", "status", "reason", "stderr_tail", "settings")
    return LoadCellRecord(**{name: getattr(record, name) for name in names})


class CellUnderLoad:
    """The loads of one cell, in turn."""

    def __init__(
        self,
        cell: Cell,
        plan: LoadPlan,
        *,
        limits: Limits,
        scratch: Path,
        budget_s: float,
        say: Callable[[str, float], None],
        keep: Keep,
    ) -> None:
        """Prepare.

        Args:
            cell: what serves.
            plan: which loads.
            limits: of the worker.
            scratch: takes schedules and times on their way.
            budget_s: seconds for the warm-up and all loads.
            say: told what goes on, and the seconds spent.
            keep: given the record after every load, and the times of that load.
        """
        self.spent_s = 0.0
        self._cell = cell
        self._plan = plan
        self._limits = limits
        self._scratch = scratch
        self._budget_s = budget_s
        self._say = say
        self._keep = keep
        self._together = cell.runtime.capabilities.calls_at_once
        self._call_s = 0.0
        self._why_stopped = ""

    def carry_out(self, record: LoadCellRecord) -> None:
        """Serve every load of the plan; what goes wrong ends this cell alone.

        Args:
            record: of `begun`.
        """
        self._record = record
        if (self._plan.workers or 1) > 1 and not self._together:
            reason = f"{self._cell.runtime.name} takes one call at a time; leave --workers out"
            self._keep(msgspec.structs.replace(record, status="unsupported", reason=reason))
            return
        try:
            with launch(self._cell, self._limits) as worker:
                self._warm_up(worker)
                self._serve_all(worker)
        except (BackendError, WorkerError) as error:
            failed = failure_record(self._cell, error)
            self._update(status=failed.status, reason=failed.reason, stderr_tail=failed.stderr_tail)
            return
        self._conclude()

    def _update(self, samples: LoadSamples | None = None, **fields: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **fields)
        self._keep(self._record, samples)

    def _warm_up(self, worker: Worker) -> None:
        self._say("starting", 0.0)
        worker.start()
        opened = worker.opened()
        self._say("warming up", 0.0)
        began = time.perf_counter()
        limit_s = min(WARM_UP_LONGEST_S, WARM_UP_SHARE * self._budget_s)
        warm = worker.warm_up(self._cell.artifact.inputs_path(self._cell.case), limit_s)
        self.spent_s += time.perf_counter() - began - (warm.compile_s or 0.0)
        self._call_s = warm.call_s
        self._update(
            details={name: scrub(text) for name, text in opened.details.items()},
            placement=providers(opened.placement),
            first_call_s=warm.first_call_s,
            call_s=warm.call_s,
            steady=warm.steady,
            peak_rss_bytes=opened.peak_rss_bytes,
        )

    # --- which loads

    def _serve_all(self, worker: Worker) -> None:
        asked, search = self._plan, self._plan.searches
        closed = [(clients, True) for clients in asked.clients] or ([(1, False)] if search else [])
        workers = asked.workers or 1
        if search and all(clients != workers for clients, _ in closed):
            closed.append((workers, False))  # what the server can do at its best
        to_do = len(closed) + len(asked.rates_per_s)
        number = 0
        for clients, given in closed:
            self._point(worker, number, self._share_s(to_do), given=given, clients=clients)
            number, to_do = number + 1, to_do - 1
        for rate in asked.rates_per_s:
            self._point(worker, number, self._share_s(to_do), given=True, rate=rate)
            number, to_do = number + 1, to_do - 1
        if search:
            self._search(worker, number, workers)

    def _share_s(self, to_do: int) -> float:
        """Return what each load still to be served may take."""
        weight = to_do + (SEARCH_WEIGHT if self._plan.searches else 0)
        return max(0.0, self._budget_s - self.spent_s) / weight

    def _search(self, worker: Worker, number: int, workers: int) -> None:
        probes = [point for point in self._record.points if point.clients == workers and point.throughput_per_s]
        if not probes or probes[0].throughput_per_s is None:
            self._why_stopped = "what the server can do at its best is not known; see its loads"
            return
        step_s = self._share_s(0)
        quantiles = [objective.quantile for objective in self._plan.objectives]
        least = max([samples_needed(p) for p in quantiles], default=0)
        void = 0

        def attempt(rate: float) -> bool | None:
            nonlocal number, void
            left_s = self._budget_s - self.spent_s
            needed_s = least / (rate * (1.0 - LEAD_SHARE))
            duration_s = min(left_s / (1.0 + SETTLE_SHARE), max(step_s, MORE_REQUESTS * needed_s))
            if left_s < 0.5 * step_s or duration_s < needed_s:
                if duration_s < needed_s:
                    self._why_stopped = (
                        f"the time left was too short for the {least} requests that this objective takes at "
                        f"{rate:.3g} requests/s: give a longer --time-budget"
                    )
                return None
            point = self._point(worker, number, duration_s, given=False, rate=rate)
            number += 1
            if point.status == "too-short":
                self._why_stopped = point.reason
                return None
            if point.status == "void":
                void += 1
                return attempt(rate) if void < MOST_VOID else None
            return point.status == "ok" and all(objective.verdict == "met" for objective in point.objectives)

        find_largest(attempt, probes[0].throughput_per_s)

    # --- one load

    def _point(
        self,
        worker: Worker,
        number: int,
        duration_s: float,
        *,
        given: bool,
        clients: int | None = None,
        rate: float | None = None,
    ) -> LoadPointRecord:
        """Serve one load, and add what came of it to the record."""
        duration_s /= 1.0 + SETTLE_SHARE
        if rate is not None:
            duration_s = min(duration_s, FULL_SHARE * MOST_REQUESTS / rate)
        self._say(f"a closed loop of {clients}" if clients is not None else f"{rate:.4g} requests/s", self.spent_s)
        workers = self._plan.workers or (clients if clients is not None and self._together else 1)
        point = LoadPointRecord(
            loop="open" if clients is None else "closed",
            given=given,
            clients=clients,
            rate_per_s=rate,
            workers=workers if clients is None else min(workers, clients),
            seed=draw_seed(self._plan.plan.seed, number) if clients is None else None,
            status="ok",
            duration_s=duration_s,
            lead_s=LEAD_SHARE * duration_s,
        )
        began, samples = time.perf_counter(), None
        try:
            point, samples = self._serve(worker, point)
        except (BackendError, WorkerError) as error:
            point = _without_figures(point, "failed", failure_record(self._cell, error).reason, self._plan.objectives)
            raise
        finally:
            self.spent_s += time.perf_counter() - began
            if point.status != "ok" or samples is not None:
                self._update(samples, points=[*self._record.points, point])
        return point

    def _serve(self, worker: Worker, point: LoadPointRecord) -> tuple[LoadPointRecord, LoadSamples | None]:
        objectives = self._plan.objectives
        if point.duration_s - point.lead_s < SHORTEST_CALLS * self._call_s:
            reason = (
                f"{point.duration_s:.3g} s are too short for calls of {self._call_s:.3g} s: give a longer --time-budget"
            )
            return _without_figures(point, "too-short", reason, objectives), None
        arrivals_s = None
        bounds: list[list[Bounds]] = [[] for _ in objectives]
        if point.rate_per_s is not None and point.seed is not None:
            arrivals_s = poisson_arrivals(point.rate_per_s, point.duration_s, point.seed)
            expected = int(np.count_nonzero(arrivals_s >= point.lead_s))
            if not expected:
                reason = (
                    f"at {point.rate_per_s:g} requests/s none came within {point.duration_s:.3g} s: "
                    "give a longer --time-budget or a higher --rate"
                )
                return _without_figures(point, "too-short", reason, objectives), None
            if objectives:
                counts = look_counts(expected, [objective.quantile for objective in objectives])
                bounds = [looks(counts, objective.quantile) for objective in objectives]
        before = CpuTimes()
        loaded, samples = self._ask(worker, point, arrivals_s, bounds)
        stolen = CpuTimes().steal_share(before) or 0.0
        self._record = msgspec.structs.replace(
            self._record, peak_rss_bytes=max(loaded.peak_rss_bytes, self._record.peak_rss_bytes or 0)
        )
        point = msgspec.structs.replace(
            point, window_s=loaded.window_s, stopped_early=loaded.stopped == "decided", unanswered=loaded.left
        )
        if loaded.finding or stolen > VOID_STEAL_SHARE:
            theirs = f"{stolen:.0%} of the processors' time went to other guests of this host"
            return _without_figures(point, "void", loaded.finding or theirs, objectives), samples
        return _with_figures(point, samples, loaded, arrivals_s, objectives, bounds), samples

    def _ask(
        self,
        worker: Worker,
        point: LoadPointRecord,
        arrivals_s: NDArray[np.float64] | None,
        bounds: Sequence[Sequence[Bounds]],
    ) -> tuple[Loaded, LoadSamples]:
        times, schedule = self._scratch / "times.npz", self._scratch / "schedule.npz"
        if arrivals_s is not None:
            write_whole(schedule, pack_arrays({"intended_s": arrivals_s}))
        request = Load(
            samples=str(times),
            workers=point.workers,
            duration_s=point.duration_s,
            settle_s=min(SETTLE_LONGEST_S, SETTLE_SHARE * point.duration_s),
            arrivals=None if arrivals_s is None else str(schedule),
            clients=point.clients or 0,
            lead_s=point.lead_s,
            limits_s=[objective.limit_s for objective in self._plan.objectives],
            looks=[
                Look(
                    count=at[0].requests,
                    most_over=[bound.most_over for bound in at],
                    least_over=[bound.least_over for bound in at],
                )
                for at in zip(*bounds, strict=True)
            ],
        )
        loaded = worker.load(request)
        read: dict[str, Any] = dict(unpack_arrays(times))
        return loaded, LoadSamples(**read)

    def _conclude(self) -> None:
        points = self._record.points
        useful = [point for point in points if point.status in ("ok", "saturated")]
        status = "ok" if useful else "void"
        reason = "" if useful else next((point.reason for point in points), "no load was tried")
        rated = self._plan.searches or any(point.loop == "open" for point in points)
        self._update(
            status=status,
            reason=reason,
            saturation=saturation(points),
            kept=kept_rate(points, self._why_stopped) if self._plan.objectives and rated else None,
        )


def _without_figures(
    point: LoadPointRecord, status: str, reason: str, objectives: Sequence[Objective]
) -> LoadPointRecord:
    undecided = [
        ObjectiveRecord(
            name=objective.name,
            limit_s=objective.limit_s,
            verdict="undecided",
            missing_samples=samples_needed(objective.quantile),
        )
        for objective in objectives
    ]
    nothing = {"window_s": None, "unanswered": 0, "stopped_early": False}
    return msgspec.structs.replace(point, status=status, reason=reason, objectives=undecided, **nothing)


def _with_figures(
    point: LoadPointRecord,
    samples: LoadSamples,
    loaded: Loaded,
    arrivals_s: NDArray[np.float64] | None,
    objectives: Sequence[Objective],
    bounds: Sequence[Sequence[Bounds]],
) -> LoadPointRecord:
    try:
        found = figures(
            samples,
            lead_s=point.lead_s,
            window_s=loaded.window_s,
            workers=point.workers,
            open_loop=arrivals_s is not None,
        )
    except ValueError:
        reason = f"no request was answered within {loaded.window_s:.3g} s: give a longer --time-budget"
        return _without_figures(point, "too-short", reason, objectives)
    latencies_s = samples.counted(point.lead_s).latency_s.tolist()
    judged = [
        judge(objective.name, objective.quantile, objective.limit_s, latencies_s, at)
        for objective, at in zip(objectives, bounds, strict=True)
    ]
    status, reason = "ok", ""
    if arrivals_s is not None:
        sent = int(np.count_nonzero(arrivals_s <= loaded.window_s))
        counted = int(np.count_nonzero((arrivals_s >= point.lead_s) & (arrivals_s <= loaded.window_s)))
        found["offered_per_s"] = counted / (loaded.window_s - point.lead_s)
        if loaded.left > most_left(sent, point.workers):
            status = "saturated"
            reason = (
                f"{loaded.left} of {sent} requests were not answered by the end: they come faster than they are "
                "answered, and latency grows for as long as one looks"
            )
            found |= {"latency": None, "queue": None, "expected_queue_s": None}
            judged = [msgspec.structs.replace(one, verdict="missed", missing_samples=0) for one in judged]
    return msgspec.structs.replace(point, status=status, reason=reason, objectives=judged, **found)
