"""A conformity record as Markdown (`summary.md`): verdict first, then backends, findings and features."""

from crosshead.results import _conformity_rows as rows
from crosshead.results._rows import environment_line
from crosshead.results.conformity import ConformRecord
from crosshead.results.markdown import _table as markdown_table
from crosshead.results.markdown import _text as markdown_text
from crosshead.results.privacy import scrub_record


def conformity_summary(record: ConformRecord) -> str:
    """Return a record as GitHub-flavoured Markdown, free text scrubbed."""
    record = scrub_record(record)
    parts = [f"# Cases of {markdown_text(record.standard)} with `{record.match}` in their name"]
    parts.append(markdown_text(rows.closing(record)))
    lines = (
        f"crosshead {record.crosshead} · {record.threads} threads · {record.started}",
        environment_line(record.environment),
        record.rule.sentence,
    )
    parts.append("\n".join(f"- {markdown_text(line)}" for line in lines))
    counts = [
        (each.name, each.version, *map(str, (each.passed, each.wrong, each.failed, each.known, each.unsupported)))
        for each in record.backends
    ]
    heads = ("backend", "version", "pass", "wrong", "failed", "of these known", "unsupported")
    parts += ["## Backends", markdown_table(heads, counts)]
    for title, found in (
        ("New deviations", rows.new_findings(record)),
        ("Known deviations", rows.known_lines(record)),
        ("Where backends disagree", rows.disagreement_lines(record)),
        ("Unsupported", rows.unsupported_lines(record)),
    ):
        if found:
            parts += [f"## {title}", "\n".join(f"- {markdown_text(line)}" for line in found)]
    features = [
        (row.group, row.value, str(row.cases), *(row.tallies[each.name].words() for each in record.backends))
        for row in rows.feature_rows(record)
    ]
    if features:
        names = [each.name for each in record.backends]
        parts += ["## By feature", markdown_table(("feature", "value", "cases", *names), features)]
    if record.notices:
        told = [f"- `{n.code}`: {markdown_text(n.message)} ({markdown_text(n.where)})" for n in record.notices]
        parts += ["## Notices", "\n".join(told)]
    return "\n\n".join(parts) + "\n"
