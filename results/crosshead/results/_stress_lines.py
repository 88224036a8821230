"""The stress set in words: one line for each (artifact, backend), and one for each case that is not right."""

from collections.abc import Sequence
from dataclasses import dataclass

from crosshead.results._rows import artifact_titles, subject_title, times, verdict_word
from crosshead.results.records import CellRecord, RunRecord


@dataclass(frozen=True)
class StressLine:
    """One (artifact, backend).

    Attributes:
        artifact: title of the artifact, or of the module that was run.
        backend: its name.
        verdict: the worst of its cases, in capitals where it fails.
        counts: how many passed, and how many there are that the backend took; then those that it did not.
        worst: largest error among those that passed, and its case; empty where nothing was measured.
        reasons: of each case that is not right, and of each that the backend did not take.
        apart: rows that decide nothing, by reason, and how many cases have some.
    """

    artifact: str
    backend: str
    verdict: str
    counts: str
    worst: str
    reasons: tuple[str, ...]
    apart: str

    @property
    def sentence(self) -> str:
        """The line without its reasons."""
        worst = f"worst {self.worst}" if self.worst else ""
        apart = f"rows told apart: {self.apart}" if self.apart else ""
        return ", ".join(part for part in (self.counts, worst, apart) if part)


def stress_lines(record: RunRecord) -> list[StressLine]:
    """Return a line for each (artifact, backend) that was asked, in the record's order."""
    titles = artifact_titles(record.artifacts)
    labels = dict.fromkeys(cell.label for cell in record.stress)
    lines = []
    for label in labels:
        cells = [cell for cell in record.stress if cell.label == label]
        lines.append(_line(subject_title(record, cells[0], titles), cells))
    return lines


def left_out_line(record: RunRecord) -> str:
    """Say which cases of the set were left out, and why; those of all artifacts alike once."""
    found: dict[str, str] = {}
    for artifact in record.artifacts:
        found |= artifact.stress_left_out
    return "; ".join(f"{name}: {reason}" for name, reason in found.items())


def _line(title: str, cells: Sequence[CellRecord]) -> StressLine:
    words = [verdict_word(cell) for cell in cells]
    asked = [word for word in words if word != "unsupported"]
    passed, refused = words.count("pass"), len(words) - len(asked)
    counts = f"{passed}/{len(asked)} pass" + (f", {refused} unsupported" if refused else "")
    known = [
        (output.times_expected, cell.case)
        for cell in cells
        for output in cell.outputs
        if output.times_expected is not None and output.verdict == "pass"
    ]
    worst = f"{times(max(known)[0])} at {max(known)[1]}" if known else ""
    order = ("FAIL", "failed", "suspect", "pass", "unsupported")
    verdict = next((word for word in order if word in words), "pass")
    return StressLine(title, cells[0].backend, verdict, counts, worst, tuple(_reasons(cells)), _apart(cells))


def _reasons(cells: Sequence[CellRecord]) -> list[str]:
    """Return what is not right, each in one clause; what a backend refuses for one reason is told once."""
    found = []
    refused: dict[str, list[str]] = {}
    for cell in cells:
        if cell.status == "unsupported":
            refused.setdefault(cell.reason, []).append(cell.case)
        elif cell.status != "ok":
            found.append(f"{cell.case}: {cell.status}: {cell.reason}")
        named = len(cell.outputs) > 1
        found += [
            f"{cell.case}: " + (f"{output.name}: " if named else "") + f"{output.verdict}: {output.reason}"
            for output in cell.outputs
            if output.verdict != "pass"
        ]
    return found + [f"unsupported: {reason} ({', '.join(cases)})" for reason, cases in refused.items()]


def _apart(cells: Sequence[CellRecord]) -> str:
    rows: dict[str, int] = {}
    for cell in cells:
        for reason in {reason for output in cell.outputs for reason in output.apart}:
            rows[reason] = rows.get(reason, 0) + 1
    return ", ".join(f"{reason} in {count}" for reason, count in rows.items())
