"""A conformity record in the terminal: what is off first, then the counts by feature, and the verdict last."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosshead.results import _conformity_rows as rows
from crosshead.results._rows import environment_line
from crosshead.results.conformity import ConformRecord
from crosshead.results.terminal import _one_line as plain_line
from crosshead.results.terminal import _print as print_line

_MOST_LINES = 12
_COLOURS = {"pass": "green", "suspect": "yellow", "fail": "bold red"}


def render_conformity(record: ConformRecord, console: Console) -> None:
    """Print a record, finished or not.

    Args:
        record: what to print.
        console: decides on width and colour.
    """
    print_line(
        console,
        (f"crosshead {record.crosshead} · {len(record.cases)} cases of {record.standard}: {record.match}", "bold"),
    )
    print_line(console, (environment_line(record.environment), "dim"))
    print_line(console, (record.rule.sentence, "dim"))
    console.print()
    _render_features(record, console)
    sections = (
        ("new", "bold red", rows.new_findings(record)),
        ("known", "yellow", rows.known_lines(record)),
        ("disagree", "yellow", rows.disagreement_lines(record)),
        ("unsupported", "dim", rows.unsupported_lines(record)),
    )
    for title, colour, lines in sections:
        for line in lines[:_MOST_LINES]:
            print_line(console, (f"{title}: ", colour), (line, ""))
        if len(lines) > _MOST_LINES:
            print_line(console, (f"{title}: ", colour), (f"{len(lines) - _MOST_LINES} more, in summary.md", ""))
        if lines:
            console.print()
    for notice in record.notices:
        where = f" ({notice.where})" if notice.where else ""
        print_line(console, (f"{notice.code}: ", "yellow"), (f"{notice.message}{where}", ""))
    print_line(console, (rows.closing(record), _COLOURS.get(record.verdict or "", "bold")))


def _render_features(record: ConformRecord, console: Console) -> None:
    found = rows.feature_rows(record)
    if not found:
        return
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    names = [backend.name for backend in record.backends]
    for title in ("feature", "", "cases", *names):
        table.add_column(justify="right" if title == "cases" else "left", overflow="fold")
    table.add_row(*(Text(plain_line(title, console), "bold") for title in ("feature", "", "cases", *names)))
    group = ""
    for row in found:
        shown = row.group if row.group != group else ""
        cells = [Text(plain_line(row.tallies[name].short(), console), _style(row.tallies[name])) for name in names]
        table.add_row(shown, Text(plain_line(row.value, console)), str(row.cases), *cells)
        group = row.group
    console.print(table)
    print_line(console, (rows.LEGEND, "dim"))
    console.print()


def _style(tally: rows.Tally) -> str:
    if tally.wrong or tally.failed:
        return "bold red"
    if tally.known:
        return "yellow"
    return "dim" if tally.unsupported else "green" if tally.passed else ""
