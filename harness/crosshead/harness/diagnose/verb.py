"""`crosshead diagnose`: compare, take the worst failure, and find out why it is there."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from crosshead.export.artifact import Artifact, ExportError
from crosshead.harness.accuracy import Limits
from crosshead.harness.diagnose.asking import other_numbers
from crosshead.harness.diagnose.bundle import Exhibit, write_bundle
from crosshead.harness.diagnose.graph_fault import GraphFault
from crosshead.harness.diagnose.ladder import Ladder, climb
from crosshead.harness.diagnose.law_suspect import find_broken_law
from crosshead.harness.diagnose.output_fault import OutputFault, other_forms, wrong_in_float64
from crosshead.harness.diagnose.shrink import Smallest, check_hypothesis
from crosshead.harness.diagnose.standing import Standing, failed, hold, run_cell, try_cell
from crosshead.harness.diagnose.suspect import Suspect, find_suspect
from crosshead.harness.errors import RequestError
from crosshead.harness.phases import Phases
from crosshead.harness.pipeline import Progress, compare_to_failure, silent
from crosshead.harness.plan import Plan
from crosshead.harness.runner import Runner
from crosshead.harness.sources import ARTIFACTS
from crosshead.results import Cause, RunRecord, new_run_id, read_run
from crosshead.results.diagnosis import CulpritRecord, DiagnosisRecord, DiagnosisStore
from crosshead.results.diagnosis_text import diagnosis_summary
from crosshead.results.store import RUN_FILE
from crosshead.runtimes import BackendError, WorkerError

if TYPE_CHECKING:
    from crosshead.export import LoadedSource
    from crosshead.harness.diagnose.truth import Truth

BUNDLE: Final = "bundle"
SHRINK_BUDGET_S: Final = 10.0
AGREED: Final = "Nothing wrong was found: the two backends agree on every case."
NOTHING: Final = (
    "Nothing wrong was found: every graph is its module's function, and every output is within its rounding."
)


@dataclass(frozen=True)
class Diagnosed:
    """What a diagnosis leaves.

    Attributes:
        record: as it stands in `diagnosis.json`.
        folder: that holds it.
        interrupted: whether the person stopped it; what was found is in the record.
    """

    record: DiagnosisRecord
    folder: Path
    interrupted: bool = False

    @property
    def found(self) -> bool:
        """Whether there was anything to look into."""
        return bool(self.record.subject)


def diagnose(plan: Plan, *, against: str | None = None, zipped: bool = False, progress: Progress = silent) -> Diagnosed:
    """Find out why something fails.

    Args:
        plan: as for `compare`; its source may also be the folder of an earlier run.
        against: a second backend: only what the two do not agree on counts.
        zipped: whether the bundle is zipped as well.
        progress: told what is being done.

    Raises:
        RequestError, ExportError, RuntimesError, ResultsError: the request cannot be carried out; one line.
    """
    check_hypothesis()
    return _Diagnosis(plan, against, zipped, progress).carry_out()


class _Diagnosis:
    """One diagnosis under way; the record is written after every step."""

    def __init__(self, plan: Plan, against: str | None, zipped: bool, progress: Progress) -> None:
        if against is not None:
            plan = msgspec.structs.replace(plan, backends=tuple(dict.fromkeys((*plan.backends, against))))
        self._plan, self._against, self._zipped, self._progress = plan, against, zipped, progress
        self._limits = Limits(plan.cell_timeout_s, plan.memory_limit_bytes)
        self._phases = Phases()
        self._start = time.monotonic()

    def carry_out(self) -> Diagnosed:
        started = datetime.now(UTC)
        with self._phases.during("compare"):
            run, folder, self._store, stopped = self._compared(started)
        self._folder = folder
        self._record = DiagnosisRecord(
            id=self._store.run_id,
            run=run.id,
            crosshead=version("crosshead"),
            started=started.isoformat(timespec="seconds"),
            source=run.plan.source,
            versions=_versions(),
        )
        self._artifacts = _artifacts(folder)
        try:
            if stopped:
                raise KeyboardInterrupt
            suspect = find_suspect(run, self._artifacts, self._source_folder(), self._against)
            with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch:
                if suspect is None and self._against is None:
                    suspect = self._broken_law(run, Path(scratch))
                if suspect is None:
                    self._update(message=NOTHING if self._against is None else AGREED)
                else:
                    self._look_into(suspect, Path(scratch))
            self._update(finished=True)
        except KeyboardInterrupt:
            self._update(message=self._record.message or "Interrupted before anything was found.")
            return self._left(interrupted=True)
        return self._left()

    def _broken_law(self, run: RunRecord, scratch: Path) -> Suspect | None:
        """Return a failure that only a law shows; the laws of an earlier run are not asked again where none failed."""
        if self._plan.source_kind == "folder" and not any(law.verdict == "fail" for law in run.laws):
            return None
        self._step("the laws")
        with self._phases.during("laws"):
            return find_broken_law(
                run.cells, self._artifacts, self._source_folder(), self._limits, scratch, self._plan.seed
            )

    def _left(self, *, interrupted: bool = False) -> Diagnosed:
        self._store.write_summary(diagnosis_summary(self._record))
        return Diagnosed(self._record, self._store.path, interrupted)

    def _compared(self, started: datetime) -> tuple[RunRecord, Path, DiagnosisStore, bool]:
        """Return the run that failed, its folder, and where the diagnosis goes."""
        source = Path(self._plan.source)
        if self._plan.source_kind == "folder" and (source / RUN_FILE).is_file():
            run = read_run(source)
            identity = new_run_id(started, run.plan.source)
            return run, source, DiagnosisStore.create(self._plan.out, identity), False
        finished = compare_to_failure(self._plan, self._progress)
        return finished.record, finished.folder, DiagnosisStore(finished.folder), finished.interrupted

    def _source_folder(self) -> Path | None:
        location, colon, _ = self._plan.source.rpartition(":")
        return Path(location).resolve().parent if colon and location.endswith(".py") else None

    def _update(self, **fields: object) -> None:
        self._record = msgspec.structs.replace(
            self._record, wall_s=time.monotonic() - self._start, phases_s=self._phases.seconds(), **fields
        )
        self._store.update(self._record)

    def _step(self, text: str) -> None:
        self._progress(text)

    # --- what failed

    def _look_into(self, suspect: Suspect, scratch: Path) -> None:
        cell = suspect.cell
        settings = {} if cell is None else cell.record(status="ok").settings
        self._update(
            subject=suspect.subject,
            artifact=suspect.artifact.id,
            backend="" if cell is None else cell.runtime.name,
            against="" if suspect.other is None else suspect.other.runtime.name,
            case=suspect.case,
            settings=settings,
            reason=suspect.reason,
        )
        if cell is None:
            self._graph(suspect)
            return
        base, other = self._seen_again(suspect, scratch)
        self._update(error=base.error, times_expected=base.times if base.times < float("inf") else None)
        if suspect.data:
            self._update(cause="data", message=f"data: {suspect.data}")
            return
        if base.passes and not suspect.half:
            again = self._primed(suspect, scratch)
            if not again.passes:
                self._update(error=again.error, times_expected=again.times if again.times < float("inf") else None)
                self._output(suspect, again, other, scratch, primed=True)
                return
            self._update(
                cause="nondeterminism",
                message=f"It failed in the run ({suspect.reason}) and does not when run again ({base.figures}): "
                "it changes from process to process.",
            )
            return
        if suspect.subject == "output" and cell.runtime.capabilities.executes == "graph":
            import onnx

            if wrong_in_float64(suspect.artifact, onnx.load(suspect.artifact.model_path), suspect, base):
                self._update(subject="graph")
                self._graph(suspect)
                return
        self._output(suspect, base, other, scratch)

    def _primed(self, suspect: Suspect, scratch: Path) -> Standing:
        """Run the failing cell after a call on other numbers, in one process: what came before may matter."""
        cell = suspect.cell
        assert cell is not None, "checked by the caller"
        try:
            with Runner(cell, self._limits, scratch) as runner:
                runner.outputs(other_numbers(suspect.inputs))
                outputs = runner.outputs(suspect.inputs)
        except (BackendError, WorkerError) as error:
            return failed(error)
        return hold(outputs, cell.artifact, cell.artifact.case(cell.case), cell.runtime.name)

    def _seen_again(self, suspect: Suspect, scratch: Path) -> tuple[Standing, Any]:
        """Run the failing cell again, and the one that it is held against."""
        assert suspect.cell is not None, "checked by the caller"
        self._step(f"{suspect.cell.label}, case {suspect.case}, again")
        other = None
        with self._phases.during("again"):
            if suspect.other is not None:
                folder = scratch / "other"
                folder.mkdir()
                try:
                    other = run_cell(suspect.other, suspect.inputs, self._limits, folder)
                except (BackendError, WorkerError) as error:
                    raise RequestError(f"{suspect.other.label} gives nothing to be held against: {error}") from error
            return try_cell(suspect.cell, suspect.inputs, self._limits, scratch, other), other

    # --- a backend

    def _output(self, suspect: Suspect, base: Standing, against: Any, scratch: Path, *, primed: bool = False) -> None:
        cell = suspect.cell
        assert cell is not None, "checked by the caller"
        rungs = scratch / "rungs"
        rungs.mkdir()
        ladder = Ladder((), "")
        with self._phases.during("ladder"):
            if not (suspect.half or primed):  # what every rung is judged by does not show these
                ladder = climb(
                    cell,
                    base,
                    others=other_forms(cell, list(self._artifacts.values())),
                    export=self._exports(rungs),
                    limits=self._limits,
                    scratch=rungs,
                    against=against,
                    on_step=self._step,
                )
        self._update(ladder=list(ladder.rungs), ladder_message=ladder.message)
        if cell.runtime.capabilities.executes != "graph":
            message = f"{cell.runtime.name} runs the module, which is not cut"
            self._update(culprit_message=message, cause="kernel", message=_sentence(message, ladder.message))
            return
        fault = OutputFault(suspect, base, self._limits, scratch, self._step, primed=primed)
        with self._phases.during("culprit"):
            found = fault.find(ladder)
        if isinstance(found, str):
            self._update(culprit_message=found, message=_sentence(found, ladder.message))
        else:
            culprit = fault.describe(found)
            kind: Cause = found.reason.kind
            self._update(culprit=culprit, cause=kind, message=_sentence(f"{kind}: {culprit.message}", ladder.message))
        small: Smallest | None = None
        with self._phases.during("smallest"):
            if not suspect.half:
                self._step("a smaller input")
                small, record = fault.smallest(SHRINK_BUDGET_S, self._plan.seed)
                self._update(smallest=record)
        with self._phases.during("bundle"):
            self._bundle(fault.exhibits(None if isinstance(found, str) else found, small), suspect.artifact)

    # --- a graph

    def _graph(self, suspect: Suspect) -> None:
        artifact = suspect.artifact
        try:
            truth = self._truth(artifact)
        except ExportError as error:
            truth, why = None, " ".join(str(error).split())
        else:
            why = ""
        fault = GraphFault(artifact, truth, self._step)
        with self._phases.during("ladder"):
            shown = fault.shown(suspect.case)
            if shown is not None:
                others = [
                    other
                    for other in self._artifacts.values()
                    if other.id != artifact.id
                    and other.manifest.source == artifact.manifest.source
                    and other.manifest.precision == artifact.manifest.precision
                ]
                with tempfile.TemporaryDirectory(prefix="crosshead-") as exported:
                    rungs, said = fault.climb(shown, others, self._exports(Path(exported)))
                self._update(
                    case=shown.case,
                    error=shown.error,
                    ladder=rungs,
                    ladder_message=said,
                )
        with self._phases.during("culprit"):
            culprit = fault.culprit(shown)
        if isinstance(culprit, CulpritRecord):
            said = f"graph: {culprit.message}"
            self._update(culprit=culprit, cause="graph", message=_sentence(said, self._record.ladder_message))
        else:
            message = f"{culprit}{f' ({why})' if why else ''}"
            said = f"graph: {suspect.reason or message}"
            self._update(culprit_message=message, cause="graph", message=_sentence(said, self._record.ladder_message))
        if shown is None:
            return
        small: Smallest | None = None
        with self._phases.during("smallest"):
            self._step("a smaller input")
            found = fault.smallest(shown, SHRINK_BUDGET_S, self._plan.seed)
            if found is not None:
                small, record = found
                self._update(smallest=record)
        with self._phases.during("bundle"):
            exhibits = fault.exhibits(shown, small, self._plan.resolved_settings().threads)
            self._bundle(exhibits, artifact)

    def _truth(self, artifact: Artifact) -> "Truth | None":
        """Return what a graph is held against.

        Raises:
            ExportError: the module cannot be had any more.
        """
        from crosshead.harness.diagnose.truth import GraphTruth, ModuleTruth

        if artifact.manifest.source.kind == "onnx":
            first = next(iter(self._artifacts.values()))
            return GraphTruth(first) if first.id != artifact.id else None
        loaded = self._loaded(artifact)
        return None if loaded is None else ModuleTruth(loaded, artifact)

    def _loaded(self, artifact: Artifact) -> "LoadedSource | None":
        """Import the source again; None where there is none, or PyTorch is not here.

        Raises:
            ExportError: it cannot be imported any more.
        """
        source = artifact.manifest.source
        if source.factory is None:
            return None
        try:
            import torch  # noqa: F401  # a machine that only runs artifacts has none
        except ImportError:
            return None
        from crosshead.export import load_source

        text = self._plan.source if self._plan.source_kind == "module" else source.name
        return load_source(text, options=source.options, seed=source.seed, keep_training_mode=source.training)

    def _exports(self, out: Path) -> Callable[..., Sequence[Artifact]] | None:
        """Return what exports the source anew; None where it was no module."""
        if self._plan.source_kind != "module":
            return None
        plan = self._plan

        def export(**how: Any) -> Sequence[Artifact]:
            from crosshead.export import cases_for, export_source

            loaded = self._loaded(next(iter(self._artifacts.values())))
            if loaded is None:
                raise ExportError("the source is not at hand")
            cases = cases_for(loaded, batches=plan.batches, lengths=plan.lengths, shapes=plan.shapes)
            precisions = how.pop("precisions", plan.precisions)
            return export_source(replace(loaded), cases, out=out, precisions=precisions, on_step=self._step, **how)

        return export

    # --- the bundle

    def _bundle(self, exhibits: Sequence[Exhibit], artifact: Artifact) -> None:
        self._step("the bundle")
        record = write_bundle(
            self._store.path / BUNDLE,
            exhibits,
            backend=self._record.backend,
            precision=artifact.manifest.precision,
            message=self._record.message,
            versions=self._record.versions,
            zipped=self._zipped,
        )
        self._update(bundle=record)


def _sentence(first: str, ladder: str) -> str:
    return f"{first}; {ladder}" if ladder else first


def _artifacts(folder: Path) -> Mapping[str, Artifact]:
    found = {}
    for path in sorted((folder / ARTIFACTS).glob("*/manifest.json")):
        artifact = Artifact.load(path.parent)
        found[artifact.id] = artifact
    if not found:
        raise RequestError(f"{folder} holds no artifact to look into; run compare again, or give the source itself")
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in ("crosshead", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
