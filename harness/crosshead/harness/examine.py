"""What is asked of every backend that ran: one worker for each (artifact, backend), and the stages on it in turn."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crosshead.export.artifact import Artifact
from crosshead.harness.accuracy import Limits, Visit
from crosshead.harness.cells import Cell
from crosshead.harness.judge import Tolerances
from crosshead.harness.phases import Phases
from crosshead.harness.runner import Runner
from crosshead.results import CellRecord, LawRecord, NoiseRecord, Notice
from crosshead.runtimes import BackendError, WorkerError


@dataclass(frozen=True)
class Subject:
    """One backend on one artifact.

    Attributes:
        artifact: with the source framework's own error filled in.
        cell: of the first case that ran; artifact, backend and settings are those of all cases.
        visits: the first visits that gave outputs, one a case.
        runner: runs any inputs; its worker is up or coming up.
        limits: of a worker, for a stage that starts one with other settings.
        scratch: an empty folder of this subject's own.
        tolerances: what a person asked for in place of the derived rule.
        seed: of whatever is drawn.
        known: what stages keep about an artifact for the next backend on it; one for all subjects of a run.
    """

    artifact: Artifact
    cell: Cell
    visits: tuple[Visit, ...]
    runner: Runner
    limits: Limits
    scratch: Path
    tolerances: Tolerances
    seed: int
    known: dict[tuple[str, ...], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """What a stage found out about one subject; each list is appended to that of the run's record.

    `artifacts` are those whose manifest a stage changed, by id.
    """

    stress: Sequence[CellRecord] = ()
    laws: Sequence[LawRecord] = ()
    noise: Sequence[NoiseRecord] = ()
    notices: Sequence[Notice] = ()
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)


Stage = Callable[[Subject], Findings]


@dataclass(frozen=True)
class Examination:
    """The stages, and what they are given.

    Attributes:
        stages: by phase, in this order.
        limits, tolerances, seed, known: as in `Subject`.
        scratch: an existing folder.
        phases: told where the time went.
        on_progress: told what is being done.
    """

    stages: Mapping[str, Stage]
    limits: Limits
    tolerances: Tolerances
    seed: int
    scratch: Path
    phases: Phases
    on_progress: Callable[[str], None]
    known: dict[tuple[str, ...], float] = field(default_factory=dict)

    def findings(self, visits: Sequence[Visit], artifacts: Mapping[str, Artifact]) -> Iterator[Findings]:
        """Ask every (artifact, backend) that ran, and give what each stage found as soon as it did.

        While one worker is asked, the next one comes up. A worker that is lost costs its stage, not the others.

        Args:
            visits: of all cells.
            artifacts: as they stand now, by id.
        """
        groups: dict[str, list[Visit]] = {}
        for visited in visits:
            if visited.outputs is not None and self.stages:
                groups.setdefault(visited.cell.label, []).append(visited)
        runners = [self._runner(index, group[0].cell) for index, group in enumerate(groups.values())]
        try:
            for index, (label, group) in enumerate(groups.items()):
                with runners[index] as runner:
                    for ahead in runners[index : index + 2]:
                        with suppress(WorkerError):  # whoever asks it is told
                            ahead.start()
                    subject = self._subject(group, artifacts, runner)
                    for phase, stage in self.stages.items():
                        self.on_progress(f"{label}: {phase}")
                        with self.phases.during(phase):
                            found = self._ask(stage, phase, subject)
                        yield found
        finally:
            for runner in runners:
                runner.close()

    def _runner(self, index: int, cell: Cell) -> Runner:
        folder = self.scratch / f"runner{index}"
        folder.mkdir()
        return Runner(cell, self.limits, folder)

    def _subject(self, group: Sequence[Visit], artifacts: Mapping[str, Artifact], runner: Runner) -> Subject:
        cell = group[0].cell
        folder = runner.scratch / "stages"
        folder.mkdir()
        return Subject(
            artifact=artifacts[cell.artifact.id],
            cell=cell,
            visits=tuple(group),
            runner=runner,
            limits=self.limits,
            scratch=folder,
            tolerances=self.tolerances,
            seed=self.seed,
            known=self.known,
        )

    def _ask(self, stage: Stage, phase: str, subject: Subject) -> Findings:
        try:
            return stage(subject)
        except (BackendError, WorkerError) as error:
            message = f"{phase} could not be asked to the end: {' '.join(str(error).split())}"
            return Findings(notices=[Notice(code="not-examined", message=message, where=subject.cell.label)])
