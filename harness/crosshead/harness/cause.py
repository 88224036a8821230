"""What kind of fault a failing cell shows: the graph, a kernel, a math mode, nondeterminism, or the data.

Evidence is gone through from the cheapest and surest to the dearest: what the artifact is known for, what two runs on
the same inputs differ by, NaN and Inf, and only then the graph in float64 under each math mode. What is left is a
kernel; the node is found by `crosshead diagnose`.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, unpack_arrays
from crosshead.export.error import relative_l2
from crosshead.harness.accuracy import NATIVE_BACKEND, Visit
from crosshead.harness.metrics import is_floating
from crosshead.harness.modes import MathModes
from crosshead.harness.overflow import CODE as OVERFLOW
from crosshead.results import CauseRecord, CellRecord, OutputRecord, RunRecord, scrub

Array = NDArray[Any]

MODE_LARGEST: Final = 0.5
"""No rounding of products makes a relative error beyond this; larger ones are not held against math modes."""

NOISE_SHARE: Final = 0.25
"""A backend that differs from itself by this share of its error is nondeterministic before anything else."""

ALIKE_SHARE: Final = 0.3
"""Backends fail alike when they differ from each other by at most this share of their error."""

NARROWED_TIMES: Final = 50.0
"""A cast to fp16 or bf16 inside a graph explains errors of up to so many of its unit roundoffs."""


def find_causes(visits: Sequence[Visit], artifacts: Mapping[str, Artifact], record: RunRecord) -> list[CauseRecord]:
    """Return the kind of fault of each artifact, and of each backend on it, that failed or is suspect.

    A backend gets one cause for an artifact, found on the case that is furthest off.

    Args:
        visits: of all cells, judged.
        artifacts: as they stand now, by id.
        record: the run so far: verdicts over graphs, stress set, laws and noise.
    """
    causes = [
        CauseRecord(where=each.id, kind="graph", message=_graph_message(each.graph.detail))
        for each in record.artifacts
        if each.graph.verdict == "fail"
    ]
    wrong = {cause.where for cause in causes}
    groups: dict[str, list[Visit]] = {}
    for visited in visits:
        groups.setdefault(visited.cell.label, []).append(visited)
    for group in groups.values():
        cell = group[0].cell
        if cell.runtime.capabilities.executes == "graph" and cell.artifact.id in wrong:
            continue  # the graph computes something else, whoever runs it
        found = _Suspicion(group, visits, artifacts[cell.artifact.id], record).cause()
        causes += [] if found is None else [found]
    return causes


def _graph_message(detail: str) -> str:
    first, *others = detail.split("; ")
    more = f" (and {len(others)} more)" if others else ""
    return f"the exported graph is not the module: {first}{more}"


@dataclass(frozen=True)
class _Suspicion:
    """One backend on one artifact, and everything that bears on it."""

    group: Sequence[Visit]
    visits: Sequence[Visit]
    artifact: Artifact
    record: RunRecord

    def cause(self) -> CauseRecord | None:
        """Return the cause; None where nothing is wrong that could be explained."""
        if self.visited is None:
            return self._elsewhere()
        for kind in (self._random, self._data, self._nondeterminism, self._graph, self._math_mode):
            found = kind()
            if found is not None:
                return found
        return self._kernel()

    @cached_property
    def visited(self) -> Visit | None:
        """The visit with the largest error; None where every case passes or has no outputs."""
        wrong = [each for each in self.group if each.outputs is not None and _worst(each.record) is not None]
        return max(wrong, key=_size, default=None)

    @property
    def _case(self) -> Visit:
        assert self.visited is not None, "asked only where a case is wrong"
        return self.visited

    @cached_property
    def _output(self) -> OutputRecord:
        output = _worst(self._case.record)
        assert output is not None, "asked only where a case is wrong"
        return output

    @cached_property
    def _got(self) -> Arrays:
        assert self._case.outputs is not None, "asked only where a case is wrong"
        return unpack_arrays(self._case.outputs)

    @property
    def _error(self) -> str:
        if self._output.times_expected is not None and math.isfinite(self._output.times_expected):
            return f"the error of {self._output.times_expected:.3g} yardsticks"
        return "the error"

    def _say(self, kind: Any, message: str) -> CauseRecord:
        others = [each.cell.case for each in self.group if each is not self._case and _worst(each.record) is not None]
        also = f"; so it is in case {', '.join(others)}" if others else ""
        where = f"{self._case.cell.label} {self._case.cell.case}"
        return CauseRecord(where=where, kind=kind, message=scrub(message + also))

    # --- one kind each

    def _random(self) -> CauseRecord | None:
        noise = self.artifact.case(self._case.cell.case).noise
        if not any(noise.values()):
            return None
        message = f"the module draws random numbers: two float64 evaluations of it differ by {max(noise.values()):.2g}"
        return self._say("nondeterminism", message)

    def _data(self) -> CauseRecord | None:
        output = self._output
        if output.reason.startswith("nothing to judge"):
            inputs = self.artifact.inputs(self._case.cell.case)
            bad = [name for name, array in inputs.items() if is_floating(array) and np.isnan(array).any()]
            of = f"; input {', '.join(map(repr, bad))} holds NaN" if bad else ""
            return self._say("data", f"{output.reason}{of}")
        if output.reason.startswith("ill-conditioned"):
            return self._say("data", f"no backend can do better: {output.reason}")
        nonfinite = output.nan > output.expected_nan or output.inf > output.expected_inf
        notices = [each for each in self.artifact.manifest.notices if each.code == OVERFLOW]
        if nonfinite and notices and self.artifact.manifest.precision == "fp16":
            return self._say("data", f"fp16 does not hold what the model computes: {notices[0].message}")
        return None

    def _nondeterminism(self) -> CauseRecord | None:
        noise = self._case.noise.get(self._output.name, 0.0)
        error = self._output.rel_l2
        if not noise or (error is not None and noise < NOISE_SHARE * error):
            return None
        of = f", and the error is {error:.2g}" if error is not None else ""
        message = (
            f"two runs on the same inputs in one process differ by rel_l2 {noise:.2g}{of}: it changes from call to call"
        )
        return self._say("nondeterminism", message)

    def _graph(self) -> CauseRecord | None:
        if self._case.cell.runtime.capabilities.executes != "graph":
            return None
        alike = self._alike()
        error = self._output.rel_l2
        casts = [each for each in self.artifact.manifest.notices if each.code == "narrowing-cast"]
        narrowed = casts and error is not None and error <= NARROWED_TIMES * UNIT_ROUNDOFFS["bf16"]
        if narrowed and (alike is None or alike):
            where = f" ({casts[0].where})" if casts[0].where else ""
            return self._say(
                "graph", f"{self._error} is in the graph, which narrows a value itself: {casts[0].message}{where}"
            )
        if alike:
            message = f"{self._error} is the same on {' and '.join(alike)}, so it is in the graph that they share"
            return self._say("graph", message)
        return None

    def _alike(self) -> list[str] | None:
        """Return the backends that fail alike on this graph; none where they do not, None where there is one alone."""
        here = [
            each
            for each in self.visits
            if each.cell.artifact.id == self.artifact.id
            and each.cell.case == self._case.cell.case
            and each.outputs is not None
            and each.cell.runtime.capabilities.executes == "graph"
        ]
        if len(here) < 2:
            return None
        name, error = self._output.name, self._output.rel_l2
        if error is None or not math.isfinite(error) or any(_worst(each.record) is None for each in here):
            return []
        native = [each for each in self.visits if each.cell.runtime.name == NATIVE_BACKEND and each.outputs is not None]
        if any(_worst(each.record) is not None for each in native if each.cell.case == self._case.cell.case):
            return []
        arrays = [unpack_arrays(each.outputs)[name] for each in here if each.outputs is not None]
        apart = max(relative_l2(a, b) for a, b in itertools.combinations(arrays, 2))
        return [each.cell.runtime.name for each in here] if apart <= ALIKE_SHARE * error else []

    def _math_mode(self) -> CauseRecord | None:
        if self._modes is None:
            return None
        sentence = self._modes.sentence(self._error)
        if sentence is None:
            return None
        return self._say("math-mode", f"{sentence}; ask this backend for full precision")

    @cached_property
    def _modes(self) -> MathModes | None:
        """The error against each math mode; None where it is larger than any rounding of products."""
        error = self._output.rel_l2
        if error is None or not 0.0 < error <= MODE_LARGEST:
            return None
        return MathModes(self.artifact, self._case.cell.case, self._got)

    def _kernel(self) -> CauseRecord:
        laws = [each.law for each in self._laws("fail", "suspect")]
        broken = f"; it breaks {', '.join(laws)}" if laws else ""
        best = next(iter(self._modes.shares), None) if self._modes is not None else None
        mode = (
            f", and no math mode explains it (at best {best.mode}, {max(0.0, best.explained):.0%})"
            if best is not None
            else ", and it is too large for a math mode"
        )
        graph = "the graph is right in float64" if self._judged_graph else "the graph in float64 is the measure"
        if self._case.cell.runtime.capabilities.executes == "module":
            graph = "the module is right in float64"
        reason = f"{self._error} comes with every call alike{mode}" if not self._output.nan else self._output.reason
        return self._say("kernel", f"{graph}; {reason}{broken}; `crosshead diagnose` names the node")

    @property
    def _judged_graph(self) -> bool:
        return any(
            each.id == self.artifact.id and each.graph.verdict in ("pass", "weak") for each in self.record.artifacts
        )

    # --- what shows only elsewhere

    def _elsewhere(self) -> CauseRecord | None:
        """Return the cause where the cases pass, and the stress set or a law does not."""
        cell = self.group[0].cell
        spread = [each for each in self._laws("suspect") if each.law == "same-input-twice"]
        if spread:
            return CauseRecord(where=cell.label, kind="nondeterminism", message=spread[0].reason)
        laws = self._laws("fail", "suspect")
        failed = [each for each in self._stress() if _worst(each) is not None]
        if not laws and not failed:
            return None
        said = [
            f"{each.law} ({each.violation:.3g} u, limit {each.limit:.3g})"
            for each in laws
            if each.violation is not None
        ]
        parts = [f"it breaks {', '.join(said)}"] if said else []
        if failed:
            parts.append(f"it is off in the stress set: {', '.join(each.case for each in failed)}")
        data = [each for each in failed if _is_data(each)]
        if failed and not laws and len(data) == len(failed):
            worst = _worst(data[0])
            assert worst is not None, "it is among those that are wrong"
            return CauseRecord(where=f"{cell.label} {data[0].case}", kind="data", message=scrub(worst.reason))
        message = f"the graph keeps in float64 what this backend does not: {'; '.join(parts)}"
        where = f"{cell.label} {failed[0].case}" if failed else cell.label
        return CauseRecord(where=where, kind="kernel", message=scrub(f"{message}; `crosshead diagnose` names the node"))

    def _laws(self, *verdicts: str) -> list[Any]:
        cell = self.group[0].cell
        mine = (each for each in self.record.laws if f"{each.backend}/{each.artifact}" == cell.label)
        return [each for each in mine if each.verdict in verdicts]

    def _stress(self) -> Iterator[CellRecord]:
        return (each for each in self.record.stress if each.label == self.group[0].cell.label)


def _worst(record: CellRecord) -> OutputRecord | None:
    """Return the output that is furthest off, of those that do not pass; None where all do."""
    wrong = [output for output in record.outputs if output.verdict != "pass"]
    return max(wrong, key=_far, default=None)


def _far(output: OutputRecord) -> tuple[bool, float]:
    times = output.times_expected
    return output.verdict == "fail", math.inf if times is None or math.isnan(times) else times


def _size(visited: Visit) -> tuple[bool, float]:
    worst = _worst(visited.record)
    return (False, 0.0) if worst is None else _far(worst)


def _is_data(record: CellRecord) -> bool:
    worst = _worst(record)
    return worst is not None and worst.reason.startswith(("ill-conditioned", "nothing to judge"))
