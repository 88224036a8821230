"""What stands beside the table in words: laws and noise, the matrix of agreements, and causes."""

from collections.abc import Sequence
from dataclasses import dataclass

from crosshead.results._rows import BASELINE_BACKEND, artifact_titles, error, significant, subject_title, times
from crosshead.results.records import AgreementRecord, CellRecord, LawRecord, NoiseRecord, RunRecord

SAME_INPUT = "same-input-twice"
"""The law that noise tells as well."""

_NO_CELL = "–"
_SEVERITY = {"pass": 0, "suspect": 1, "fail": 2}


@dataclass(frozen=True)
class CheckLine:
    """Laws and noise of one (artifact, backend).

    Attributes:
        artifact: title of the artifact, or of the module that was run.
        backend: its name.
        verdict: the worst of its laws, in capitals where it fails.
        laws: how many hold, and the one that came nearest to its limit.
        noise: what it differs from itself by.
        reasons: of each law that is broken or doubted, and of each that could not be asked.
    """

    artifact: str
    backend: str
    verdict: str
    laws: str
    noise: str
    reasons: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The line without its reasons."""
        return "; ".join(part for part in (self.laws, f"against itself {self.noise}" if self.noise else "") if part)


@dataclass(frozen=True)
class Matrix:
    """Every cell of one case and precision against every other.

    Attributes:
        case: its name.
        names: of the rows and columns.
        fields: one row a name; the error in yardsticks, and `DIFFER` where two do not agree.
        sentence: the matrix in a line: how many pairs agree, and the largest error.
        verdict: `pass`, or `fail` where a pair differs.
    """

    case: str
    names: tuple[str, ...]
    fields: tuple[tuple[str, ...], ...]
    sentence: str
    verdict: str


def check_lines(record: RunRecord) -> list[CheckLine]:
    """Return a line for each (artifact, backend) that was asked for laws or noise, in the record's order."""
    titles = artifact_titles(record.artifacts)
    asked = [(law.backend, law.artifact) for law in record.laws]
    asked += [(noise.backend, noise.artifact) for noise in record.noise]
    lines = []
    for backend, artifact in dict.fromkeys(asked):
        laws = [each for each in record.laws if (each.backend, each.artifact) == (backend, artifact)]
        noise = [each for each in record.noise if (each.backend, each.artifact) == (backend, artifact)]
        worst = max((law.verdict for law in laws), key=_SEVERITY.__getitem__, default="pass")
        broken = [f"{law.law}: {law.verdict}: {law.reason}" for law in laws if law.verdict != "pass"]
        unasked = [f"{law.law}: {law.reason}" for law in laws if law.reason.startswith("not asked")]
        lines.append(
            CheckLine(
                artifact=_title(record, backend, artifact, titles),
                backend=backend,
                verdict="FAIL" if worst == "fail" else worst,
                laws=_laws(laws),
                noise=_noise(noise),
                reasons=(*broken, *unasked),
            )
        )
    return lines


def _title(record: RunRecord, backend: str, artifact: str, titles: dict[str, str]) -> str:
    """Return what was run, as the table calls it."""
    cells = [cell for cell in record.cells if (cell.backend, cell.artifact) == (backend, artifact)]
    return subject_title(record, cells[0], titles) if cells else titles.get(artifact, artifact)


def _laws(laws: Sequence[LawRecord]) -> str:
    asked = [law for law in laws if law.violation is not None]
    if not asked:
        return ""
    held = [law for law in asked if law.verdict == "pass"]
    counts = f"{len(held)} laws hold" if len(held) == len(asked) else f"{len(held)} of {len(asked)} laws hold"
    known = [law for law in held if law.violation and law.limit and law.law != SAME_INPUT]
    nearest = max(known, key=lambda law: (law.violation or 0.0) / law.limit, default=None)
    if nearest is None:
        return f"{counts}, bit for bit" if held else counts
    return f"{counts}, nearest {nearest.law} at {significant(nearest.violation or 0.0)} u of {nearest.limit:g}"


def _noise(noise: Sequence[NoiseRecord]) -> str:
    parts = [
        (what, [value for each in noise if (value := getattr(each, field)) is not None])
        for field, what in (("repeat", "repeated"), ("other_batch", "other batch"), ("other_threads", "other threads"))
    ]
    same = [what for what, values in parts if values and not max(values)]
    apart = [f"{what} rel_l2 {error(max(values))}" for what, values in parts if values and max(values)]
    return ", ".join([f"same bits ({', '.join(same)})"] * bool(same) + apart)


def matrices(record: RunRecord) -> list[Matrix]:
    """Return a matrix for each case and precision of which two cells were held against each other."""
    titles = artifact_titles(record.artifacts)
    precisions = {artifact.id: artifact.precision for artifact in record.artifacts}
    cells = {(cell.case, cell.label): cell for cell in record.cells}
    groups: dict[tuple[str, str], list[AgreementRecord]] = {}
    for each in record.agreements:
        known = cells.get((each.case, each.a))
        precision = precisions.get(known.artifact, "") if known is not None else ""
        groups.setdefault((each.case, precision), []).append(each)
    several = len({precision for _, precision in groups}) > 1
    return [
        _matrix(f"{case} {precision}" if several else case, case, found, record, cells, titles)
        for (case, precision), found in groups.items()
    ]


def _matrix(
    name: str,
    case: str,
    found: Sequence[AgreementRecord],
    record: RunRecord,
    cells: dict[tuple[str, str], CellRecord],
    titles: dict[str, str],
) -> Matrix:
    labels = list(dict.fromkeys(label for each in found for label in (each.a, each.b)))
    pairs = {frozenset((each.a, each.b)): each for each in found}
    names = tuple(_short(label, cells.get((case, label)), record, titles) for label in labels)
    fields = tuple(tuple(_field(pairs.get(frozenset((a, b)))) for b in labels) for a in labels)
    agree = sum(each.verdict == "pass" for each in found)
    worst = max(found, key=lambda each: each.yardsticks)
    by_label = dict(zip(labels, names, strict=True))
    noise = f", noise {error(worst.noise)}" if worst.noise else ""
    sentence = (
        f"{agree} of {len(found)} pairs agree, furthest apart {by_label[worst.a]} and {by_label[worst.b]}: "
        f"{times(worst.yardsticks)}, rel_l2 {error(worst.error)}{noise}"
    )
    return Matrix(name, names, fields, sentence, "pass" if agree == len(found) else "fail")


def _short(label: str, cell: CellRecord | None, record: RunRecord, titles: dict[str, str]) -> str:
    if cell is None:
        return label
    title = subject_title(record, cell, titles)
    return cell.backend if cell.backend == BASELINE_BACKEND else f"{cell.backend} {title}"


def _field(agreement: AgreementRecord | None) -> str:
    if agreement is None:
        return _NO_CELL
    return times(agreement.yardsticks) + (" DIFFER" if agreement.verdict != "pass" else "")


def cause_lines(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return where, kind and message of each cause."""
    return [(cause.where, cause.kind, cause.message) for cause in record.causes]
