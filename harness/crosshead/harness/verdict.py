"""The verdict of a whole run, and the exit status that says it to a script."""

from collections.abc import Collection

from crosshead.results import RunRecord, RunResult

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def overall(record: RunRecord) -> RunResult:
    """Return fail, suspect or pass: the worst of graphs, cells, outputs and agreements."""
    outputs = [output.verdict for cell in record.cells for output in cell.outputs]
    graphs = [artifact.graph.verdict for artifact in record.artifacts]
    failed = (
        "fail" in graphs
        or "fail" in outputs
        or any(cell.status == "failed" for cell in record.cells)
        or any(agreement.verdict == "fail" for agreement in record.agreements)
    )
    if failed:
        return "fail"
    doubtful = "weak" in graphs or "suspect" in outputs or any(cell.status == "void" for cell in record.cells)
    return "suspect" if doubtful else "pass"


def exit_status(record: RunRecord, *, by_name: Collection[str], strict: bool, interrupted: bool) -> int:
    """Return the exit status of a run.

    Args:
        record: the run.
        by_name: backends asked for by name; one that could not run an artifact makes the status 2.
        strict: suspect, weak and void count as failures.
        interrupted: the run was stopped by Ctrl-C.
    """
    if interrupted:
        return EXIT_INTERRUPTED
    verdict = overall(record)
    if verdict == "fail" or (strict and verdict == "suspect"):
        return EXIT_FAIL
    if any(cell.status == "unsupported" and cell.backend in by_name for cell in record.cells):
        return EXIT_USAGE
    return EXIT_PASS
