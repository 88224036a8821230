"""What comes up ahead of its turn, and what must not: cold start is read with nothing beside."""

from collections.abc import Callable
from pathlib import Path

import pytest

from crosshead.export.artifact import Artifact
from crosshead.harness import visits as visits_module
from crosshead.harness.accuracy import Limits, launch
from crosshead.harness.cells import Cell
from crosshead.harness.phases import Phases
from crosshead.harness.visits import Visitor
from crosshead.runtimes import Settings, Worker, WorkerError, get_runtime

MakeCell = Callable[..., Cell]


@pytest.fixture
def make_cell(linear: Path) -> MakeCell:
    artifact = Artifact.load(linear / "linear")

    def make(case: str, *, timed: bool, **fake: object) -> Cell:
        settings = Settings(fake=fake)
        return Cell(artifact, get_runtime("fake"), case, settings, timed=timed, by_name=True)

    return make


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is done to workers, in order: `boot`, `start` or `close`, and which worker."""
    log: list[str] = []

    class Told(Worker):
        number = 0

        def boot(self) -> None:
            log.append(f"boot {self.number}")
            super().boot()

        def start(self) -> None:
            log.append(f"start {self.number}")
            super().start()

    def launched(cell: Cell, limits: Limits) -> Worker:
        plain = launch(cell, limits)
        plain.__class__ = Told
        plain.number = len({line.split()[1] for line in log})  # type: ignore[attr-defined]  # of the subclass
        return plain

    monkeypatch.setattr(visits_module, "launch", launched)
    return log


def visitor(tmp_path: Path, phases: Phases | None = None) -> Visitor:
    return Visitor(tmp_path, Limits(20.0, None), phases or Phases(), lambda step: None)


def test_of_a_timed_cell_only_the_interpreter_comes_up_ahead(
    said: list[str], make_cell: MakeCell, tmp_path: Path
) -> None:
    cells = [make_cell("1x3", timed=True), make_cell("2x5", timed=True)]
    with visitor(tmp_path) as made:
        for visited in made.visits(cells):
            assert visited.record.status == "ok"
            said.append("judged 0")
    assert said == ["start 0", "boot 0", "boot 1", "judged 0", "start 1", "judged 0"]


def test_a_cell_that_is_not_timed_loads_beside_the_one_before(
    said: list[str], make_cell: MakeCell, tmp_path: Path
) -> None:
    cells = [make_cell("1x3", timed=True), make_cell("2x5", timed=False)]
    with visitor(tmp_path) as made:
        assert [visited.record.status for visited in made.visits(cells)] == ["ok", "ok"]
    assert said == ["start 0", "boot 0", "start 1", "boot 1"]


def test_trouble_stays_with_its_cell(make_cell: MakeCell, tmp_path: Path) -> None:
    cells = [
        make_cell("1x3", timed=False),
        make_cell("2x5", timed=False, ending="segfault", at="open"),
        make_cell("1x3", timed=False, raises="boom"),
        make_cell("2x5", timed=False),
    ]
    with visitor(tmp_path) as made:
        found = [visited.record for visited in made.visits(cells)]
    assert [record.status for record in found] == ["ok", "failed", "failed", "ok"]
    assert "SIGSEGV" in found[1].reason
    assert "boom" in found[2].reason


def test_a_process_that_cannot_come_up_ahead_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, make_cell: MakeCell, tmp_path: Path
) -> None:
    boots = iter([True, False])

    def boot(self: Worker) -> None:
        if not next(boots, True):
            raise WorkerError("no process can be started now")
        real(self)

    real = Worker.boot
    monkeypatch.setattr(Worker, "boot", boot)
    with visitor(tmp_path) as made:
        cells = [make_cell("1x3", timed=True), make_cell("2x5", timed=True)]
        assert [visited.record.status for visited in made.visits(cells)] == ["ok", "ok"]


def test_a_worker_that_came_up_for_nothing_is_closed(make_cell: MakeCell, tmp_path: Path) -> None:
    import psutil

    with visitor(tmp_path) as made:
        next(made.visits([make_cell("1x3", timed=False), make_cell("2x5", timed=False)]))
        assert made._ahead is not None
        pid = made._ahead.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_the_wall_time_of_visits_is_cut_into_phases(make_cell: MakeCell, tmp_path: Path) -> None:
    phases = Phases()
    with visitor(tmp_path, phases) as made:
        list(made.visits([make_cell("1x3", timed=True, slow_start_s=0.2, sleep_s=0.1)]))
    spent_s = phases.seconds()
    assert spent_s["visit_session"] >= 0.2
    assert spent_s["visit_run"] >= 0.2, "two runs"
    assert spent_s["visit_start"] > 0.0
