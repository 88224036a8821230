"""Latency of many cells: several worker processes each, one awake at a time, in turns of shuffled order.

How it is done, and why, stands in docs/method.md, "Set-up that does not lie". In short: every (cell, process) is a
worker of its own, stopped (SIGSTOP) when it is not its turn, so that no spinning thread of one runtime runs beside
another; a turn first calls unrecorded, since a woken process finds its caches cold; rounds go on until every cell's
interval is narrow or the budget is spent.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

import msgspec
import psutil

from crosshead.harness.accuracy import Limits, failure_record, launch
from crosshead.harness.cells import Cell
from crosshead.harness.phases import Phases
from crosshead.harness.plan import default_threads
from crosshead.harness.surroundings import read_surroundings, together, turn_row, why_void
from crosshead.results import (
    CellRecord,
    LatencyRecord,
    Notice,
    PeakRecord,
    SurroundingsRecord,
    TurnRow,
    latency_record,
    median_interval,
    sample_notices,
)
from crosshead.runtimes import CAN_PAUSE, BackendError, Opened, Peaked, VoidError, Warm, Worker, WorkerError

ROUNDS = 4
"""Rounds that a budget is cut into at first; what is left over goes into more."""

RECORDED_SHARE = 0.5
"""Warming up counts for the budget, but so much of the budget is left for turns whatever it takes."""

SHORTEST_TURN_S, LONGEST_TURN_S = 0.05, 0.5
SETTLE_SHARE = 0.25
WARM_UP_SHORTEST_S, WARM_UP_LONGEST_S = 1.0, 3.0
"""A process that does not come to a steady state is given up after its share of the budget, within these limits."""

PEAK_S = 0.15
"""Seconds of products, and of copying, by which the machine's peaks are found."""

MOST_TOGETHER = 8
"""Workers that come up at a time, at most: half as many as there are cores, and two at least."""

SETTLED = 0.01
MEMORY_SHARE = 0.6
"""Workers alive together may hold this share of the memory that is free."""


@dataclass
class Replica:
    """One timed process of a cell."""

    cell: int
    process: int
    worker: Worker
    opened: Opened | None = None
    warm: Warm | None = None
    samples_s: list[float] = field(default_factory=list)
    turns: list[TurnRow] = field(default_factory=list)
    peak_rss_bytes: int = 0


def _wait_until_open(replica: Replica) -> float | Exception:
    """Wait until a started worker is open, and stop it; return the seconds of the wait, or why it came to nothing."""
    began = time.perf_counter()
    try:
        replica.opened = replica.worker.opened()
        replica.worker.pause()
    except (BackendError, WorkerError) as error:
        return error
    return time.perf_counter() - began


@dataclass
class CellTiming:
    """What was measured of one cell so far."""

    cell: Cell
    replicas: list[Replica] = field(default_factory=list)
    failure: CellRecord | None = None

    def timed(self) -> list[Replica]:
        """Return the processes that have samples."""
        return [replica for replica in self.replicas if replica.samples_s]

    def medians_s(self) -> list[float]:
        """Return the median of each timed process, seconds a call."""
        return [statistics.median(replica.samples_s) for replica in self.timed()]

    def surroundings(self) -> SurroundingsRecord:
        """Return what went on around its turns."""
        return together([row for replica in self.timed() for row in replica.turns])

    def why_void(self) -> str:
        """Return why its times mean nothing; empty when they stand."""
        return why_void(self.surroundings(), self.cell.settings.threads, psutil.cpu_count() or 1)

    def settled(self, processes: int) -> bool:
        """Whether the interval of the median is within ±1 %, with every process heard."""
        medians = self.medians_s()
        interval = median_interval(medians)
        if interval is None or len(medians) < processes:
            return False
        middle = statistics.median(medians)
        return max(interval[1] / middle - 1.0, 1.0 - interval[0] / middle) <= SETTLED


class Timing:
    """The measuring of a run. What is finished stays readable when `measure` is interrupted."""

    def __init__(
        self,
        cells: Sequence[Cell],
        *,
        processes: int,
        budget_s: float,
        seed: int,
        limits: Limits,
        worker_bytes: Sequence[int],
        on_progress: Callable[[str, float], None],
        phases: Phases | None = None,
    ) -> None:
        """Prepare.

        Args:
            cells: what to time.
            processes: worker processes a cell.
            budget_s: seconds of measuring, all cells together, warm-ups included.
            seed: of the order of starts and turns.
            limits: of one worker.
            worker_bytes: resident size of a worker of each cell, as seen at its first visit.
            on_progress: told what goes on, and the share of the whole (0 to 1) that is done.
            phases: told where the time went.
        """
        self.timings = [CellTiming(cell) for cell in cells]
        self.peaks: dict[str, PeakRecord] = {}
        self._processes = processes
        self._budget_s = budget_s
        self._random = random.Random(seed)
        self._limits = limits
        self._worker_bytes = worker_bytes
        self._on_progress = on_progress
        self._phases = phases if phases is not None else Phases()
        self._together = max(2, min(MOST_TOGETHER, default_threads() // 2))
        self._starts: list[tuple[float, Replica]] = []
        self._asked_for_peaks: set[tuple[str, str]] = set()
        self._measured_s = 0.0
        self._warmed_s = 0.0
        self._began_s = 0.0

    def measure(self) -> None:
        """Time every cell, then find out what the machine can do; a worker that fails ends its own cell alone."""
        self._began_s = time.perf_counter()
        waves = self._waves()
        for number, wave in enumerate(waves):
            with ExitStack() as stack:
                for replica in wave:
                    stack.callback(replica.worker.close)
                self._open(wave)
                self._warm_up(wave)
                until_s = self._budget_s * (number + 1) / len(waves) - self._warmed_s
                least_s = self._measured_s + RECORDED_SHARE * self._budget_s / len(waves)
                self._rounds(wave, until_s=max(until_s, least_s))
                self._find_peaks(wave)

    def _waves(self) -> list[list[Replica]]:
        """Cut all processes into groups that fit into memory together; where nothing can be stopped, one at a time."""
        free = psutil.virtual_memory().available * MEMORY_SHARE
        waves: list[list[Replica]] = []
        used = 0.0
        for process in range(self._processes):
            order = list(range(len(self.timings)))
            self._random.shuffle(order)
            for index in order:
                cell = self.timings[index].cell
                replica = Replica(index, process, launch(cell, self._limits))
                self.timings[index].replicas.append(replica)
                size = self._worker_bytes[index]
                if not waves or not CAN_PAUSE or used + size > free:
                    waves.append([])
                    used = 0.0
                waves[-1].append(replica)
                used += size
        return waves

    def _alive(self, replicas: Iterable[Replica]) -> list[Replica]:
        return [replica for replica in replicas if self.timings[replica.cell].failure is None]

    def _fail(self, replica: Replica, error: Exception) -> None:
        timing = self.timings[replica.cell]
        if timing.failure is not None:  # another process of the cell came first, and this one was closed with it
            return
        timing.failure = failure_record(timing.cell, error)
        for other in timing.replicas:
            other.worker.close()

    def _open(self, wave: Sequence[Replica]) -> None:
        """Start workers, a few at a time: nothing is timed meanwhile, and a start keeps about one core busy."""
        pending = [*wave][::-1]
        coming_up: dict[Future[float | Exception], Replica] = {}
        began = time.perf_counter()
        with ThreadPoolExecutor(self._together) as pool, self._phases.during("workers_start"):
            try:
                while pending or coming_up:
                    while pending and len(coming_up) < self._together:
                        replica = pending.pop()
                        if not self._alive([replica]):
                            continue
                        try:
                            replica.worker.start()  # here, since the kernel ties a child to the thread that made it
                        except WorkerError as error:
                            self._fail(replica, error)
                        else:
                            coming_up[pool.submit(_wait_until_open, replica)] = replica
                    done, _ = wait(coming_up, return_when=FIRST_COMPLETED)
                    for future in done:
                        replica, spent = coming_up.pop(future), future.result()
                        if isinstance(spent, Exception):
                            self._fail(replica, spent)
                        else:
                            self._starts.append((spent, replica))
                        self._on_progress("starting workers", self._share())
            except BaseException:
                for replica in coming_up.values():
                    replica.worker.close()  # ends the wait in the pool's threads
                raise
        self._share_out_starts(time.perf_counter() - began)

    def _share_out_starts(self, wall_s: float) -> None:
        """Share the wall time of the starts out by what the workers say they spent."""
        spent_s = sum(spent for spent, _ in self._starts)
        parts = {"workers_import": 0.0, "workers_session": 0.0}
        for _, replica in self._starts:
            if replica.opened is not None and spent_s > 0.0:
                parts["workers_import"] += wall_s * replica.opened.import_s / spent_s
                parts["workers_session"] += wall_s * replica.opened.session_s / spent_s
        self._starts.clear()
        self._phases.share_out("workers_start", parts)

    def _warm_up(self, wave: Sequence[Replica]) -> None:
        workers = self._processes * len(self.timings)
        limit_s = min(WARM_UP_LONGEST_S, max(WARM_UP_SHORTEST_S, self._budget_s / workers))
        order = list(wave)
        self._random.shuffle(order)
        for replica in order:
            timing = self.timings[replica.cell]
            if timing.failure is not None:
                continue
            began, compile_s = time.perf_counter(), 0.0
            try:
                replica.worker.resume()
                with self._phases.during("warm_up"):
                    replica.warm = replica.worker.warm_up(timing.cell.artifact.inputs_path(timing.cell.case), limit_s)
                    replica.worker.pause()
                compile_s = replica.warm.compile_s or 0.0
                self._phases.share_out("warm_up", {"compile": compile_s})
                self._check_budget(replica.warm)
            except (BackendError, WorkerError) as error:
                self._fail(replica, error)
            self._warmed_s += time.perf_counter() - began - compile_s
            self._on_progress("warming up", self._share())

    def _check_budget(self, warm: Warm) -> None:
        """Refuse to time a cell whose share of the budget holds no call.

        Raises:
            VoidError: it does not.
        """
        share_s = self._budget_s / len(self.timings)
        if warm.call_s > share_s:
            wanted_s = math.ceil(warm.call_s * self._processes * len(self.timings) / RECORDED_SHARE)
            raise VoidError(
                f"one call takes {warm.call_s:.3g} s, and of the time budget of {self._budget_s:g} s this cell has "
                f"{share_s:.3g} s; give --time-budget {wanted_s} or more"
            )

    def _rounds(self, wave: Sequence[Replica], until_s: float) -> None:
        """Take turns until the budget is spent; every process gets at least one."""
        start_s = self._measured_s
        heard: set[int] = set()
        while True:
            replicas = self._alive(wave)
            if heard:
                replicas = [replica for replica in replicas if not self.timings[replica.cell].settled(self._processes)]
            if not replicas:
                return
            share = (until_s - start_s) / (ROUNDS * len(replicas))
            turn_s = min(LONGEST_TURN_S, max(SHORTEST_TURN_S, share))
            self._random.shuffle(replicas)
            for replica in replicas:
                if self._measured_s >= until_s and id(replica) in heard:
                    continue
                self._turn(replica, turn_s)
                heard.add(id(replica))
            if self._measured_s >= until_s:
                return

    def _turn(self, replica: Replica, turn_s: float) -> None:
        if self.timings[replica.cell].failure is not None:
            return
        began = time.perf_counter()
        on_gpu = self.timings[replica.cell].cell.runtime.capabilities.device == "cuda"
        try:
            with self._phases.during("measure"):
                before = read_surroundings(replica.worker.pid, on_gpu=on_gpu)
                replica.worker.resume()
                measured = replica.worker.measure(SETTLE_SHARE * turn_s, (1.0 - SETTLE_SHARE) * turn_s)
                replica.worker.pause()
                after = read_surroundings(replica.worker.pid, on_gpu=on_gpu)
        except (BackendError, WorkerError) as error:
            self._fail(replica, error)
        else:
            replica.samples_s += measured.samples_s
            row = turn_row(before, after, began_s=began - self._began_s, samples=len(measured.samples_s))
            replica.turns.append(row)
            replica.peak_rss_bytes = measured.peak_rss_bytes
        self._measured_s += time.perf_counter() - began
        self._on_progress("measuring", self._share())

    def _find_peaks(self, wave: Sequence[Replica]) -> None:
        """Ask one worker of each backend and precision what the machine can do; the best answers are its peaks.

        After the turns: the arrays for copying would count as the peak memory of the worker.
        """
        for replica in self._alive(wave):
            cell = self.timings[replica.cell].cell
            precision = cell.artifact.manifest.precision
            if (cell.runtime.name, precision) in self._asked_for_peaks:
                continue
            self._asked_for_peaks.add((cell.runtime.name, precision))
            self._on_progress("finding the machine's peaks", self._share())
            try:
                with self._phases.during("peaks"):
                    found = replica.worker.peak(PEAK_S)
                    replica.worker.pause()
            except (BackendError, WorkerError):  # its times stand; they are held against the others' peaks
                replica.worker.close()
                continue
            if found.flop_s is None and found.copy_bytes_s is None:
                continue
            known = self.peaks.get(precision, PeakRecord(precision=precision, threads=cell.settings.threads))
            self.peaks[precision] = _better(known, found, cell.runtime.name)

    def _share(self) -> float:
        return min(1.0, (self._warmed_s + self._measured_s) / self._budget_s)

    def latency(
        self,
        timing: CellTiming,
        visited: Opened | None,
        compile_s: float | None = None,
    ) -> LatencyRecord | None:
        """Return the latency of a cell; None where no process of it was measured.

        Args:
            timing: the cell.
            visited: its first visit, for the cold start of a worker that opened with nothing beside it.
            compile_s: seconds of compiling in its first visit, where the backend compiles.
        """
        timed = timing.timed()
        if not timed:
            return None
        case = timing.cell.artifact.case(timing.cell.case)
        warms = [replica.warm for replica in timed if replica.warm is not None]
        cold = visited or timed[0].opened
        copies = [(warm.host_to_device_s, warm.device_to_host_s) for warm in warms]
        return latency_record(
            [replica.samples_s for replica in timed],
            calls_per_sample=max(warm.calls_per_sample for warm in warms),
            first_call_s=statistics.median(warm.first_call_s for warm in warms),
            session_s=cold.session_s if cold is not None else 0.0,
            import_s=cold.import_s if cold is not None else 0.0,
            steady=all(warm.steady for warm in warms),
            settled=timing.settled(self._processes),
            host_to_device_s=_median_or_none([to for to, _ in copies]),
            device_to_host_s=_median_or_none([back for _, back in copies]),
            compile_s=compile_s,
            compile_cached_s=_median_or_none([warm.compile_s for warm in warms]),
            flops=case.flops,
            moved_bytes=case.moved_bytes,
            peak=self.peaks.get(timing.cell.artifact.manifest.precision),
            surroundings=timing.surroundings(),
        )

    def notices(self) -> list[Notice]:
        """Say what disturbed the measuring."""
        found = []
        void = [timing for timing in self.timings if timing.timed() and timing.why_void()]
        if void:
            where = ", ".join(f"{timing.cell.label} {timing.cell.case}" for timing in void)
            found.append(Notice(code="noisy-machine", message=f"void: {void[0].why_void()}", where=where))
        by_code: dict[str, list[Notice]] = {}
        for timing in self.timings:
            where = f"{timing.cell.label} {timing.cell.case}"
            on_gpu = timing.cell.runtime.capabilities.device == "cuda"
            samples_s = [replica.samples_s for replica in timing.timed()]
            for notice in sample_notices(samples_s, where=where, on_gpu=on_gpu):
                by_code.setdefault(notice.code, []).append(notice)
        return found + [_together(notices) for notices in by_code.values()]


def _better(known: PeakRecord, found: Peaked, backend: str) -> PeakRecord:
    """Return the higher of each peak."""
    if found.flop_s is not None and found.flop_s / 1e9 > (known.gflop_s or 0.0):
        known = msgspec.structs.replace(known, gflop_s=found.flop_s / 1e9, backend=backend)
    if found.copy_bytes_s is not None and found.copy_bytes_s / 1e9 > (known.gbyte_s or 0.0):
        known = msgspec.structs.replace(known, gbyte_s=found.copy_bytes_s / 1e9)
    return known


def _together(notices: Sequence[Notice]) -> Notice:
    """Say once what holds for several cells, with the figures of the first."""
    first = notices[0]
    if len(notices) == 1:
        return first
    where = ", ".join(notice.where for notice in notices)
    return Notice(code=first.code, message=f"in {len(notices)} cells; of the first: {first.message}", where=where)


def _median_or_none(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
