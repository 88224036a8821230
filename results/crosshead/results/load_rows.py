"""A load test in words: what the terminal table and the Markdown summary both show."""

from dataclasses import dataclass

from crosshead.results._rows import NOTHING, artifact_titles, duration, significant
from crosshead.results.load_records import LoadCellRecord, LoadPointRecord, LoadRecord, SpreadRecord
from crosshead.results.records import ArtifactRecord, Notice


@dataclass(frozen=True)
class LoadRow:
    """One load in words. Where there are no figures, `reason` says why.

    Attributes:
        load: `4 clients`, or `50/s`.
        verdict: of its objectives, in capitals where one is missed; its status where that is not ok.
        throughput: answers a second; busy: share of the workers' time.
        p50 to p999: of the latency, from the intended send time on.
        queue_mean, queue_p99, service_p50, service_p99: the two parts of it.
    """

    load: str
    verdict: str = ""
    throughput: str = NOTHING
    busy: str = NOTHING
    p50: str = NOTHING
    p90: str = NOTHING
    p99: str = NOTHING
    p999: str = NOTHING
    queue_mean: str = NOTHING
    queue_p99: str = NOTHING
    service_p50: str = NOTHING
    service_p99: str = NOTHING
    reason: str = ""

    @property
    def measured(self) -> bool:
        """Whether the row has figures."""
        return self.throughput != NOTHING


def cell_heading(cell: LoadCellRecord, artifacts: list[ArtifactRecord]) -> str:
    """Return backend, artifact and case of a cell in one line."""
    title = "module" if cell.backend.startswith("torch-") else artifact_titles(artifacts).get(cell.artifact, "")
    return f"{cell.backend} · {title or cell.artifact} · {cell.case}"


def cell_rows(cell: LoadCellRecord) -> list[LoadRow]:
    """Return a row for each load, closed loops first, then by rate."""
    order = sorted(cell.points, key=lambda point: (point.loop == "open", point.rate_per_s or 0.0, point.clients or 0))
    return [_row(point) for point in order]


def _row(point: LoadPointRecord) -> LoadRow:
    if point.clients is not None:
        load = f"{point.clients} client{'s' if point.clients != 1 else ''}"
    else:
        load = f"{significant(point.rate_per_s or 0.0)}/s"
    if point.throughput_per_s is None or point.busy_share is None:
        return LoadRow(load, verdict=point.status, reason=point.reason)
    missed = [objective.name for objective in point.objectives if objective.verdict == "missed"]
    open_ones = [objective for objective in point.objectives if objective.verdict == "undecided"]
    verdict = (
        f"MISSED {', '.join(missed)}" if missed else "undecided" if open_ones else "met" if point.objectives else ""
    )
    if point.status == "saturated":
        verdict = "saturated"  # then every objective is missed
    reason = point.reason
    if open_ones and not missed and point.status == "ok":
        needed = max(objective.missing_samples for objective in open_ones)
        reason = f"{open_ones[0].name} is undecided: it takes {needed} more requests, none of them late"
    return LoadRow(
        load,
        verdict=verdict,
        throughput=f"{significant(point.throughput_per_s)}/s",
        busy=f"{point.busy_share:.0%}",
        p50=_time(point.latency, "median"),
        p90=_time(point.latency, "p90"),
        p99=_time(point.latency, "p99"),
        p999=_time(point.latency, "p999"),
        queue_mean=duration(point.queue.mean_s) if point.queue is not None else NOTHING,
        queue_p99=_time(point.queue, "p99"),
        service_p50=_time(point.service, "median"),
        service_p99=_time(point.service, "p99"),
        reason=reason,
    )


def _time(spread: SpreadRecord | None, name: str) -> str:
    if spread is None:
        return NOTHING
    value = getattr(spread, f"{name}_s")
    if value is not None:
        return duration(value)
    missing = spread.missing_samples.get(name)
    return f"needs {missing}" if missing is not None else NOTHING


def cell_findings(cell: LoadCellRecord) -> list[str]:
    """Return what follows from the loads of a cell, a sentence each."""
    found = []
    if cell.kept is not None:
        kept, lost = cell.kept.kept_per_s, cell.kept.lost_per_s
        sentence = (
            f"The objectives are kept up to {significant(kept)} requests/s"
            if kept is not None
            else "No rate that keeps the objectives was found"
        )
        if lost is not None:
            sentence += f", missed at {significant(lost)}"
        found.append(f"{sentence}{f' ({cell.kept.reason})' if cell.kept.reason else ''}.")
    if cell.saturation is not None:
        follows, stops = cell.saturation.follows_per_s, cell.saturation.stops_per_s
        most = f"; the most that was answered is {significant(cell.saturation.throughput_per_s)} requests/s"
        if stops is not None:
            kept_up = f"follows to {significant(follows)} requests/s and " if follows is not None else ""
            found.append(f"Throughput {kept_up}stops following at {significant(stops)}{most}.")
        elif follows is not None:
            found.append(f"Throughput follows at every rate tried, to {significant(follows)} requests/s.")
    return found


def load_source_line(record: LoadRecord) -> str:
    """Return what was served, on how many threads, how many calls at a time."""
    plan = record.plan
    options = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    parts = [f"crosshead {record.crosshead}", "load", plan.source + (f" ({options})" if options else "")]
    parts.append(f"{plan.threads} threads a call" if plan.threads != 1 else "1 thread a call")
    if plan.workers is not None:
        parts.append(f"{plan.workers} workers" if plan.workers != 1 else "1 worker")
    parts += [f"objective {text}" for text in plan.objectives]
    return " · ".join([*parts, record.started])


LOAD_FOOTNOTES = (
    "latency counts from the intended send time: queue + service. service alone is what a client would see that sends "
    "only when it was answered.",
    "queue holds what an idle worker takes to wake. needs n: so many more requests it takes to speak of that "
    "percentile. saturated: latency grows for as long as one looks.",
)


def load_notices(record: LoadRecord) -> list[Notice]:
    """Return the notices of the test and of its artifacts, each once."""
    own = [notice for artifact in record.artifacts for notice in artifact.notices]
    return list({(n.code, n.message, n.where): n for n in [*own, *record.notices]}.values())


def load_closing(record: LoadRecord) -> str:
    """Return the verdict in a sentence."""
    if not record.finished:
        return "Unfinished: the load test was interrupted."
    judged = [
        objective for cell in record.cells for point in cell.points for objective in point.objectives if point.given
    ]
    parts = [f"{sum(o.verdict == word for o in judged)} {word}" for word in ("met", "missed", "undecided")]
    tail = f" Objectives at the loads that were given: {', '.join(parts)}." if judged else ""
    bad = [f"{cell.label} {cell.status}: {cell.reason}" for cell in record.cells if cell.status != "ok"]
    verdict = (record.verdict or "none").replace("fail", "FAIL")
    return f"Verdict: {verdict}.{tail}" + (f" {'; '.join(bad)}." if bad else "")
