"""Why an exported graph is not its module: the first node that departs from it, and what shows it."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, ExportError, FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import Float64Graph, graph_sensitivity, widen
from crosshead.harness.diagnose.bundle import Exhibit
from crosshead.harness.diagnose.culprit import LIMIT_TIMES, label
from crosshead.harness.diagnose.cutting import CutGraph, name_of, op_of
from crosshead.harness.diagnose.departure import Departure, find_departure, foreign_weights
from crosshead.harness.diagnose.ladder import Exports, record_rung, sentence
from crosshead.harness.diagnose.shrink import Smallest, shrink
from crosshead.harness.diagnose.standing import Standing
from crosshead.harness.diagnose.truth import Truth
from crosshead.harness.diagnose.values import oracle_values
from crosshead.results.diagnosis import CulpritRecord, RungRecord, SmallestRecord, TensorRecord
from crosshead.runtimes import Settings

EXACT: Final = 1e-10
LITERAL_FACTOR: Final = 4.0
_DRAWS: Final = 4


@dataclass(frozen=True)
class Shown:
    """One case on which a graph is wrong.

    Attributes:
        case: its name.
        inputs: of the case.
        error: largest relative L2 over outputs; infinite where the graph cannot be evaluated at all.
        wrong: outputs that are off.
        broken: what the evaluator said where it cannot.
    """

    case: str
    inputs: Arrays
    error: float
    wrong: tuple[str, ...]
    broken: str = ""


class GraphFault:
    """One artifact whose graph is not its module's function."""

    def __init__(self, artifact: Artifact, truth: Truth | None, on_step: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            artifact: the graph, with its cases.
            truth: what it is held against; None where that is not at hand, and the artifact's expectations must do.
            on_step: told what is being done.
        """
        self.artifact = artifact
        self.model = onnx.load(artifact.model_path)
        self.graph = CutGraph.of(self.model)
        self._truth = truth
        self._on_step = on_step

    @cached_property
    def _wide(self) -> Float64Graph:
        return Float64Graph.of(self.model)

    @property
    def limit(self) -> float:
        """Relative L2 up to which the graph counts as right (docs/method.md, "Is the graph right?")."""
        return max(EXACT, LITERAL_FACTOR * (self.artifact.manifest.graph.literal_sensitivity or 0.0))

    def shown(self, first: str) -> Shown | None:
        """Return a case on which the graph is wrong: the one given, or the next one that is; None where none is."""
        names = [first, *(case.name for case in self.artifact.manifest.all_cases if case.name != first)]
        for name in names:
            self._on_step(f"case {name} in float64")
            found = self._hold(name)
            if found is not None:
                return found
        return None

    def _hold(self, name: str) -> Shown | None:
        inputs = self.artifact.inputs(name)
        try:
            want = self._right(inputs, name)
        except ExportError:
            return None
        try:
            got = self._wide.run(inputs)
        except FormError as broken:
            return Shown(name, inputs, math.inf, (), str(broken))
        error, wrong = self._apart(got, want)
        return Shown(name, inputs, error, wrong) if wrong else None

    def _right(self, inputs: Arrays, case: str | None) -> Mapping[str, NDArray[Any]]:
        if self._truth is not None:
            return self._truth.outputs(inputs)
        assert case is not None, "without a module there are only the cases"
        return self.artifact.expected(case)

    def _apart(
        self, got: Mapping[str, NDArray[Any]], want: Mapping[str, NDArray[Any]]
    ) -> tuple[float, tuple[str, ...]]:
        errors = {name: relative_l2(got[name], array) if name in got else math.inf for name, array in want.items()}
        wrong = tuple(name for name, error in errors.items() if not error <= self.limit)
        return max(errors.values(), default=0.0), wrong

    # --- the ladder

    def climb(self, shown: Shown, others: Sequence[Artifact], export: Exports | None) -> tuple[list[RungRecord], str]:
        """Hold other forms, and another exporter's graph, against the module on the same inputs."""
        base = Standing(shown.error, math.inf, False, shown.broken)
        rungs = []
        for other in others:
            name = f"the form {other.manifest.form}, opset {other.manifest.opset}"
            rungs.append(self._rung(name, other, base, shown))
        same = self.artifact.manifest.exporter.startswith("torchscript")
        if export is not None and not same and not any(rung.outcome == "gone" for rung in rungs):
            name = "another exporter (torchscript)"
            self._on_step(f"with {name}")
            try:
                (other,) = export(forms=(("decomposed", 18),), exporter="torchscript")
                rungs.append(self._rung(name, other, base, shown))
            except ExportError as error:
                reason = " ".join(str(error).split())
                rungs.append(RungRecord(change=name, outcome="not-run", reason=reason))
        return rungs, sentence(base, rungs)

    def _rung(self, name: str, other: Artifact, base: Standing, shown: Shown) -> RungRecord:
        self._on_step(f"with {name}")
        try:
            got = Float64Graph.of(onnx.load(other.model_path)).run(shown.inputs)
            error, wrong = self._apart(got, self._right(shown.inputs, shown.case))
        except ExportError as problem:
            return record_rung(name, base, Standing(None, math.inf, False, str(problem), crashed=True))
        return record_rung(name, base, Standing(error, 0.0 if not wrong else math.inf, not wrong))

    # --- the node

    def culprit(self, shown: Shown | None) -> CulpritRecord | str:
        """Return the node where the graph departs from what is right, or why none was found."""
        if shown is not None and shown.broken:
            return self._broken(shown)
        if self._truth is None:
            return "the module is not at hand, so its values cannot be held against the graph's"
        inputs = shown.inputs if shown is not None else self.artifact.inputs(self.artifact.manifest.cases[0].name)
        self._on_step(f"every value of {self._truth.name} against the graph's")
        try:
            right = self._truth.values(inputs)
            values = oracle_values(self.graph, inputs)
        except ExportError as error:
            return f"the values could not be compared: {error}"
        if shown is not None:
            found = find_departure(self.graph, values, right, tolerance=self.limit, wrong=shown.wrong)
            if found is not None:
                return self._record(found, values, inputs)
        weights = foreign_weights(self.graph, right)
        for node in self.graph.nodes:
            for name in node.input:
                if name in weights:
                    return self._record(Departure(node, weight=name), values, inputs)
        return "every value that the graph computes is one that the module computes"

    def _broken(self, shown: Shown) -> CulpritRecord | str:
        named = re.search(r"node '([^']*)'", shown.broken)
        node = next((node for node in self.graph.nodes if named and name_of(node) == named[1]), None)
        if node is None:
            return f"on case {shown.case}: {shown.broken}"
        return CulpritRecord(
            node=name_of(node),
            op=op_of(node),
            nodes=[name_of(node)],
            graph="as exported",
            count=len(self.graph.nodes),
            message=f"{label(node)} fails on case {shown.case}: {shown.broken}",
        )

    def _record(self, found: Departure, values: Mapping[str, NDArray[Any]], inputs: Arrays) -> CulpritRecord:
        assert self._truth is not None, "it was asked"
        node = found.node
        what = f"{label(node)} gives a value that {self._truth.name} does not have"
        if found.weight:
            what = f"{label(node)} reads {found.weight!r}, which is no weight of {self._truth.name}, bit for bit"
        right = f", and all that it reads ({', '.join(found.last_right)}) is right" if found.last_right else ""
        after = f"; {found.followers} nodes after it are off by that" if found.followers else ""
        tensors = [
            TensorRecord(name=name, dtype=self.graph.dtype(name, np.asarray(array)).name, shape=list(array.shape))
            for name in dict.fromkeys(node.input)
            if (array := values.get(name, inputs.get(name))) is not None
        ]
        return CulpritRecord(
            node=name_of(node),
            op=op_of(node),
            nodes=[name_of(node)],
            graph="as exported",
            inputs=tensors,
            inherited_error=0.0,
            count=len(self.graph.nodes),
            message=what + right + after,
        )

    # --- the smallest input, and what shows it

    def smallest(self, shown: Shown, budget_s: float, seed: int) -> tuple[Smallest, SmallestRecord] | None:
        """Return the smallest input on which the graph is wrong; None where only the cases can be asked."""
        if self._truth is None or shown.broken:
            return None
        least = max(self.limit, shown.error / 100) if math.isfinite(shown.error) else self.limit

        def error_on(inputs: Arrays) -> float:
            try:
                assert self._truth is not None, "asked above"
                want = self._truth.outputs(inputs)
                got = self._wide.run(inputs)
            except ExportError:
                return 0.0
            if not any(np.any(array) for array in want.values()):
                return 0.0
            error, wrong = self._apart(got, want)
            return error if wrong else 0.0

        small = shrink(
            shown.inputs,
            self.artifact.manifest.inputs,
            lambda inputs: error_on(inputs) > least,
            budget_s=budget_s,
            seed=seed,
        )
        record = SmallestRecord(
            shapes={name: list(array.shape) for name, array in small.inputs.items()},
            values=small.values,
            error=error_on(small.inputs),
            tried=small.tried,
        )
        return small, record

    def exhibits(self, shown: Shown, small: Smallest | None, threads: int) -> list[Exhibit]:
        """Return ways to show the fault: the graph in ONNX Runtime, and in float64 in the reference evaluator."""
        made = []
        settings = Settings(threads=threads)
        for inputs in ([small.inputs] if small is not None else []) + [shown.inputs]:
            try:
                want = self._right(inputs, shown.case)
                yards = graph_sensitivity(self.model, inputs, self._wide.run(inputs), self._precision, draws=_DRAWS)
            except ExportError:
                continue
            u = UNIT_ROUNDOFFS[self._precision]
            limits = {
                name: (LIMIT_TIMES * max(yard[0], u / 2), LIMIT_TIMES * max(yard[1], u / 2))
                for name, yard in yards.items()
                if name in shown.wrong and all(math.isfinite(each) for each in yard)
            }
            if limits:
                made.append(Exhibit(self.model, inputs, want, {}, limits, settings, cut=False, script="onnxruntime"))
        wide = widen(self.model)
        doubled = {
            name: array.astype(np.float64) if array.dtype.kind in "fV" else array
            for name, array in shown.inputs.items()
        }
        exact = dict.fromkeys(shown.wrong, (self.limit, math.inf))
        try:
            want = self._right(shown.inputs, shown.case)
        except ExportError:
            return made
        if exact:
            made.append(Exhibit(wide, doubled, want, {}, exact, settings, cut=False, script="onnx.reference"))
        return made

    @property
    def _precision(self) -> Any:
        return self.artifact.manifest.precision
