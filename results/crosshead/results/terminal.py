"""A run as a table in the terminal, and the list of backends.

Wide terminals get one line a cell. Narrow ones get the same figures folded two by two, under a line for each case. A
cell without figures says why in their place. Nothing is taken as console markup: messages carry square brackets.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from crosshead.results._check_lines import Matrix, cause_lines, check_lines, matrices
from crosshead.results._rows import (
    NOTHING,
    Row,
    all_notices,
    artifact_titles,
    axes_line,
    closing_sentence,
    environment_line,
    footnotes,
    graph_line,
    make_rows,
    source_line,
)
from crosshead.results._stress_lines import stress_lines
from crosshead.results.records import RunRecord

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_GAP = 2
_NARROWEST = 8
_ASCII = str.maketrans({"±": "+/-", "×": "x", "µ": "u", "–": "-", "·": "|", "─": "-", "→": ">", "…": "..."})
_COLOURS = {
    "pass": "green",
    "suspect": "yellow",
    "FAIL": "bold red",
    "fail": "bold red",
    "failed": "red",
    "void": "yellow",
    "unsupported": "dim",
    "faster": "green",
    "slower": "yellow",
}


@dataclass(frozen=True)
class _Column:
    """Fields of a row that share a column, one line each."""

    fields: tuple[str, ...]
    titles: tuple[str, ...]
    right: bool = False


_IDENTITY = [_Column((name,), (name,)) for name in ("case", "artifact", "backend")]
_VERDICT = [_Column(("verdict",), ("verdict",))]
_WIDE = [
    *_IDENTITY,
    *_VERDICT,
    *(
        _Column((name,), (title,), right=True)
        for name, title in (
            ("expected", "×"),
            ("yardstick", "yardstick"),
            ("rel_l2", "rel_l2"),
            ("max_abs", "max_abs"),
            ("median", "median"),
            ("interval", "±"),
            ("p90", "p90"),
            ("p99", "p99"),
            ("ratio", "ratio"),
        )
    ),
    _Column(("word",), ("",)),
    _Column(("first_call",), ("first call",), right=True),
    _Column(("load",), ("load",), right=True),
]
_WIDEST = [*_WIDE, _Column(("memory",), ("peak memory",), right=True)]
_SPARING = [column for column in _WIDE if column.fields != ("yardstick",)]
_NARROW_IDENTITY = [_Column(("artifact", "backend"), ("artifact", "backend"))]
_NARROW = [
    *_NARROW_IDENTITY,
    _Column(("verdict", "expected"), ("verdict", "×")),
    _Column(("rel_l2", "max_abs"), ("rel_l2", "max_abs"), right=True),
    _Column(("yardstick",), ("yardstick",), right=True),
    _Column(("median", "interval"), ("median", "±"), right=True),
    _Column(("p90", "p99"), ("p90", "p99"), right=True),
    _Column(("ratio", "word"), ("ratio", ""), right=True),
    _Column(("first_call", "load"), ("first call", "load"), right=True),
]


def render_run(record: RunRecord, console: Console) -> None:
    """Print a run: what and where, the graph verdicts, a row for each cell, notices, and the verdict in a sentence.

    Args:
        record: a run, finished or not.
        console: decides on width and colour; a console that is no terminal gets no colour.
    """
    _print(console, (source_line(record), "bold"))
    _print(console, (environment_line(record.environment), "dim"))
    titles = artifact_titles(record.artifacts)
    if record.artifacts:
        console.print()
    for artifact in record.artifacts:
        colour = _COLOURS.get(artifact.graph.verdict, "")
        _print(console, (f"graph {titles[artifact.id]}: ", ""), (graph_line(artifact), colour))
        if artifact.axes:
            proved = all(said.startswith("proved") for said in artifact.axes.values())
            _print(
                console, (f"axes {titles[artifact.id]}: ", ""), (axes_line(artifact), "green" if proved else "yellow")
            )
    rows = make_rows(record)
    if rows:
        console.print()
        _render_rows(rows, console)
        for note in footnotes(record):
            _print(console, (note, "dim"))
    if record.stress:
        console.print()
    for line in stress_lines(record):
        colour = _COLOURS.get(line.verdict, "")
        _print(console, (f"stress {line.artifact} {line.backend}: ", ""), (line.sentence, colour))
        for reason in line.reasons:
            _print(console, (f"    {reason}", colour))
    _render_checks(record, console)
    notices = all_notices(record)
    if notices:
        console.print()
    for notice in notices:
        where = f" ({notice.where})" if notice.where else ""
        _print(console, (f"{notice.code}: ", "yellow"), (f"{notice.message}{where}", ""))
    console.print()
    _print(console, (closing_sentence(record), _COLOURS.get(record.verdict or "", "bold")))


def _render_checks(record: RunRecord, console: Console) -> None:
    """Print how far backends agree, what laws and noise say of each, and the causes of what is wrong."""
    tables, checks = matrices(record), check_lines(record)
    if tables or checks:
        console.print()
    for matrix in tables:
        _print(console, (f"agreement {matrix.case}: ", ""), (matrix.sentence, _COLOURS[matrix.verdict]))
        if matrix.verdict != "pass":
            _render_matrix(matrix, console)
    for line in checks:
        colour = _COLOURS.get(line.verdict, "")
        _print(console, (f"laws {line.artifact} {line.backend}: ", ""), (line.sentence, colour))
        for reason in line.reasons:
            _print(console, (f"    {reason}", colour))
    causes = cause_lines(record)
    if causes:
        console.print()
    for where, kind, message in causes:
        _print(console, ("cause ", ""), (kind, "bold"), (f" ({where}): {message}", ""))


def _render_matrix(matrix: Matrix, console: Console) -> None:
    """Print a matrix, its columns by number; each row begins with its own."""
    numbers = [str(number) for number in range(1, len(matrix.names) + 1)]
    heads = [f"{number} {name}" for number, name in zip(numbers, matrix.names, strict=True)]
    heads = [_one_line(head, console) for head in heads]
    fields = [[_one_line(field, console) for field in row] for row in matrix.fields]
    columns = [[number, *(row[place] for row in fields)] for place, number in enumerate(numbers)]
    widths = [max(map(cell_len, column)) for column in columns]
    grid = _grid([max(map(cell_len, heads), default=0), *widths], [False, *[True] * len(widths)], _GAP)
    grid.add_row(Text(""), *(Text(number, "bold") for number in numbers))
    for head, row in zip(heads, fields, strict=True):
        grid.add_row(Text(head), *(Text(field, "bold red" if "DIFFER" in field else "") for field in row))
    console.print(grid)


def render_backends(backends: Sequence[tuple[str, str, str, str]], console: Console) -> None:
    """Print what is installed, what is missing, and the command that would add it.

    Args:
        backends: (name, status, version or reason, remedy) each; the remedy may be empty.
        console: decides on width and colour.
    """
    colours = {"available": "green", "unavailable": "yellow", "missing": "yellow"}
    name_width = max((len(name) for name, *_ in backends), default=0)
    status_width = max((len(status) for _, status, *_ in backends), default=0)
    for name, status, detail, remedy in backends:
        grid = _grid([name_width, status_width, None], [False] * 3, _GAP)
        grid.add_row(name, Text(status, colours.get(status, "dim")), Text(_one_line(detail, console)))
        console.print(grid)
        if remedy:
            # Not folded: a command that is cut in two cannot be copied.
            text = _one_line(f"{'':{name_width + _GAP}}→ {remedy}", console)
            console.print(Text(text, "bold"), soft_wrap=True)


def _render_rows(rows: Sequence[Row], console: Console) -> None:
    rows = [_clean(row, console) for row in rows]  # before widths are taken: "±" may become "+/-"
    columns, identity, widths, gap = _layout(rows, console.width)
    head = _grid(widths, [column.right for column in columns], gap)
    head.add_row(*(Text(_plain("\n".join(column.titles), console), "bold") for column in columns))
    console.print(head)
    case = None
    for row in rows:
        if identity is _NARROW_IDENTITY and row.case != case:
            _print(console, (f"─ {row.case} ".ljust(min(console.width, 79), "─"), "dim"))
            case = row.case
        if row.measured:
            console.print(_figures(row, columns, widths, gap))
            for reason in row.reasons:
                _print(console, (f"    {reason}", _COLOURS.get(row.verdict, "")))
        else:
            console.print(_words(row, identity, widths, gap))


def _layout(rows: Sequence[Row], width: int) -> tuple[list[_Column], list[_Column], list[int], int]:
    """Return columns, which of them say which cell it is, their widths, and the gap between them."""
    for columns in (_WIDEST, _WIDE, _SPARING):
        shown = _filled(columns, rows)
        wide = _widths(shown, rows)
        for gap in (2, 1):
            if sum(wide) + gap * (len(wide) - 1) <= width:
                return shown, _IDENTITY, wide, gap
    shown = _filled(_NARROW, rows)
    if _over(shown, rows, width) > 0:
        shown = [column for column in shown if column.fields != ("yardstick",)]
    narrow = _widths(shown, rows)
    narrow[0] = max(_NARROWEST, narrow[0] - max(0, _over(shown, rows, width)))  # long names fold
    return shown, _NARROW_IDENTITY, narrow, 1


def _over(columns: Sequence[_Column], rows: Sequence[Row], width: int) -> int:
    """Return by how much columns with a gap of 1 are wider than the console."""
    widths = _widths(columns, rows)
    return sum(widths) + len(widths) - 1 - width


def _filled(columns: Sequence[_Column], rows: Sequence[Row]) -> list[_Column]:
    """Return the columns in which some row has a figure, and those that say which row it is, with its verdict."""
    measured = [row for row in rows if row.measured]
    return [
        column
        for column in columns
        if column in (*_IDENTITY, *_NARROW_IDENTITY)
        or "verdict" in column.fields
        or any(getattr(row, field) not in ("", NOTHING) for row in measured for field in column.fields)
    ]


def _figures(row: Row, columns: Sequence[_Column], widths: Sequence[int], gap: int) -> Table:
    grid = _grid(widths, [column.right for column in columns], gap)
    grid.add_row(*(_cell(row, column) for column in columns))
    return grid


def _words(row: Row, identity: Sequence[_Column], widths: Sequence[int], gap: int) -> Table:
    """Return a row without figures: which cell, its status, and the reason over all the columns that are left."""
    status_width = max(len(row.verdict), widths[len(identity)])
    grid = _grid([*widths[: len(identity)], status_width, None], [False] * (len(identity) + 2), gap)
    grid.add_row(*(_cell(row, column) for column in (*identity, *_VERDICT)), Text(" ".join(row.reasons)))
    return grid


def _cell(row: Row, column: _Column) -> Text:
    lines = [
        Text(getattr(row, field), _colour(row, field) or ("dim" if place else ""))
        for place, field in enumerate(column.fields)
    ]
    return Text("\n").join(lines)


def _clean(row: Row, console: Console) -> Row:
    words = {name: _one_line(value, console) for name, value in vars(row).items() if isinstance(value, str)}
    return dataclasses.replace(row, **words, reasons=tuple(_one_line(reason, console) for reason in row.reasons))


def _colour(row: Row, field: str) -> str:
    return _COLOURS.get(getattr(row, field), "") if field in ("verdict", "word") else ""


def _widths(columns: Sequence[_Column], rows: Iterable[Row]) -> list[int]:
    """Return how wide each column must be; rows without figures count only where they show something."""
    widths = [max(map(len, column.titles)) for column in columns]
    for row in rows:
        for i, column in enumerate(columns):
            if row.measured or column.fields[0] in ("case", "artifact", "backend"):
                widths[i] = max(widths[i], *(cell_len(getattr(row, field)) for field in column.fields))
    return widths


def _grid(widths: Sequence[int | None], right: Sequence[bool], gap: int) -> Table:
    grid = Table.grid(padding=(0, gap, 0, 0), pad_edge=False)
    for width, to_right in zip(widths, right, strict=True):
        grid.add_column(width=width, justify="right" if to_right else "left", overflow="fold")
    return grid


def _print(console: Console, *parts: tuple[str, str]) -> None:
    """Print text, each part with its style, folded at the width of the console."""
    console.print(Text.assemble(*((_one_line(text, console), style) for text, style in parts)), overflow="fold")


def _one_line(text: str, console: Console) -> str:
    """Return text without control characters, so that what a worker printed cannot steer the terminal."""
    return _plain(_CONTROL.sub(" ", _ESCAPE.sub("", text)), console)


def _plain(text: str, console: Console) -> str:
    if not console.options.ascii_only:
        return text
    return text.translate(_ASCII).encode("ascii", "replace").decode()
