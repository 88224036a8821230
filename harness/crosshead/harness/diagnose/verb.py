"""`crosshead diagnose`: compare, take the worst failure, and find out why it is there."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import msgspec

from crosshead.export.artifact import Artifact
from crosshead.harness.accuracy import Limits
from crosshead.harness.diagnose.explain import Explanation
from crosshead.harness.diagnose.law_suspect import find_broken_law
from crosshead.harness.diagnose.shrink import check_hypothesis
from crosshead.harness.diagnose.suspect import Suspect, find_suspect
from crosshead.harness.errors import RequestError
from crosshead.harness.phases import Phases
from crosshead.harness.pipeline import Progress, compare_to_failure, silent
from crosshead.harness.plan import Plan
from crosshead.harness.sources import ARTIFACTS
from crosshead.results import RunRecord, new_run_id, read_run
from crosshead.results.diagnosis import DiagnosisRecord, DiagnosisStore
from crosshead.results.store import RUN_FILE

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
    """One diagnosis under way."""

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
            run, folder, store, stopped = self._compared(started)
        artifacts = read_artifacts(folder)
        explanation = Explanation(
            self._plan,
            artifacts,
            store,
            DiagnosisRecord(
                id=store.run_id,
                run=run.id,
                crosshead=version("crosshead"),
                started=started.isoformat(timespec="seconds"),
                source=run.plan.source,
                versions=library_versions(),
            ),
            limits=self._limits,
            phases=self._phases,
            on_step=self._progress,
            zipped=self._zipped,
        )
        try:
            if stopped:
                raise KeyboardInterrupt
            with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch:
                suspect = find_suspect(run, artifacts, source_folder(self._plan), self._against)
                if suspect is None and self._against is None:
                    suspect = self._broken_law(run, artifacts, Path(scratch))
                if suspect is None:
                    explanation.update(message=NOTHING if self._against is None else AGREED)
                else:
                    explanation.look_into(suspect, Path(scratch))
            explanation.update(finished=True)
        except KeyboardInterrupt:
            explanation.update(message=explanation.record.message or "Interrupted before anything was found.")
            explanation.finish()
            return Diagnosed(explanation.record, store.path, interrupted=True)
        explanation.finish()
        return Diagnosed(explanation.record, store.path)

    def _broken_law(self, run: RunRecord, artifacts: Mapping[str, Artifact], scratch: Path) -> Suspect | None:
        """Return a failure that only a law shows; the laws of an earlier run are not asked again where none failed."""
        if self._plan.source_kind == "folder" and not any(law.verdict == "fail" for law in run.laws):
            return None
        self._progress("the laws")
        folder = source_folder(self._plan)
        with self._phases.during("laws"):
            return find_broken_law(run.cells, artifacts, folder, self._limits, scratch, self._plan.seed)

    def _compared(self, started: datetime) -> tuple[RunRecord, Path, DiagnosisStore, bool]:
        """Return the run that failed, its folder, where the diagnosis goes, and whether the run was stopped."""
        source = Path(self._plan.source)
        if self._plan.source_kind == "folder" and (source / RUN_FILE).is_file():
            run = read_run(source)
            identity = new_run_id(started, run.plan.source)
            return run, source, DiagnosisStore.create(self._plan.out, identity), False
        finished = compare_to_failure(self._plan, self._progress)
        return finished.record, finished.folder, DiagnosisStore(finished.folder), finished.interrupted


def source_folder(plan: Plan) -> Path | None:
    """Return where a user's factory file stands; None where the source is none."""
    location, colon, _ = plan.source.rpartition(":")
    return Path(location).resolve().parent if colon and location.endswith(".py") else None


def read_artifacts(folder: Path) -> dict[str, Artifact]:
    """Return the artifacts of a run, by id.

    Raises:
        RequestError: there is none.
        ArtifactError: one is damaged.
    """
    found = {}
    for path in sorted((folder / ARTIFACTS).glob("*/manifest.json")):
        artifact = Artifact.load(path.parent)
        found[artifact.id] = artifact
    if not found:
        raise RequestError(f"{folder} holds no artifact to look into; run compare again, or give the source itself")
    return found


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that matter, by distribution name."""
    found = {}
    for name in ("crosshead", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
