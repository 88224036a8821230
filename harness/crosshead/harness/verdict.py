"""The verdict of a whole run, and the exit status that says it to a script."""

from collections.abc import Collection

from crosshead.results import RunRecord, RunResult

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def overall(record: RunRecord) -> RunResult:
    """Return fail, suspect or pass: the worst of all that was judged; suspect if nothing was."""
    outputs = [output.verdict for cell in (*record.cells, *record.stress) for output in cell.outputs]
    graphs = [artifact.graph.verdict for artifact in record.artifacts]
    failed = (
        "fail" in graphs
        or "fail" in outputs
        or any(cell.status == "failed" for cell in (*record.cells, *record.stress))
        or any(agreement.verdict == "fail" for agreement in record.agreements)
        or any(law.verdict == "fail" for law in record.laws)
    )
    if failed:
        return "fail"
    doubtful = (
        "weak" in graphs
        or "suspect" in outputs
        or any(cell.status == "void" for cell in record.cells)
        or any(law.verdict == "suspect" for law in record.laws)
    )
    return "suspect" if doubtful or _nothing_ran(record) else "pass"


def _nothing_ran(record: RunRecord) -> bool:
    """Whether there are cells, and none gave an output to judge, or a time in a run that only times."""
    useful = any(cell.status == "ok" and (cell.outputs or record.plan.timed) for cell in record.cells)
    return bool(record.cells) and not useful


def exit_status(record: RunRecord, *, by_name: Collection[str], strict: bool, interrupted: bool) -> int:
    """Return the exit status of a run.

    Args:
        record: the run.
        by_name: backends asked for by name; one that could not run an artifact makes the status 2.
        strict: suspect, weak and void count as failures; that nothing ran is told by 2 where a backend asked for by
            name is why.
        interrupted: the run was stopped by Ctrl-C.
    """
    if interrupted:
        return EXIT_INTERRUPTED
    verdict = overall(record)
    unsupported = any(cell.status == "unsupported" and cell.backend in by_name for cell in record.cells)
    if verdict == "fail" or (strict and verdict == "suspect" and not (unsupported and _nothing_ran(record))):
        return EXIT_FAIL
    if unsupported:
        return EXIT_USAGE
    return EXIT_PASS
