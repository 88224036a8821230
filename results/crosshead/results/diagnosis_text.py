"""A diagnosis as text: for the terminal, and as Markdown (`diagnosis.md`)."""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from crosshead.results.diagnosis import CulpritRecord, DiagnosisRecord, RungRecord, SmallestRecord
from crosshead.results.privacy import scrub_record

if TYPE_CHECKING:
    from rich.console import Console

_OUTCOMES = {"gone": "takes it away", "smaller": "makes it smaller", "stays": "no difference", "not-run": "not tried"}


def render_diagnosis(record: DiagnosisRecord, console: "Console") -> None:
    """Print a diagnosis: what failed, what changes it, where it arises, the smallest input, and the bundle."""
    from rich.markup import escape

    for title, lines in sections(record):
        if title:
            console.print(f"[bold]{escape(title)}[/bold]")
        for line in lines:
            console.print(escape(_plain(line)), highlight=False)
    if record.subject:
        console.print()
    colour = "green" if not record.subject else "bold red"
    console.print(f"[{colour}]{escape(_plain(record.message))}[/{colour}]", highlight=False)


def diagnosis_summary(record: DiagnosisRecord) -> str:
    """Return a diagnosis as GitHub-flavoured Markdown, free text scrubbed."""
    record = scrub_record(record)
    parts = [f"# Diagnosis of {_marked(record.source)}", _marked(record.message)]
    for title, lines in sections(record):
        parts.append(f"## {title}")
        parts.append("\n".join(f"- {_marked(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def sections(record: DiagnosisRecord) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a diagnosis that there are: a title and lines."""
    if not record.subject:
        return
    where = ", ".join(part for part in (record.backend, record.artifact, record.case and f"case {record.case}") if part)
    against = f" against {record.against}" if record.against else ""
    yield "What failed", [f"{where}{against}: {record.reason}" if record.reason else f"{where}{against}"]
    if record.ladder or record.ladder_message:
        lines = [f"{rung.change}: {_outcome(rung)}" for rung in record.ladder]
        yield "One thing changed at a time", [*lines, *([record.ladder_message] if record.ladder_message else [])]
    if record.culprit is not None:
        yield "Where it arises", _culprit(record.culprit)
    elif record.culprit_message:
        yield "Where it arises", [record.culprit_message]
    if record.smallest is not None:
        yield "Smallest input that shows it", _smallest(record.smallest)
    if record.bundle is not None:
        yield "Bundle", [f"{record.bundle.path}: {record.bundle.message}"]


def _outcome(rung: RungRecord) -> str:
    said = _OUTCOMES[rung.outcome]
    if rung.error is None:
        return f"{said}: {rung.reason}" if rung.reason else said
    return f"{said}: {figures(rung.error, rung.times_expected)}"


def figures(error: float | None, times: float | None) -> str:
    """Return `3.1e-02 (5,200 times expected)`."""
    if error is None:
        return "–"
    if not math.isfinite(error):
        return "NaN or Inf where numbers belong"
    if times is None or not math.isfinite(times):
        return f"{error:.1e}"
    return f"{error:.1e} ({times:,.0f} times expected)" if times >= 100 else f"{error:.1e} ({times:.2g} times expected)"


def _culprit(culprit: CulpritRecord) -> list[str]:
    lines = [culprit.message]
    inputs = ", ".join(f"{each.name} {each.dtype}{each.shape}" for each in culprit.inputs)
    lines.append(f"{culprit.op} {culprit.node!r} of the graph {culprit.graph}, of {culprit.count} nodes")
    if inputs:
        lines.append(f"reads {inputs}")
    if culprit.own_error is not None:
        inherited = "unknown" if culprit.inherited_error is None else f"{culprit.inherited_error:.1e}"
        lines.append(f"own error {figures(culprit.own_error, culprit.own_times)}, inherited {inherited}")
    return lines


def _smallest(smallest: SmallestRecord) -> list[str]:
    inputs = [
        f"{name} {shape}" + (f", {smallest.values[name]}" if smallest.values.get(name) else "")
        for name, shape in smallest.shapes.items()
    ]
    error = figures(smallest.error, smallest.times_expected)
    return ["; ".join(inputs) or "no inputs", f"error {error}; {smallest.tried} inputs were tried"]


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)


def _marked(text: str) -> str:
    """Return text that stands in Markdown as it is."""
    return re.sub(r"([\\|<>\[\]*_`])", r"\\\1", _plain(text))
