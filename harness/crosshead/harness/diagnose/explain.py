"""From one failure to its record: seen again, ladder, node, kind, smallest input, bundle. Written after every step."""

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from crosshead.export.artifact import Artifact, ExportError
from crosshead.harness.accuracy import Limits
from crosshead.harness.diagnose.asking import other_numbers
from crosshead.harness.diagnose.bundle import Exhibit, write_bundle
from crosshead.harness.diagnose.graph_fault import GraphFault
from crosshead.harness.diagnose.ladder import Ladder, climb
from crosshead.harness.diagnose.output_fault import OutputFault, other_forms, wrong_in_float64
from crosshead.harness.diagnose.standing import Standing, failed, hold, run_cell, try_cell
from crosshead.harness.diagnose.suspect import Suspect
from crosshead.harness.errors import RequestError
from crosshead.harness.overflow import CODE as OVERFLOW
from crosshead.harness.phases import Phases
from crosshead.harness.plan import Plan
from crosshead.harness.runner import Runner
from crosshead.results.diagnosis import CulpritRecord, DiagnosisRecord, DiagnosisStore
from crosshead.results.diagnosis_text import diagnosis_summary
from crosshead.runtimes import BackendError, WorkerError

if TYPE_CHECKING:
    from crosshead.export import LoadedSource
    from crosshead.harness.diagnose.shrink import Smallest
    from crosshead.harness.diagnose.truth import Truth
    from crosshead.results import Cause

BUNDLE: Final = "bundle"
SHRINK_BUDGET_S: Final = 10.0


class Explanation:
    """One failure being looked into."""

    def __init__(
        self,
        plan: Plan,
        artifacts: Mapping[str, Artifact],
        store: DiagnosisStore,
        record: DiagnosisRecord,
        *,
        limits: Limits,
        phases: Phases,
        on_step: Callable[[str], None],
        zipped: bool = False,
        exports: bool = True,
        shrink_budget_s: float = SHRINK_BUDGET_S,
    ) -> None:
        """Prepare.

        Args:
            plan: of the run that failed.
            artifacts: of that run, by id.
            store: takes the record and the bundle.
            record: as it begins.
            limits: of a worker.
            phases: told where the time goes.
            on_step: told what is being done.
            zipped: whether the bundle is zipped as well.
            exports: whether the ladder may export the source anew.
            shrink_budget_s: longest search for a smaller input.
        """
        self._plan, self._artifacts, self._store, self.record = plan, artifacts, store, record
        self._limits, self._phases, self._step = limits, phases, on_step
        self._zipped, self._may_export, self._shrink_budget_s = zipped, exports, shrink_budget_s
        self._start = time.monotonic()

    def update(self, **fields: object) -> None:
        """Fill in a part of the record, and write it."""
        self.record = msgspec.structs.replace(
            self.record, wall_s=time.monotonic() - self._start, phases_s=self._phases.seconds(), **fields
        )
        self._store.update(self.record)

    def finish(self) -> None:
        """Write the record as text, too."""
        self._store.write_summary(diagnosis_summary(self.record))

    # --- what failed

    def look_into(self, suspect: Suspect, scratch: Path) -> None:
        """See a failure again, and fill in the record.

        Args:
            suspect: the failure.
            scratch: an existing folder.

        Raises:
            RequestError: the other backend of a disagreement gives nothing any more.
        """
        cell = suspect.cell
        settings = {} if cell is None else cell.record(status="ok").settings
        self.update(
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
        self.update(error=base.error, times_expected=base.times if base.times < float("inf") else None)
        noise = max(suspect.artifact.case(suspect.case).noise.values(), default=0.0)
        if noise:
            message = f"the module draws random numbers: two float64 evaluations of it differ by {noise:.2g}"
            self.update(cause="nondeterminism", message=f"nondeterminism: {message}")
            return
        if suspect.data:
            self.update(cause="data", message=f"data: {suspect.data}")
            return
        if base.passes and not suspect.half:
            again = self._primed(suspect, scratch)
            if not again.passes:
                self.update(error=again.error, times_expected=again.times if again.times < float("inf") else None)
                self._output(suspect, again, other, scratch, primed=True)
                return
            self.update(
                cause="nondeterminism",
                message=f"It failed in the run ({suspect.reason}) and does not when run again ({base.figures}): "
                "it changes from process to process.",
            )
            return
        if suspect.subject == "output" and cell.runtime.capabilities.executes == "graph":
            import onnx

            if wrong_in_float64(suspect.artifact, onnx.load(suspect.artifact.model_path), suspect, base):
                self.update(subject="graph")
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
        self.update(ladder=list(ladder.rungs), ladder_message=ladder.message)
        if cell.runtime.capabilities.executes != "graph":
            message = f"{cell.runtime.name} runs the module, which is not cut"
            beyond = "" if base.crashed or base.times < math.inf else _beyond(cell.artifact)
            kind: Cause = "data" if beyond else "kernel"
            said = f"{kind}: {beyond or message}"
            self.update(culprit_message=message, cause=kind, message=_sentence(said, ladder.message))
            return
        fault = OutputFault(suspect, base, self._limits, scratch, self._step, primed=primed)
        with self._phases.during("culprit"):
            found = fault.find(ladder)
        if isinstance(found, str):
            self.update(culprit_message=found, message=_sentence(found, ladder.message))
        else:
            culprit = fault.describe(found)
            kind = found.reason.kind
            self.update(culprit=culprit, cause=kind, message=_sentence(f"{kind}: {culprit.message}", ladder.message))
        small: Smallest | None = None
        with self._phases.during("smallest"):
            if not suspect.half:
                self._step("a smaller input")
                small, record = fault.smallest(self._shrink_budget_s, self._plan.seed)
                self.update(smallest=record)
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
                self.update(
                    case=shown.case,
                    error=shown.error,
                    ladder=rungs,
                    ladder_message=said,
                )
        with self._phases.during("culprit"):
            culprit = fault.culprit(shown)
        if isinstance(culprit, CulpritRecord):
            said = f"graph: {culprit.message}"
            self.update(culprit=culprit, cause="graph", message=_sentence(said, self.record.ladder_message))
        else:
            message = f"{culprit}{f' ({why})' if why else ''}"
            said = f"graph: {suspect.reason or message}"
            self.update(culprit_message=message, cause="graph", message=_sentence(said, self.record.ladder_message))
        if shown is None:
            return
        small: Smallest | None = None
        with self._phases.during("smallest"):
            self._step("a smaller input")
            found = fault.smallest(shown, self._shrink_budget_s, self._plan.seed)
            if found is not None:
                small, record = found
                self.update(smallest=record)
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
        if self._plan.source_kind != "module" or not self._may_export:
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
            backend=self.record.backend,
            precision=artifact.manifest.precision,
            message=self.record.message,
            versions=self.record.versions,
            zipped=self._zipped,
        )
        self.update(bundle=record)


def _beyond(artifact: Artifact) -> str:
    """Say which value is beyond the range of the precision, where the export found one."""
    return next((notice.message for notice in artifact.manifest.notices if notice.code == OVERFLOW), "")


def _sentence(first: str, ladder: str) -> str:
    return f"{first}; {ladder}" if ladder else first
