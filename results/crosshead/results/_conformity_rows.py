"""What terminal and Markdown both tell of a conformity record: counts by feature, findings, disagreements."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from crosshead.results._rows import error, significant
from crosshead.results.conformity import ConformBackend, ConformCase, ConformRecord, ConformResult, FeatureRecord

_MODES: Final = {0: "as multiplied", 1: "capped", 2: "masked", 3: "softmax"}
_NAMED: Final = 3
"""So many cases are named where several are meant; all stand in `conform.json`."""


@dataclass(frozen=True)
class Tally:
    """How many cases ended how; `known` are no part of `wrong` and `failed`, those are new."""

    passed: int = 0
    wrong: int = 0
    failed: int = 0
    known: int = 0
    unsupported: int = 0

    def short(self) -> str:
        """Return it as `212 2k 22u`."""
        parts = (("", self.passed), ("w", self.wrong), ("f", self.failed), ("k", self.known), ("u", self.unsupported))
        return " ".join(f"{count}{letter}" for letter, count in parts if count) or "–"

    def words(self) -> str:
        """Return it in words."""
        parts = (
            ("pass", self.passed),
            ("**wrong**", self.wrong),
            ("**failed**", self.failed),
            ("known deviation", self.known),
            ("unsupported", self.unsupported),
        )
        return ", ".join(f"{count} {word}" for word, count in parts if count) or "–"


LEGEND: Final = "k known deviation, u unsupported, w wrong, f failed (both new); a number alone: pass."


@dataclass(frozen=True)
class FeatureRow:
    """One value of one feature: how many cases have it, and how each backend does on them."""

    group: str
    value: str
    cases: int
    tallies: Mapping[str, Tally]


def tally(results: Iterable[ConformResult]) -> Tally:
    """Count results."""
    counts = dict.fromkeys(Tally.__dataclass_fields__, 0)
    for result in results:
        kind = "passed" if result.status == "pass" else "known" if result.known else result.status
        counts[kind] += 1
    return Tally(**counts)


def feature_rows(record: ConformRecord) -> list[FeatureRow]:
    """Return a row for each value that a feature has in some case."""
    rows = []
    for group, values in _GROUPS.items():
        having: dict[str, list[ConformCase]] = {}
        for case in record.cases:
            for value in values(case.features):
                having.setdefault(value, []).append(case)
        for value in sorted(having):
            results = [result for case in having[value] for result in case.results]
            tallies = {
                backend.name: tally(result for result in results if result.backend == backend.name)
                for backend in record.backends
            }
            rows.append(FeatureRow(group, value, len(having[value]), tallies))
    return rows


def _op(features: FeatureRecord) -> list[str]:
    domain, _, name = features.op.rpartition("::")
    return [name if domain == "ai.onnx" else f"{name} ({domain.removeprefix('ai.onnx.')})"]


def _mask(features: FeatureRecord) -> list[str]:
    return ["none"] if features.mask == "none" else [f"{features.mask}, rank {features.mask_rank}"]


def _switches(features: FeatureRecord) -> list[str]:
    names = {
        "causal": features.causal,
        "local window": features.window,
        "past": features.past,
        "present": features.present,
        "number of valid keys": features.padded_kv,
        "softcap": features.softcap,
        "scale given": features.scale,
        "values of another size": features.value_size,
        "softmax precision given": bool(features.softmax_precision),
    }
    return [name for name, on in names.items() if on]


def _scores(features: FeatureRecord) -> list[str]:
    mode = features.qk_output
    return [] if mode is None else [f"{mode}, {_MODES.get(mode, 'unknown')}"]


_GROUPS: Final[Mapping[str, Callable[[FeatureRecord], list[str]]]] = {
    "operator": _op,
    "form": lambda features: ["function body" if features.expanded else "operator"],
    "opset": lambda features: [str(features.opset)],
    "dtype": lambda features: [features.dtype or "unknown"],
    "layout": lambda features: [features.layout] if features.layout else [],
    "heads": lambda features: [features.heads] if features.layout else [],
    "mask": lambda features: _mask(features) if features.layout else [],
    "mask repeated along": lambda features: list(features.mask_broadcast),
    "with": _switches,
    "scores as an output": _scores,
}


def backend_line(backend: ConformBackend) -> str:
    """Return the counts of one backend in words."""
    off = [f"{count} {word}" for word, count in (("wrong", backend.wrong), ("failed", backend.failed)) if count]
    known = backend.known
    of_these = " (known)" if known and known == backend.wrong + backend.failed else f" ({known} known)" if known else ""
    parts = [f"{backend.passed} pass", *([" and ".join(off) + of_these] if off else [])]
    parts += [f"{backend.unsupported} unsupported"] if backend.unsupported else []
    parts += [f"{backend.left} not reached"] if backend.left else []
    return f"{backend.name} {backend.version}: {', '.join(parts)}"


def finding(case: ConformCase, result: ConformResult) -> str:
    """Return what is off in one case, in one line."""
    figures = ""
    if result.worst is not None:
        worst = result.worst
        where = f"[{', '.join(map(str, worst.index))}]"
        figures = f"; worst at {where}: {significant(worst.got)}, expected {significant(worst.want)}"
        if result.rel_l2 is not None:
            figures += f"; rel_l2 {error(result.rel_l2)}"
    return f"{result.backend}, {case.name}: {result.status}: {result.reason}{figures}"


def new_findings(record: ConformRecord) -> list[str]:
    """Return a line for each result that is wrong or failed and not known."""
    return [
        finding(case, result)
        for case in record.cases
        for result in case.results
        if result.status in ("wrong", "failed") and not result.known
    ]


def known_lines(record: ConformRecord) -> list[str]:
    """Return a line for each known deviation that a case shows, and for each that no longer shows."""
    lines = []
    for known in record.known:
        if known.seen:
            lines.append(f"{known.backend}, {_cases(known.seen)}: {known.message} [{known.id}]")
        if known.gone:
            lines.append(f"{known.backend}, no longer seen in {_cases(known.gone)}: {known.message} [{known.id}]")
    return lines


def unsupported_lines(record: ConformRecord) -> list[str]:
    """Return a line for each reason for which a backend does not take cases."""
    reasons: dict[tuple[str, str], list[ConformCase]] = {}
    for case in record.cases:
        for result in case.results:
            if result.status == "unsupported":
                reasons.setdefault((result.backend, result.reason), []).append(case)
    lines = []
    for (backend, reason), cases in reasons.items():
        dtypes = sorted({case.features.dtype for case in cases})
        more = "" if any(dtype in reason for dtype in dtypes) else f" ({', '.join(dtypes)})"
        lines.append(f"{backend}, {_cases([case.name for case in cases])}: {reason}{more}")
    return lines


def disagreement_lines(record: ConformRecord) -> list[str]:
    """Return a line for each two backends and which of them the standard supports."""
    pairs: dict[tuple[str, str, str, str], list[str]] = {}
    for each in record.disagreements:
        pairs.setdefault((each.a, each.b, each.supported, each.known), []).append(each.case)
    lines = []
    for (a, b, supported, known), names in pairs.items():
        whom = f"the standard supports {supported}" if supported else "the standard supports neither"
        lines.append(f"{a} and {b} disagree on {_cases(names)}: {whom}{f' [{known}]' if known else ''}")
    return lines


def closing(record: ConformRecord) -> str:
    """Return the verdict in a sentence."""
    if record.verdict is None:
        reached = sum(len(case.results) for case in record.cases)
        return f"Stopped before the end, after {reached} results."
    new = sum(backend.wrong + backend.failed - backend.known for backend in record.backends)
    known = sum(backend.known for backend in record.backends)
    counts = "; ".join(map(backend_line, record.backends))
    say = {
        "fail": f"{new} {'result is' if new == 1 else 'results are'} off in a way that is not known",
        "suspect": f"{known} known {'deviation' if known == 1 else 'deviations'}, nothing new"
        if known
        else "no backend took any of these cases",
        "pass": "everything that ran gives what the standard expects",
    }
    return f"Verdict: {record.verdict}: {say[record.verdict]}. {counts}."


def _cases(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return f"{len(names)} {'case' if len(names) == 1 else 'cases'} ({shown})"
