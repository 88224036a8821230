"""A load test as tables in the terminal, one a cell. Nothing is taken as console markup."""

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosshead.results._rows import environment_line
from crosshead.results.load_records import LoadRecord
from crosshead.results.load_rows import (
    LOAD_FOOTNOTES,
    LoadRow,
    cell_findings,
    cell_heading,
    cell_rows,
    load_closing,
    load_notices,
    load_source_line,
)
from crosshead.results.terminal import _one_line as one_line

_COLUMNS = (
    (("load", "verdict"), ("load", "verdict")),
    (("throughput", "busy"), ("throughput", "busy")),
    (("p50", "p90"), ("latency p50", "p90")),
    (("p99", "p999"), ("p99", "p99.9")),
    (("queue_mean", "queue_p99"), ("queue mean", "p99")),
    (("service_p50", "service_p99"), ("service p50", "p99")),
)
"""Fields that share a column, one line each, and their titles."""

_WIDEST_FIRST = 14

_COLOURS = {"pass": "green", "fail": "bold red", "suspect": "yellow"}


def render_load(record: LoadRecord, console: Console) -> None:
    """Print a load test: what and where, a table for each cell with what follows from it, notices, and the verdict.

    Args:
        record: finished or not.
        console: decides on width and colour.
    """
    _print(console, load_source_line(record), "bold")
    _print(console, environment_line(record.environment), "dim")
    for cell in record.cells:
        console.print()
        _print(console, f"─ {cell_heading(cell, record.artifacts)} ".ljust(min(console.width, 79), "─"), "dim")
        rows = cell_rows(cell)
        if cell.status != "ok" and not rows:
            _print(console, f"{cell.status}: {cell.reason}", "yellow")
            continue
        _table(rows, console)
        if cell.status == "failed":
            _print(console, f"failed: {cell.reason}", "red")
        for sentence in cell_findings(cell):
            _print(console, sentence, "")
    console.print()
    for note in LOAD_FOOTNOTES:
        _print(console, note, "dim")
    notices = load_notices(record)
    if notices:
        console.print()
    for notice in notices:
        _print(console, f"{notice.code}: {notice.message}" + (f" ({notice.where})" if notice.where else ""), "")
    console.print()
    _print(console, load_closing(record), _COLOURS.get(record.verdict or "", "bold"))


def _table(rows: list[LoadRow], console: Console) -> None:
    words = [
        [[one_line(getattr(row, field), console) for field in fields] for fields, _ in _COLUMNS]
        for row in rows
        if row.measured
    ]
    titles = [[one_line(title, console) for title in titles] for _, titles in _COLUMNS]
    widths = [max(cell_len(text) for line in [titles, *words] for text in line[i]) for i in range(len(_COLUMNS))]
    widths[0] = min(widths[0], _WIDEST_FIRST)  # a long verdict folds, not the figures
    if words:
        console.print(_line(titles, widths, "bold"))
    measured = iter(words)
    for row in rows:
        if row.measured:
            bad = row.verdict.startswith(("MISSED", "saturated"))
            console.print(_line(next(measured), widths, "red" if bad else ""))
            if row.reason:
                _print(console, f"    {row.reason}", "yellow")
        else:
            _print(console, f"{row.load}  {row.verdict}: {row.reason}", "yellow")


def _line(cells: list[list[str]], widths: list[int], style: str) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    for place, width in enumerate(widths):
        grid.add_column(width=width, justify="left" if place == 0 else "right", overflow="fold")
    grid.add_row(
        *(Text("\n".join(lines), style if place == 0 or style == "bold" else "") for place, lines in enumerate(cells))
    )
    return grid


def _print(console: Console, text: str, style: str) -> None:
    console.print(Text(one_line(text, console), style), overflow="fold")
