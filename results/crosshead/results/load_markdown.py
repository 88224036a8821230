"""A load test as Markdown (`summary.md`), for a pull request or a public report."""

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
from crosshead.results.markdown import _table as table
from crosshead.results.markdown import _text as plain_text
from crosshead.results.privacy import scrub_record

_HEADS = ["load", "verdict", "throughput", "busy", "latency p50", "p90", "p99", "p99.9"]
_HEADS += ["queue mean", "queue p99", "service p50", "service p99"]


def load_summary(record: LoadRecord) -> str:
    """Return a load test as GitHub-flavoured Markdown, free text scrubbed: verdict first, then cells and notices."""
    record = scrub_record(record)
    parts = [f"# Load: {plain_text(record.plan.source)}", plain_text(load_closing(record))]
    lines = (load_source_line(record), environment_line(record.environment))
    parts.append("\n".join(f"- {plain_text(line)}" for line in lines))
    for cell in record.cells:
        parts.append(f"## {plain_text(cell_heading(cell, record.artifacts))}")
        if cell.status != "ok":
            parts.append(f"**{cell.status}**: {plain_text(cell.reason)}")
        rows = cell_rows(cell)
        if rows:
            parts.append(table(_HEADS, [_cells(row) for row in rows]))
        said = [f"{row.load}: {row.reason}" for row in rows if row.reason] + cell_findings(cell)
        if said:
            parts.append("\n".join(f"- {plain_text(sentence)}" for sentence in said))
    parts.append("\n".join(plain_text(note) for note in LOAD_FOOTNOTES))
    notices = load_notices(record)
    if notices:
        told = [
            f"- `{n.code}`: {plain_text(n.message)}" + (f" ({plain_text(n.where)})" if n.where else "") for n in notices
        ]
        parts += ["## Notices", "\n".join(told)]
    return "\n\n".join(parts) + "\n"


def _cells(row: LoadRow) -> tuple[str, ...]:
    verdict = f"**{row.verdict}**" if "MISSED" in row.verdict else row.verdict
    latency = (row.p50, row.p90, row.p99, row.p999)
    return (
        row.load,
        verdict,
        row.throughput,
        row.busy,
        *latency,
        row.queue_mean,
        row.queue_p99,
        row.service_p50,
        row.service_p99,
    )
