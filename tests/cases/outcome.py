"""What came out of a case, and the questions that tests ask of it."""

from dataclasses import dataclass

from crosshead.harness.pipeline import Finished
from crosshead.harness.verdict import exit_status
from crosshead.results import ArtifactRecord, CellRecord, Notice, RunRecord


@dataclass(frozen=True)
class Outcome:
    """A finished comparison."""

    finished: Finished

    @property
    def record(self) -> RunRecord:
        return self.finished.record

    @property
    def status(self) -> int:
        """The exit status that the command line would give."""
        return exit_status(self.record, by_name=self.finished.by_name, strict=False, interrupted=False)

    @property
    def notices(self) -> list[Notice]:
        """All notices but the one that every case without roles has."""
        found = [*self.record.notices, *(notice for artifact in self.record.artifacts for notice in artifact.notices)]
        return [notice for notice in found if notice.code != "roles-guessed"]

    @property
    def codes(self) -> set[str]:
        return {notice.code for notice in self.notices}

    def said(self, code: str) -> str:
        """What the notices of a code say, one a line."""
        return "\n".join(notice.message for notice in self.notices if notice.code == code)

    def artifact(self, form: str) -> ArtifactRecord:
        (found,) = (artifact for artifact in self.record.artifacts if artifact.form == form)
        return found

    def cells(self, backend: str, form: str | None = None) -> list[CellRecord]:
        forms = {artifact.id: artifact.form for artifact in self.record.artifacts}
        found = [c for c in self.record.cells if c.backend == backend and form in (None, forms[c.artifact])]
        assert found, f"{backend} has no row"
        return found

    def verdicts(self, backend: str, form: str | None = None) -> set[str]:
        return {output.verdict for cell in self.cells(backend, form) for output in cell.outputs}
