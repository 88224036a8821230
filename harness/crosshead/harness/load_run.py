"""`crosshead load`: every (artifact, backend) in one worker process, under one load after the other.

Clients and server run inside the worker (`crosshead.runtimes.load`); here it is decided which loads are tried, for how
long, and what follows from what came back.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from crosshead.harness.accuracy import Limits
from crosshead.harness.axes import AxesProof
from crosshead.harness.cells import Cell, choose_backends, make_cells
from crosshead.harness.load_cell import CellUnderLoad, begun
from crosshead.harness.load_plan import LoadPlan
from crosshead.harness.load_verdict import overall_load
from crosshead.harness.pipeline import Progress, artifact_record, library_versions, silent, thread_notices
from crosshead.harness.sources import ARTIFACTS, prepare
from crosshead.results import Notice, environment_notices, new_run_id, read_environment
from crosshead.results.load_markdown import load_summary
from crosshead.results.load_point import LoadSamples
from crosshead.results.load_records import LoadCellRecord, LoadPlanRecord, LoadRecord
from crosshead.results.load_store import LoadStore
from crosshead.runtimes import Runtime


@dataclass(frozen=True)
class LoadFinished:
    """What a load test leaves.

    Attributes:
        record: as it stands in `load.json`.
        folder: the test's folder.
        interrupted: whether the person stopped it (Ctrl-C); loads that were finished are in the record.
        by_name: backends that were asked for by name.
    """

    record: LoadRecord
    folder: Path
    interrupted: bool
    by_name: frozenset[str]


def load(plan: LoadPlan, progress: Progress = silent) -> LoadFinished:
    """Export, serve requests on every backend, and say what latency each load has.

    Raises:
        RequestError, ExportError, RuntimesError, ResultsError: the request cannot be carried out; one line.
    """
    return _LoadTest(plan, progress).carry_out()


class _LoadTest:
    """One load test under way. The record is written after every load, so that what is finished is never lost."""

    def __init__(self, plan: LoadPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._settings = plan.plan.resolved_settings()
        self._began = time.perf_counter()
        self._cells: list[LoadCellRecord] = []
        self._notices: list[Notice] = []

    def carry_out(self) -> LoadFinished:
        plan = self._plan.plan
        backends, missing = choose_backends(plan.backends)
        if plan.source_kind == "module":
            plan.form_opsets()  # refuses before anything is written
        self._notices = [*missing, *thread_notices(self._settings)]
        self._record = self._first_record(backends)
        self._store = LoadStore.create(plan.out, self._record.id, self._record)
        by_name = frozenset(runtime.name for runtime, named in backends if named)
        try:
            with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch:
                self._work(backends, Path(scratch))
        except KeyboardInterrupt:
            self._notices.append(Notice(code="interrupted", message="stopped before the end"))
            self._update()
            self._store.write_summary(load_summary(self._record))
            return LoadFinished(self._record, self._store.path, True, by_name)
        except BaseException:
            if not self._record.artifacts:
                self._store.discard()  # nothing was made: leave nothing behind
            raise
        return LoadFinished(self._record, self._store.path, False, by_name)

    def _work(self, backends: Sequence[tuple[Runtime, bool]], scratch: Path) -> None:
        plan = self._plan.plan
        prepared = prepare(plan, self._store.path / ARTIFACTS, self._progress)
        self._notices += prepared.notices
        self._update(artifacts=[artifact_record(artifact, AxesProof()) for artifact in prepared.artifacts])
        cells, refused = make_cells(
            prepared.artifacts,
            backends,
            self._settings,
            source_folder=prepared.source_folder,
            cache_folder=scratch / "compiled",
            timed=True,
        )
        self._cells = [begun(record) for record in refused]
        cells = [cell for cell in cells if cell.timed]
        self._notices += environment_notices(self._record.environment)
        budget_s, spent_s = plan.time_budget_s, 0.0
        for index, cell in enumerate(cells):
            spent_s += self._load_cell(cell, (budget_s - spent_s) / (len(cells) - index), spent_s / budget_s, scratch)
        self._update(finished=True, verdict=overall_load(self._record, searched=self._plan.searches))
        self._store.write_summary(load_summary(self._record))

    def _load_cell(self, cell: Cell, budget_s: float, done_share: float, scratch: Path) -> float:
        """Put one cell under every load, and return the seconds of its budget that were spent."""
        place, total_s = len(self._cells), self._plan.plan.time_budget_s
        self._cells.append(begun(cell.record(status="void", reason="it was stopped before any load was finished")))

        def say(what: str, spent_s: float) -> None:
            self._progress(f"{cell.label}, case {cell.case}: {what}", min(1.0, done_share + spent_s / total_s))

        def keep(record: LoadCellRecord, samples: LoadSamples | None = None) -> None:
            self._cells[place] = record
            if samples is not None:
                self._store.add_samples(place, len(record.points) - 1, samples)
            self._update()

        limits = Limits(self._plan.plan.cell_timeout_s, self._plan.plan.memory_limit_bytes)
        tested = CellUnderLoad(cell, self._plan, limits=limits, scratch=scratch, budget_s=budget_s, say=say, keep=keep)
        tested.carry_out(self._cells[place])
        return tested.spent_s

    def _update(self, **fields: object) -> None:
        record = msgspec.structs.replace(
            self._record,
            wall_s=time.perf_counter() - self._began,
            cells=list(self._cells),
            notices=list(self._notices),
            **fields,
        )
        self._store.update(record)
        self._record = self._store.record

    def _first_record(self, backends: Sequence[tuple[Runtime, bool]]) -> LoadRecord:
        asked, plan = self._plan, self._plan.plan
        now = datetime.now(UTC)
        name = Path(plan.source).name if plan.source_kind != "module" else plan.source.rsplit("/", 1)[-1]
        return LoadRecord(
            id=new_run_id(now, f"load-{name}"),
            crosshead=version("crosshead"),
            started=now.isoformat(timespec="seconds"),
            plan=LoadPlanRecord(
                source=name,
                options=dict(plan.options),
                backends=[runtime.name for runtime, _ in backends],
                clients=list(asked.clients),
                rates_per_s=list(asked.rates_per_s),
                search=asked.searches,
                objectives=[objective.text for objective in asked.objectives],
                workers=asked.workers,
                threads=self._settings.threads,
                time_budget_s=plan.time_budget_s,
                seed=plan.seed,
            ),
            environment=read_environment(library_versions(backends)),
            notices=self._notices,
        )
