"""A run in words: what the terminal table and the Markdown summary both show."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from crosshead.results.records import (
    ArtifactRecord,
    CellRecord,
    ComparisonRecord,
    EnvironmentRecord,
    LatencyRecord,
    Notice,
    OutputRecord,
    RatioResult,
    RunRecord,
)

NOTHING = "–"
"""Stands where there is no figure."""

BASELINE_BACKEND = "torch-eager"

_SOURCE_BACKENDS = "torch-"
"""Backends whose names begin so run the PyTorch source; the artifact gives them weights alone."""

_NOT_RIGHT = ("suspect", "FAIL", "failed")
_SEVERITY = {"pass": 0, "suspect": 1, "fail": 2}
_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


@dataclass(frozen=True)
class Row:
    """One cell in words.

    Attributes:
        verdict: `pass`, `suspect` or `FAIL`; `timed` where nothing was compared; else the cell's status.
        expected: error in units of the expected rounding, e.g. `0.9×`.
        yardstick: that rounding, as relative L2.
        ratio: latency over the baseline's, e.g. `0.78`; word: its verdict.
        reasons: why the verdict is not pass, or why there are no figures; one sentence each.
    """

    case: str
    artifact: str
    backend: str
    verdict: str
    expected: str = NOTHING
    yardstick: str = NOTHING
    rel_l2: str = NOTHING
    max_abs: str = NOTHING
    median: str = NOTHING
    interval: str = ""
    p90: str = NOTHING
    p99: str = NOTHING
    ratio: str = NOTHING
    word: str = ""
    first_call: str = NOTHING
    load: str = NOTHING
    memory: str = NOTHING
    reasons: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether the row has figures; otherwise its reason stands in their place."""
        return self.verdict in ("pass", "suspect", "FAIL", "timed")


def baseline(record: RunRecord, case: str) -> CellRecord | None:
    """Return the cell that the others of a case are held against: torch-eager if it was timed, else the first timed."""
    timed = [cell for cell in record.cells if cell.case == case and _has_latency(cell)]
    eager = [cell for cell in timed if cell.backend == BASELINE_BACKEND]
    return next(iter(eager or timed), None)


def ratio_to(record: RunRecord, cell: CellRecord, other: CellRecord) -> tuple[float, RatioResult] | None:
    """Return the recorded ratio of a cell's latency to another's and its verdict, whichever way it was recorded."""
    turned: dict[RatioResult, RatioResult] = {"faster": "slower", "slower": "faster"}
    for comparison in record.comparisons:
        if comparison.case == cell.case and _names(comparison) == (cell.label, other.label):
            return comparison.ratio, comparison.verdict
        if comparison.case == cell.case and _names(comparison) == (other.label, cell.label) and comparison.ratio > 0.0:
            return 1.0 / comparison.ratio, turned.get(comparison.verdict, comparison.verdict)
    return None


def make_rows(record: RunRecord) -> list[Row]:
    """Return a row for each cell, in the record's order within each case, cases in order of appearance."""
    cases = list(dict.fromkeys(cell.case for cell in record.cells))
    unit = table_unit(record)
    titles = artifact_titles(record.artifacts)
    threads = {cell.threads for cell in record.cells}
    return [
        _make_row(record, cell, unit, titles, show_threads=len(threads) > 1)
        for case in cases
        for cell in record.cells
        if cell.case == case
    ]


def _make_row(record: RunRecord, cell: CellRecord, unit: str | None, titles: dict[str, str], show_threads: bool) -> Row:
    row = Row(
        case=cell.case,
        artifact=subject_title(record, cell, titles),
        backend=f"{cell.backend} ({cell.threads} threads)" if show_threads else cell.backend,
        verdict=verdict_word(cell),
        reasons=_reasons(cell),
    )
    if not row.measured:
        return row
    figures: dict[str, str] = {}
    if cell.outputs:
        figures |= {
            "expected": times(_largest(output.times_expected for output in cell.outputs)),
            "yardstick": error(_largest(output.yardstick for output in _furthest(cell))),
            "rel_l2": error(_largest(output.rel_l2 for output in cell.outputs)),
            "max_abs": error(_largest(output.max_abs for output in cell.outputs)),
        }
    if cell.peak_rss_bytes is not None:
        figures["memory"] = size(cell.peak_rss_bytes)
    if cell.latency is not None:
        figures |= _latency(cell.latency, unit) | _against_baseline(record, cell)
    return Row(**{**vars(row), **figures})


def _furthest(cell: CellRecord) -> list[OutputRecord]:
    """Return the output that is furthest off in yardsticks: what is measured by its own one; none where none is."""
    known = [output for output in cell.outputs if output.times_expected is not None and output.yardstick is not None]
    return sorted(known, key=lambda output: output.times_expected or 0.0)[-1:]


def subject_title(record: RunRecord, cell: CellRecord, titles: dict[str, str]) -> str:
    """Return what was run: the title of the artifact; of the module itself its precision, unless there is one for all.

    Args:
        record: the run.
        cell: one of its cells.
        titles: of `artifact_titles`.
    """
    if not cell.backend.startswith(_SOURCE_BACKENDS):
        return titles.get(cell.artifact, cell.artifact)
    precisions = {artifact.id: artifact.precision for artifact in record.artifacts}
    return "module" if len(set(precisions.values())) < 2 else f"module {precisions.get(cell.artifact, '')}".strip()


def _latency(latency: LatencyRecord, unit: str | None) -> dict[str, str]:
    missing = latency.missing_samples
    percentiles = {
        name: duration(value, unit)
        if value is not None
        else f"needs {missing[name]} more"
        if name in missing
        else NOTHING
        for name, value in (("p90", latency.p90_s), ("p99", latency.p99_s))
    }
    return percentiles | {
        "median": duration(latency.median_s, unit),
        "interval": interval(latency),
        "first_call": duration(latency.first_call_s),
        "load": duration(latency.session_s),
    }


def _against_baseline(record: RunRecord, cell: CellRecord) -> dict[str, str]:
    against = baseline(record, cell.case)
    if against is None:
        return {}
    if against.label == cell.label:
        return {"ratio": "1", "word": "baseline"}
    found = ratio_to(record, cell, against)
    return {"ratio": significant(found[0]), "word": found[1]} if found is not None else {}


def verdict_word(cell: CellRecord) -> str:
    """Return the verdict of a cell's worst output, in capitals where it fails; the status of a cell without figures."""
    if cell.status != "ok":
        return cell.status
    if not cell.outputs:
        return "timed"
    worst = max((output.verdict for output in cell.outputs), key=_SEVERITY.__getitem__)
    return "FAIL" if worst == "fail" else worst


def _reasons(cell: CellRecord) -> tuple[str, ...]:
    if cell.status != "ok":
        return (cell.reason or "no reason was recorded",)
    named = len(cell.outputs) > 1
    return tuple(
        f"{output.name}: {output.reason}" if named else output.reason for output in cell.outputs if output.reason
    )


def artifact_titles(artifacts: Iterable[ArtifactRecord]) -> dict[str, str]:
    """Return by id: form, opset and precision (unless one for all); the id where two artifacts agree in these."""
    artifacts = list(artifacts)
    one_precision = len({artifact.precision for artifact in artifacts}) == 1
    titles = {
        artifact.id: f"{artifact.form} {artifact.opset}" + ("" if one_precision else f" {artifact.precision}")
        for artifact in artifacts
    }
    counts = Counter(titles.values())
    return {id_: title if counts[title] == 1 else id_ for id_, title in titles.items()}


def graph_line(artifact: ArtifactRecord) -> str:
    """Return the answer to the graph question of one artifact."""
    graph = artifact.graph
    parts: list[str] = ["FAIL" if graph.verdict == "fail" else graph.verdict]
    if graph.rel_l2 is not None:
        parts.append(f"rel_l2 {error(graph.rel_l2)} in float64")
    if graph.literal_sensitivity is not None:
        parts.append(f"literal sensitivity {error(graph.literal_sensitivity)}")
    if graph.parameters_equal is not None:
        parts.append("parameters equal" if graph.parameters_equal else "parameters DIFFER")
    if graph.detail:
        parts.append(graph.detail)
    return ", ".join(parts)


def axes_line(artifact: ArtifactRecord) -> str:
    """Return what is known of each dynamic axis of one artifact; empty where nothing was asked."""
    return " · ".join(f"{name} {said}" for name, said in artifact.axes.items())


def environment_line(environment: EnvironmentRecord) -> str:
    """Return the machine and the libraries that matter in one line."""
    cores = f"{environment.cores} cores" if environment.cores != 1 else "1 core"
    if environment.cpu_quota is not None:
        cores += f" (quota {significant(environment.cpu_quota)})"
    parts = [environment.cpu_model, cores]
    parts += [gpu.name for gpu in environment.gpus]
    parts += [f"{environment.os} {environment.machine}", f"Python {environment.python}"]
    parts += [f"{name} {version}" for name, version in environment.versions.items()]
    return " · ".join(parts)


def source_line(record: RunRecord) -> str:
    """Return what was run, on how many threads, with how many processes a cell."""
    plan = record.plan
    options = ", ".join(f"{name}={value}" for name, value in plan.options.items())
    parts = [f"crosshead {record.crosshead}", plan.source + (f" ({options})" if options else "")]
    parts.append(f"{plan.threads} threads" if plan.threads != 1 else "1 thread")
    if plan.timed:
        parts.append(f"{plan.processes} processes a cell" if plan.processes != 1 else "1 process a cell")
    return " · ".join([*parts, record.started])


def all_notices(record: RunRecord) -> list[Notice]:
    """Return the notices of the run and of its artifacts, each once."""
    own = [
        notice if notice.where else Notice(code=notice.code, message=notice.message, where=artifact.id)
        for artifact in record.artifacts
        for notice in artifact.notices
    ]
    return list({(n.code, n.message, n.where): n for n in [*own, *record.notices]}.values())


def footnotes(record: RunRecord) -> list[str]:
    """Say how to read the table, where that is not plain."""
    notes: list[str] = []
    rules = {output.rule for cell in record.cells for output in cell.outputs}
    if rules & {"yardstick", "sensitivity"}:
        limits = "pass to 5, suspect to 50" if "yardstick" in rules else "pass to 10, suspect to 100"
        if rules >= {"yardstick", "sensitivity"}:
            limits += " (10 and 100 where PyTorch's own error cannot serve as the measure)"
        notes.append(f"× is the error in units of the rounding that the case must have, the yardstick: {limits}.")
    names = {
        cell.backend for row in {cell.case for cell in record.cells} if (cell := baseline(record, row)) is not None
    }
    if names and record.comparisons:
        notes.append(
            f"ratio is the latency over that of {' or '.join(sorted(names))} in the same case; below 1 is faster."
        )
    spans = sorted({cell.latency.calls_per_sample for cell in record.cells if cell.latency is not None} - {1})
    if spans:
        notes.append(
            f"Calls this short are timed {spans[-1]} at a time or fewer; p90 and p99 are of the means of such groups."
        )
    if any(cell.latency is not None and cell.latency.ci_low_s is not None for cell in record.cells):
        notes.append("± is the 95 % interval of the median over processes.")
    compiled = [
        f"{cell.backend} {cell.case} {duration(cell.latency.compile_s)}"
        + (f" (again, from the run's cache: {duration(again)})" if (again := cell.latency.compile_cached_s) else "")
        for cell in record.cells
        if cell.latency is not None and cell.latency.compile_s is not None
    ]
    if compiled:
        notes.append(f"Compiling for the case comes before the first call and is no part of it: {', '.join(compiled)}.")
    notes += _growth_notes(record)
    held = [
        (cell.case, all(output.given is None or output.given.verdict == "pass" for output in cell.outputs))
        for cell in record.cells
        if any(output.given is not None for output in cell.outputs)
    ]
    if held:
        cases = ", ".join(dict.fromkeys(case for case, _ in held))
        agree = sum(same for _, same in held)
        notes.append(f"Held against the outputs given with the inputs as well ({cases}): {agree} of {len(held)} agree.")
    unsteady = [cell.label for cell in record.cells if cell.latency is not None and not cell.latency.steady]
    if unsteady:
        notes.append(f"Never reached a steady state in its warm-up: {', '.join(dict.fromkeys(unsteady))}.")
    return notes


def _growth_notes(record: RunRecord) -> list[str]:
    titles = artifact_titles(record.artifacts)
    grown = [
        f"{cell.case} {titles.get(cell.artifact, cell.artifact)} {cell.backend} "
        f"{size(cell.growth.rss_end_bytes - cell.growth.rss_start_bytes, signed=True)}, "
        f"{significant(cell.growth.new_shape_call_s / cell.growth.repeat_call_s)} times"
        for cell in record.cells
        if cell.growth is not None and cell.growth.repeat_call_s > 0.0
    ]
    if not grown:
        return []
    calls = next(cell.growth.calls for cell in record.cells if cell.growth is not None)
    head = (
        f"What a process keeps more after {calls} calls with varying lengths, and what the first call of a length costs"
    )
    return [f"{head} against its later ones: {'; '.join(grown)}."]


def closing_sentence(record: RunRecord) -> str:
    """Return the overall verdict, and for each case the fastest cell that passes."""
    rows = [verdict_word(cell) for cell in record.cells]
    compared = sum(word in ("pass", "suspect", "FAIL") for word in rows)
    counts = Counter(rows)
    parts: list[str] = []
    if compared:
        parts.append(f"{counts['pass']} of {compared} cells compute the same function as the float64 oracle")
    elif rows and not {"timed", "void"} & set(rows):
        parts.append("Nothing was compared")
    parts += [f"{counts[word]} {word}" for word in ("suspect", "FAIL", "failed", "unsupported", "void") if counts[word]]
    bad_graphs = sum(artifact.graph.verdict == "fail" for artifact in record.artifacts)
    if bad_graphs:
        parts.append(f"{bad_graphs} of {len(record.artifacts)} graphs FAIL")
    doubted = sum(law.verdict == "suspect" for law in record.laws)
    broken = sum(law.verdict == "fail" for law in record.laws)
    parts += [f"{count} laws {word}" for count, word in ((doubted, "suspect"), (broken, "FAIL")) if count]
    differ = sum(agreement.verdict == "fail" for agreement in record.agreements)
    if differ:
        parts.append(f"{differ} of {len(record.agreements)} pairs of backends DIFFER")
    hard = Counter(verdict_word(cell) for cell in record.stress)
    parts += [f"{hard[word]} of {len(record.stress)} stress cases {word}" for word in _NOT_RIGHT if hard[word]]
    verdict = (record.verdict or "none").replace("fail", "FAIL")
    head = f"Verdict: {verdict}" if record.finished else "Unfinished: the run was interrupted"
    sentence = f"{head}. {', '.join(parts)}." if parts else f"{head}."
    fastest = [text for case in dict.fromkeys(cell.case for cell in record.cells) if (text := _fastest(record, case))]
    word = "Fastest that passes" if compared else "Fastest"
    return f"{sentence} {word}: {'; '.join(fastest)}." if fastest else sentence


def _fastest(record: RunRecord, case: str) -> str | None:
    bad_graphs = {artifact.id for artifact in record.artifacts if artifact.graph.verdict == "fail"}
    good = "pass" if any(cell.outputs for cell in record.cells) else "timed"
    passing = [
        cell
        for cell in record.cells
        if cell.case == case
        and _has_latency(cell)
        and verdict_word(cell) == good
        and (cell.artifact not in bad_graphs or cell.backend.startswith(_SOURCE_BACKENDS))
    ]
    ordered = sorted(passing, key=lambda cell: cell.latency.median_s if cell.latency is not None else math.inf)
    if not ordered:
        return None
    best, unit, titles = ordered[0], table_unit(record), artifact_titles(record.artifacts)

    def name(cell: CellRecord) -> str:
        if cell.backend.startswith(_SOURCE_BACKENDS):
            return cell.backend
        return f"{cell.backend} with {titles.get(cell.artifact, cell.artifact)}"

    assert best.latency is not None  # `passing` asks for it
    text = f"{case} {name(best)}, {duration(best.latency.median_s, unit)}"
    against = baseline(record, case)
    if against is not None and against.label != best.label and (found := ratio_to(record, best, against)):
        text += f" ({significant(found[0])} of {against.backend}, {found[1]})"
    rivals = [cell for cell in ordered[1:] if (found := ratio_to(record, best, cell)) and found[1] != "faster"]
    if rivals:
        text += f", not told apart from {', '.join(name(cell) for cell in rivals)}"
    return text


def table_unit(record: RunRecord) -> str | None:
    """Return one unit for all latencies of a run, that of the smallest median, so that rows compare at a glance."""
    medians = [cell.latency.median_s for cell in record.cells if cell.latency is not None]
    return _unit(min(medians))[0] if medians else None


def duration(value_s: float, unit: str | None = None) -> str:
    """Return seconds with three significant digits in a unit (`s`, `ms`, `µs`, `ns`), by default one that fits."""
    name, scale = next(entry for entry in _UNITS if entry[0] == unit) if unit is not None else _unit(value_s)
    return f"{significant(value_s / scale)} {name}"


def size(value_bytes: int, *, signed: bool = False) -> str:
    """Return bytes as whole megabytes (10^6)."""
    return f"{value_bytes / 1e6:+.0f} MB" if signed else f"{value_bytes / 1e6:.0f} MB"


def _unit(value_s: float) -> tuple[str, float]:
    return next((entry for entry in _UNITS if value_s >= entry[1]), _UNITS[-1])


def interval(latency: LatencyRecord) -> str:
    """Return the farther end of the interval as a share of the median, e.g. `±1.3 %`."""
    if latency.ci_low_s is None or latency.ci_high_s is None or latency.median_s <= 0.0:
        return "1 process" if latency.processes == 1 else ""
    reach = max(latency.ci_high_s - latency.median_s, latency.median_s - latency.ci_low_s) / latency.median_s
    return f"±{100.0 * reach:.1f} %" if reach < 10.0 else f"±{100.0 * reach:.0e} %"


def significant(value: float) -> str:
    """Return a number with three significant digits, whole from 100 on."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def error(value: float | None) -> str:
    """Return an error with two significant digits."""
    if value is None:
        return NOTHING
    return "0" if value == 0.0 else f"{value:.1e}"


def times(value: float | None) -> str:
    """Return an error in units of the expected rounding."""
    if value is None:
        return NOTHING
    return f"{value:.1f}×" if value < 10.0 else f"{value:.0f}×" if value < 1e5 else f"{value:.0e}×"


def _largest(values: Iterable[float | None]) -> float | None:
    """Return the largest, NaN if any is, None if nothing was measured."""
    known = [value for value in values if value is not None]
    return math.nan if any(math.isnan(value) for value in known) else max(known, default=None)


def _has_latency(cell: CellRecord) -> bool:
    return cell.status == "ok" and cell.latency is not None


def _names(comparison: ComparisonRecord) -> tuple[str, str]:
    return comparison.a, comparison.b
