"""A run as Markdown (`summary.md`), for a pull request or a public report."""

import re
from collections.abc import Iterable, Sequence

from crosshead.results._check_lines import cause_lines, check_lines, matrices
from crosshead.results._rows import (
    NOTHING,
    Row,
    all_notices,
    artifact_titles,
    axes_line,
    baseline,
    closing_sentence,
    environment_line,
    footnotes,
    graph_line,
    make_rows,
    source_line,
)
from crosshead.results._stress_lines import left_out_line, stress_lines
from crosshead.results.privacy import scrub_record
from crosshead.results.records import RunRecord


def summary(record: RunRecord) -> str:
    """Return a run as GitHub-flavoured Markdown, free text scrubbed: verdict first, then graphs, cells and notices."""
    record = scrub_record(record)
    parts = [f"# {_text(record.plan.source)}", _text(closing_sentence(record))]
    parts.append("\n".join(f"- {_text(line)}" for line in (source_line(record), environment_line(record.environment))))
    if record.artifacts:
        titles = artifact_titles(record.artifacts)
        graphs = [(titles[a.id], f"`{a.id}`", graph_line(a), _ops(a.ops)) for a in record.artifacts]
        parts += ["## Graphs, in float64", _table(("artifact", "id", "verdict", "nodes"), graphs)]
        axes = [f"- axes of {titles[a.id]}: {_text(axes_line(a))}" for a in record.artifacts if a.axes]
        parts += ["\n".join(axes)] if axes else []
    rows = make_rows(record)
    if rows:
        names = {cell.backend for row in rows if (cell := baseline(record, row.case)) is not None}
        against = f"ratio to {names.pop()}" if len(names) == 1 else "ratio to the case's baseline"
        heads = ["case", "artifact", "backend", "verdict", "times expected", "yardstick", "rel_l2", "max_abs"]
        heads += ["median of a call", "p90", "p99", against, "first call", "load", "peak memory"]
        parts += ["## Cells", _table(*_filled(heads, [_cells(row) for row in rows]))]
        reasons = [f"- {row.case}, {row.artifact}, {row.backend}: {reason}" for row in rows for reason in row.reasons]
        if reasons:
            parts += ["\n".join(_text(reason) for reason in reasons)]
        notes = footnotes(record)
        if notes:
            parts.append(_text(" ".join(notes)))
    parts += [*_agreement(record), *_checks(record), *_stress(record)]
    if record.causes:
        causes = [f"- **{kind}**, {_text(where)}: {_text(message)}" for where, kind, message in cause_lines(record)]
        parts += ["## Causes", "\n".join(causes)]
    notices = all_notices(record)
    if notices:
        lines = [f"- `{n.code}`: {_text(n.message)}" + (f" ({_text(n.where)})" if n.where else "") for n in notices]
        parts += ["## Notices", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _agreement(record: RunRecord) -> list[str]:
    parts = []
    for matrix in matrices(record):
        rows = [(name, *fields) for name, fields in zip(matrix.names, matrix.fields, strict=True)]
        parts += [f"### Case {_text(matrix.case)}", _text(f"{matrix.sentence}."), _table(("", *matrix.names), rows)]
    return ["## Agreement, in yardsticks", *parts] if parts else []


def _checks(record: RunRecord) -> list[str]:
    lines = check_lines(record)
    if not lines:
        return []
    table = [(each.artifact, each.backend, each.verdict, each.laws, each.noise) for each in lines]
    parts = ["## Laws and noise", _table(("artifact", "backend", "verdict", "laws", "against itself"), table)]
    reasons = [f"- {each.artifact}, {each.backend}: {reason}" for each in lines for reason in each.reasons]
    return [*parts, "\n".join(_text(reason) for reason in reasons)] if reasons else parts


def _filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that no row has a figure in; the first four say which row it is."""
    used = [place for place in range(len(heads)) if place < 4 or any(row[place] not in ("", NOTHING) for row in rows)]
    return [heads[place] for place in used], [[row[place] for place in used] for row in rows]


def _stress(record: RunRecord) -> list[str]:
    lines = stress_lines(record)
    if not lines:
        return []
    heads = ("artifact", "backend", "verdict", "cases", "worst that passes", "rows told apart")
    table = [(each.artifact, each.backend, each.verdict, each.counts, each.worst, each.apart) for each in lines]
    parts = ["## Stress set", _table(heads, table)]
    reasons = [f"- {each.artifact}, {each.backend}: {reason}" for each in lines for reason in each.reasons]
    parts += ["\n".join(_text(reason) for reason in reasons)] if reasons else []
    left_out = left_out_line(record)
    return [*parts, _text(f"Left out: {left_out}.")] if left_out else parts


def _cells(row: Row) -> tuple[str, ...]:
    identity = (row.case, row.artifact, row.backend, f"**{row.verdict}**" if row.verdict == "FAIL" else row.verdict)
    errors = (row.expected, row.yardstick, row.rel_l2, row.max_abs)
    latency = (f"{row.median} {row.interval}".strip(), row.p90, row.p99, f"{row.ratio} {row.word}".strip())
    return (*identity, *errors, *latency, row.first_call, row.load, row.memory)


def _ops(ops: dict[str, int]) -> str:
    """Return the counts of the attention and matrix-product nodes, and of all."""
    telling = {name: count for name, count in sorted(ops.items()) if re.search(r"Attention|MatMul|Gemm|Softmax", name)}
    return ", ".join(
        [*(f"{count} {name.removeprefix('::')}" for name, count in telling.items()), f"{sum(ops.values())} in all"]
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_text(cell) for cell in line)} |" for line in lines)


def _text(text: str) -> str:
    """Return text that stands as it is: on one line, without HTML, columns or emphasis of its own."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
    return re.sub(r"([\\|<>\[\]])", r"\\\1", text)
