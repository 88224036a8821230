"""Ask a backend whether the laws of attention hold on it: a check that needs no reference (docs/method.md, "Laws")."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, FormError, open_arrays
from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.harness.examine import Findings, Subject
from crosshead.harness.lawbook import CALLS, GAINS, LAWS, Law, Pair, Question
from crosshead.harness.metrics import is_floating
from crosshead.harness.signature import Signature, distance, largest
from crosshead.results import LawRecord, OutputResult, scrub
from crosshead.runtimes import BackendError, WorkerError

SAME_INPUT: Final = "same-input-twice"

CALIBRATED: Final = ("torch-eager", "onnx-reference", "ort-cpu", "fake")
"""Backends whose natural violations were measured; on another one a small breach is doubted, not failed."""

SURE_YARDSTICKS: Final = 5.0
"""On a backend that is not calibrated a breach below so many yardsticks is *suspect*."""

ROUNDING_YARDSTICKS: Final = 10.0
"""Where two sides may be rounded differently they are the same within so many yardsticks, as two backends are."""

NOISE_TIMES: Final = 2.0
"""A breach counts above so many times what a backend differs from itself by on the same inputs."""

DOUBT_SHARE: Final = 0.25
"""A law that the graph breaks in float64 by more than this share of its limit does not hold of the module."""

REPEATS: Final = 2

BUDGET_S: Final = 15.0
"""No law is begun on a backend after so long."""


MOST_ELEMENTS: Final = 1 << 24
"""Laws hold several outputs in memory at once: they are not asked where one has more elements."""


@dataclass(frozen=True)
class _Breach:
    """The pair that comes nearest to its limit, or goes furthest beyond it.

    Attributes:
        violation_u, limit_u: in unit roundoffs of the largest output.
        yardsticks: the same distance as relative L2, of the whole and of the worst row, over the yardsticks; infinite
            where there are none.
        same: whether the two sides are no further apart than rounding explains, though beyond the limit.
        output: its name.
        pairs: how many were compared.
    """

    violation_u: float
    limit_u: float
    yardsticks: float
    same: bool
    output: str
    pairs: int = 0

    @property
    def broken(self) -> bool:
        return self.violation_u > self.limit_u and not self.same

    @property
    def rank(self) -> tuple[bool, float]:
        return self.broken, self.violation_u / self.limit_u


def ask_laws(subject: Subject) -> Findings:
    """Ask every law on the smallest case that ran."""
    return Findings(laws=_Asking(subject).records())


class _Asking:
    """One subject being asked."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._artifact = subject.artifact
        self._u = UNIT_ROUNDOFFS[self._artifact.manifest.precision]
        self._signature = Signature.of(self._artifact.manifest)
        inputs = {
            visited.cell.case: open_arrays(self._artifact.inputs_path(visited.cell.case)) for visited in subject.visits
        }
        self._name = min(inputs, key=lambda each: sum(array.size for array in inputs[each].values()))
        self._case = self._artifact.case(self._name)
        self._floor_u: dict[str, float] = {}

    @cached_property
    def _inputs(self) -> Arrays:
        return self._artifact.inputs(self._name)

    @cached_property
    def _graph(self) -> "_Graph":
        return _Graph(self._artifact)

    def _question(self) -> Question:
        precision = self._artifact.manifest.precision
        run = self._subject.runner.outputs
        return Question(self._signature, self._inputs, run, gain=GAINS[precision], seed=self._subject.seed)

    def records(self) -> list[LawRecord]:
        expected = self._artifact.stored_expected(self._name).values()
        elements = max((array.size for array in expected), default=0)
        if elements > MOST_ELEMENTS:
            why = f"an output of the smallest case holds {elements} elements; up to {MOST_ELEMENTS} are asked about"
            return [self._not_asked(law, why) for law in (CALLS, *LAWS)]
        question = self._question()
        began = time.perf_counter()
        found = [self._repeated(question)]
        if self._case.noise:
            return found
        calls = self._asked(CALLS, question)
        if calls is None:
            return found
        found.append(calls)
        if calls.verdict == "fail" or calls.violation is None:
            return found  # whatever depends on the call before it breaks every other law as well
        for law in LAWS:
            if time.perf_counter() - began > BUDGET_S:
                found.append(self._not_asked(law, f"{BUDGET_S:g} s were used up by the laws before it"))
            elif law.reshapes and self._subject.cell.runtime.capabilities.compiles:
                found.append(self._not_asked(law, "it is asked at other sizes, for which this backend would compile"))
            else:
                record = self._asked(law, question)
                found += [] if record is None else [record]
        return found

    def _repeated(self, question: Question) -> LawRecord:
        """Run the same inputs again and again, and take the spread as the floor of all other laws."""
        first = question.outputs
        for _ in range(REPEATS):
            for name, again in question.run(question.inputs).items():
                if is_floating(again) and again.shape == first[name].shape:
                    apart = self._in_u(distance(again, first[name]), largest(first[name]))
                    self._floor_u[name] = max(self._floor_u.get(name, 0.0), apart)
        spread = max(self._floor_u.values(), default=0.0)
        limit = max(
            (self._natural_u(name, first[name]) for name in self._floor_u),
            default=0.0,
        )
        told = f"the same inputs gave outputs up to {spread:.2g} u apart" if spread else ""
        verdict: OutputResult = "pass"
        if self._case.noise:
            told = "the module draws random numbers; no other law is asked"
        elif spread > limit:
            verdict = "suspect"
        return self._law(SAME_INPUT, verdict, limit, violation=spread, cases=1 + REPEATS, reason=told)

    def _asked(self, law: Law, question: Question) -> LawRecord | None:
        """Return what one law says; None where the graph has not what it speaks of."""
        try:
            breach = self._largest(law, law.ask(question))
        except BackendError as error:
            return self._not_asked(law, " ".join(str(error).split()))
        except WorkerError as error:
            reason = f"the worker was lost while it was asked: {' '.join(str(error).split())}"
            return self._law(law.name, "suspect", law.limit_u, reason=scrub(reason))
        if breach is None:
            return None
        if not breach.broken:
            beyond = breach.violation_u > breach.limit_u
            told = f"beyond the limit, and within rounding: {breach.yardsticks:.2g} yardsticks" if beyond else ""
            return self._record(law, breach, "pass", told)
        own = self._own_violation(law)
        if own is None or own > DOUBT_SHARE * law.limit_u:
            says = "cannot be evaluated in float64" if own is None else f"breaks it in float64 as well, by {own:.2g} u"
            return self._not_asked(law, f"the graph itself {says}", "does not apply")
        sure = self._subject.cell.runtime.name in CALIBRATED or breach.yardsticks >= SURE_YARDSTICKS
        times = f", {breach.yardsticks:.2g} yardsticks" if math.isfinite(breach.yardsticks) else ""
        reason = (
            f"{law.holds}: output {breach.output!r} breaks that by {breach.violation_u:.3g} u{times} "
            f"(limit {breach.limit_u:.3g} u); the graph keeps it in float64"
        )
        return self._record(law, breach, "fail" if sure else "suspect", reason)

    def _own_violation(self, law: Law) -> float | None:
        """Return by how much the graph breaks a law in float64, in u; None where it cannot be evaluated."""
        key = ("law", self._artifact.manifest.model_sha256, self._case.name, law.name)
        known = self._subject.known
        if key not in known:
            asked = Question(self._signature, self._inputs, self._graph.run, self._question().gain, self._subject.seed)
            try:
                pairs = list(law.ask(asked))
            except FormError:
                pairs = []
            distances = [self._in_u(distance(pair.got, pair.want), pair.scale) for pair in pairs]
            known[key] = max(distances, default=math.nan)
        return None if math.isnan(known[key]) else known[key]

    def _largest(self, law: Law, pairs: Iterable[Pair]) -> _Breach | None:
        worst: _Breach | None = None
        count = 0
        for pair in pairs:
            if not pair.scale or not pair.want.size:
                continue  # all zeros, or nothing finite: there is no measure
            count += 1
            limit = max(law.limit_u, NOISE_TIMES * self._floor_u.get(pair.output, 0.0))
            apart = distance(pair.got, pair.want) if pair.got.shape == pair.want.shape else math.inf
            yardsticks = self._yardsticks(pair) if math.isfinite(apart) else math.inf
            same = law.rounds and yardsticks <= ROUNDING_YARDSTICKS
            found = _Breach(self._in_u(apart, pair.scale), limit, yardsticks, same, pair.output)
            if worst is None or found.rank > worst.rank:
                worst = found
        return None if worst is None else replace(worst, pairs=count)

    def _yardsticks(self, pair: Pair) -> float:
        yardstick = self._case.yardsticks.get(pair.output)
        if yardstick is None:
            return math.inf
        whole, row = self._yard(pair.output), max(yardstick.sensitivity_row, yardstick.native_row or 0.0)
        return max(relative_l2(pair.got, pair.want) / whole, relative_l2_row(pair.got, pair.want) / max(whole, row))

    def _natural_u(self, output: str, array: NDArray[Any]) -> float:
        """Return how far two roundings of a typical element may lie apart, in u of the largest."""
        wide = array.astype("float64")
        scale = largest(wide)
        if not scale or not wide.size:
            return 0.0
        typical = math.sqrt(float((wide[abs(wide) <= scale] ** 2).mean()))
        return ROUNDING_YARDSTICKS * self._yard(output) * typical / (self._u * scale)

    def _yard(self, output: str) -> float:
        yardstick = self._case.yardsticks.get(output)
        if yardstick is None:
            return 0.0
        return max(yardstick.sensitivity, yardstick.native or 0.0, yardstick.unit_roundoff / 2)

    def _in_u(self, apart: float, scale: float) -> float:
        return 0.0 if not apart else apart / (self._u * scale) if scale else math.inf

    def _law(self, name: str, verdict: OutputResult, limit: float, **fields: Any) -> LawRecord:
        artifact, backend = self._artifact.id, self._subject.cell.runtime.name
        return LawRecord(law=name, artifact=artifact, backend=backend, verdict=verdict, limit=limit, **fields)

    def _record(self, law: Law, breach: _Breach, verdict: OutputResult, reason: str) -> LawRecord:
        fields = {"violation": breach.violation_u, "cases": breach.pairs, "reason": reason}
        return self._law(law.name, verdict, breach.limit_u, **fields)

    def _not_asked(self, law: Law, why: str, what: str = "not asked") -> LawRecord:
        return self._law(law.name, "pass", law.limit_u, reason=scrub(f"{what}: {why}"))


class _Graph:
    """The artifact's graph in float64, loaded at the first need of it."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    @cached_property
    def _loaded(self) -> Any:
        import onnx

        from crosshead.export.float64._graph import Float64Graph

        return Float64Graph.of(onnx.load(self._artifact.model_path))

    def run(self, inputs: Arrays) -> Mapping[str, NDArray[Any]]:
        outputs: Mapping[str, NDArray[Any]] = self._loaded.run(inputs)
        return outputs
