"""A search as text: for the terminal, and as Markdown (`fuzz.md`)."""

import re
from typing import TYPE_CHECKING

from crosshead.results.diagnosis_text import figures
from crosshead.results.fuzz import FindRecord, FuzzRecord
from crosshead.results.privacy import scrub_record

if TYPE_CHECKING:
    from rich.console import Console


def render_fuzz(record: FuzzRecord, console: "Console") -> None:
    """Print a search: what was tried, what was found."""
    from rich.markup import escape

    for line in _tried(record):
        console.print(escape(_plain(line)), highlight=False)
    for find in record.finds:
        console.print()
        for line in _found(find):
            console.print(escape(_plain(line)), highlight=False)
    console.print()
    colour = "bold red" if record.finds else "green"
    console.print(f"[{colour}]{escape(closing(record))}[/{colour}]", highlight=False)


def fuzz_summary(record: FuzzRecord) -> str:
    """Return a search as GitHub-flavoured Markdown, free text scrubbed."""
    record = scrub_record(record)
    parts = [f"# Search on {_marked(record.source)}", _marked(closing(record))]
    parts.append("\n".join(f"- {_marked(line)}" for line in _tried(record)))
    for number, find in enumerate(record.finds, 1):
        parts += [f"## Find {number}", "\n".join(f"- {_marked(line)}" for line in _found(find))]
    return "\n\n".join(parts) + "\n"


def closing(record: FuzzRecord) -> str:
    """Return the result in one sentence."""
    tried = f"{record.draws - record.skipped} inputs in {record.spent_s:.0f} s, seed {record.seed}"
    if record.finds:
        count = len(record.finds)
        return f"{count} {'find' if count == 1 else 'finds'} among {tried}."
    return f"Nothing was found among {tried}."


def _tried(record: FuzzRecord) -> list[str]:
    lines = []
    for each in record.searched:
        where = f"{each.backend}, {each.artifact}" if each.backend else f"graph {each.artifact}, in float64"
        refused = f", {each.refused} refused" if each.refused else ""
        worst = f"; at most {each.worst_times:.2g} times expected" if each.backend else ""
        lines.append(f"{where}: {each.inputs} inputs{refused}{worst}")
    return lines


def _found(find: FindRecord) -> list[str]:
    where = f"{find.backend}, {find.artifact}" if find.backend else f"graph {find.artifact}"
    said = find.reason or figures(find.error, find.times_expected)
    lines = [f"{where}: {said}, on draw {find.number}: {find.idea}"]
    lines += [find.message] if find.message else []
    return [*lines, f"diagnosis and bundle: {find.folder}"] if find.folder else lines


def _plain(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)


def _marked(text: str) -> str:
    return re.sub(r"([\\|<>\[\]*_`])", r"\\\1", _plain(text))
