"""What follows from the loads: saturation and the largest rate that is kept of a cell; verdict and status of a test."""

from collections.abc import Collection, Sequence

from crosshead.harness.verdict import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS, EXIT_USAGE
from crosshead.results import RunResult
from crosshead.results.load_records import KeptRecord, LoadPointRecord, LoadRecord, SaturationRecord


def saturation(points: Sequence[LoadPointRecord]) -> SaturationRecord | None:
    """Return where throughput stops following the rate; None where no rate has figures.

    Where loads contradict each other (one kept up with, above one that was not), the lower one bounds.
    """
    tried = [point for point in points if point.rate_per_s is not None and point.throughput_per_s is not None]
    if not tried:
        return None
    stops = min((point.rate_per_s or 0.0 for point in tried if point.status == "saturated"), default=None)
    follows = [
        point.rate_per_s or 0.0
        for point in tried
        if point.status == "ok" and (stops is None or (point.rate_per_s or 0.0) < stops)
    ]
    return SaturationRecord(
        follows_per_s=max(follows, default=None),
        stops_per_s=stops,
        throughput_per_s=max(point.throughput_per_s or 0.0 for point in tried),
    )


def kept_rate(points: Sequence[LoadPointRecord], why_stopped: str) -> KeptRecord:
    """Return the largest rate that keeps every objective, below the smallest that misses one.

    Args:
        points: of a cell, with objectives.
        why_stopped: why no more rates were tried; empty where enough were.
    """
    tried = [point for point in points if point.rate_per_s is not None and point.objectives]
    lost = min(
        (
            point.rate_per_s or 0.0
            for point in tried
            if any(objective.verdict == "missed" for objective in point.objectives)
        ),
        default=None,
    )
    kept = [
        point.rate_per_s or 0.0
        for point in tried
        if point.status == "ok"
        and all(objective.verdict == "met" for objective in point.objectives)
        and (lost is None or (point.rate_per_s or 0.0) < lost)
    ]
    reason = why_stopped
    if not kept and not reason:
        reason = "none of the rates tried kept every objective" if lost is not None else "no rate was decided"
    return KeptRecord(kept_per_s=max(kept, default=None), lost_per_s=lost, reason=reason)


def overall_load(record: LoadRecord, *, searched: bool) -> RunResult:
    """Return fail where an objective is missed at a load that was given, no rate keeps one, or a cell failed.

    Suspect where one is undecided, or a load or cell has no figures; else pass.

    Args:
        record: of the test.
        searched: whether rates were looked for.
    """
    verdicts: list[RunResult] = ["pass"]
    for cell in record.cells:
        verdicts += {"failed": ["fail"], "void": ["suspect"]}.get(cell.status, [])  # type: ignore[arg-type]  # both are
        for point in cell.points:
            given = [objective.verdict for objective in point.objectives if point.given]
            verdicts += ["fail"] if "missed" in given else ["suspect"] if "undecided" in given else []
            verdicts += ["suspect"] if point.given and point.status in ("too-short", "void") else []
        if searched and cell.kept is not None and cell.kept.kept_per_s is None:
            verdicts.append("fail" if cell.kept.lost_per_s is not None else "suspect")
    if "fail" in verdicts:
        return "fail"
    nothing = bool(record.cells) and not any(cell.status == "ok" for cell in record.cells)
    return "suspect" if nothing or "suspect" in verdicts else "pass"


def load_exit_status(record: LoadRecord, *, by_name: Collection[str], strict: bool, interrupted: bool) -> int:
    """Return the exit status of a load test.

    Args:
        record: of the test, with its verdict.
        by_name: backends asked for by name; one that could not serve makes the status 2.
        strict: suspect counts as failure.
        interrupted: it was stopped by Ctrl-C.
    """
    if interrupted:
        return EXIT_INTERRUPTED
    if record.verdict == "fail":
        return EXIT_FAIL
    if any(cell.status == "unsupported" and cell.backend in by_name for cell in record.cells):
        return EXIT_USAGE
    return EXIT_FAIL if strict and record.verdict == "suspect" else EXIT_PASS
