"""Why a backend is off: the ladder, the node, the kind, the smallest input, and what shows it elsewhere."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, FormError
from crosshead.export.error import relative_l2, relative_l2_both
from crosshead.export.float64 import Float64Graph, graph_sensitivity
from crosshead.harness.accuracy import Limits
from crosshead.harness.cells import Cell
from crosshead.harness.diagnose.asking import Asker, other_numbers
from crosshead.harness.diagnose.bundle import Exhibit, script_for
from crosshead.harness.diagnose.cause import Reason, reason_of
from crosshead.harness.diagnose.culprit import HALF_LIMIT_TIMES, LIMIT_TIMES, Culprit, Own, Search, label
from crosshead.harness.diagnose.cutting import CutGraph, name_of, op_of
from crosshead.harness.diagnose.ladder import Ladder
from crosshead.harness.diagnose.optimized import optimized_model
from crosshead.harness.diagnose.shrink import Smallest, shrink
from crosshead.harness.diagnose.standing import Standing
from crosshead.harness.diagnose.suspect import Suspect
from crosshead.harness.diagnose.values import Values, oracle_values
from crosshead.harness.runner import Runner
from crosshead.results.diagnosis import CulpritRecord, SmallestRecord, TensorRecord
from crosshead.results.diagnosis_text import figures
from crosshead.runtimes import BackendError, InputError, Settings, UnsupportedError, WorkerError

AS_EXPORTED: Final = "as exported"
AS_OPTIMIZED: Final = "as optimised by ONNX Runtime"

_SENSITIVITY_DRAWS: Final = 1
_EASIER: Final = 10.0
"""An input still shows a fault while no less than this part of its error is left, or the limit of a fail."""

OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """The culprit, with the graph that it was found in and how that was run."""

    culprit: Culprit
    graph: CutGraph
    graph_name: str
    unfused: CutGraph | None
    settings: Settings
    reason: Reason


class OutputFault:
    """One cell that is off, crashed, or does not agree with another."""

    def __init__(
        self,
        suspect: Suspect,
        base: Standing,
        limits: Limits,
        scratch: Path,
        on_step: OnStep,
        *,
        primed: bool = False,
    ) -> None:
        """Prepare.

        Args:
            suspect: with a cell that executes a graph.
            base: how it stands.
            limits: of a worker.
            scratch: an existing folder.
            on_step: told what is being done.
            primed: the fault shows after a call on other numbers alone.
        """
        self._primed = primed
        assert suspect.cell is not None, "a wrong graph goes another way"
        self.cell: Cell = suspect.cell
        self.artifact: Artifact = self.cell.artifact
        self._suspect, self._base, self._limits = suspect, base, limits
        self._scratch, self._on_step = scratch, on_step
        self.model = onnx.load(self.artifact.model_path)
        self.graph = CutGraph.of(self.model)

    # --- the node

    def find(self, ladder: Ladder) -> Found | str:
        """Return the culprit, or why none was found."""
        try:
            values = oracle_values(self.graph, self._suspect.inputs)
        except FormError as error:
            return f"no node could be looked at alone: {error}"
        settings, optimized = self.cell.settings, None
        if self.cell.runtime.name.startswith("ort-") and settings.optimization != "disable":
            unoptimized = msgspec.structs.replace(settings, optimization="disable")
            if _stays(ladder, "graph optimisation off"):
                settings = unoptimized
            elif self._suspect.other is None:
                optimized = self._optimized(values, unoptimized)
                if isinstance(optimized, Found):
                    return optimized
        found = self._search(self.graph, values, settings, AS_EXPORTED, None)
        if isinstance(found, str) and isinstance(optimized, str):
            return f"{found} ({optimized})"
        return found

    def _optimized(self, values: Values, settings: Settings) -> Found | str:
        """Look into the graph that the optimizers leave, where it shows the fault without being optimised again."""
        self._on_step("the graph as ONNX Runtime optimises it")
        model = optimized_model(self.artifact.model_path, self.cell.settings, self._precision, self._scratch)
        if model is None:
            return "ONNX Runtime gave no optimised graph to look into"
        graph = CutGraph.of(model)
        known = values | oracle_values(graph, self._suspect.inputs, values)
        return self._search(graph, known, settings, AS_OPTIMIZED, self.graph)

    def _search(
        self, graph: CutGraph, values: Values, settings: Settings, name: str, unfused: CutGraph | None
    ) -> Found | str:
        folder = self._scratch / ("optimized" if unfused is not None else "cuts")
        folder.mkdir(exist_ok=True)
        other = self._suspect.other
        if other is not None and other.runtime.capabilities.executes != "graph":
            other = None
        (folder / "other").mkdir(exist_ok=True)
        with (
            self._asker(self.cell, settings, folder) as asker,
            self._asker(other or self.cell, (other or self.cell).settings, folder / "other") as second,
        ):
            search = Search(
                graph,
                values,
                asker.outputs,
                self._precision,
                unfused=unfused,
                other=second.outputs if other is not None else None,
                crashes=self._base.crashed,
                on_step=self._on_step,
            )
            culprit = search.find()
            if culprit is None:
                return f"no cut of the graph {name} is off when it is fed the oracle's values ({search.asked} asked)"
            node = culprit.nodes[0]
            if self._primed:
                reason = Reason("kernel", "gives what it computed in the call before")
            elif len(culprit.nodes) == 1 and node.op_type == "Cast" and not culprit.own.failed:
                reason = Reason("graph", "narrows what passes through it: the graph itself asks for that")
            else:
                reason = reason_of(culprit.own, asker.outputs)
            return Found(culprit, graph, name, unfused, settings, reason)

    def _asker(self, cell: Cell, settings: Settings, folder: Path) -> Asker:
        return Asker(cell.runtime, settings, self._precision, self._limits, folder, primed=self._primed)

    @property
    def _precision(self) -> Any:
        return self.artifact.manifest.precision

    def describe(self, found: Found) -> CulpritRecord:
        """Return the record of a culprit."""
        culprit, own = found.culprit, found.culprit.own
        node = culprit.nodes[0] if len(culprit.nodes) == 1 else culprit.nodes[-1]
        who = label(node) if len(culprit.nodes) == 1 else f"{len(culprit.nodes)} nodes together, to {label(node)},"
        message = f"{who} {found.reason.clause}"
        parts = self._fused_from(found)
        if parts:
            message += f"; it stands for {', '.join(parts)}"
        if not own.failed:
            inherited = "" if culprit.inherited is None else f", beside {culprit.inherited:.1e} that it inherits"
            inherited = ", and it inherits none" if culprit.inherited == 0 else inherited
            message += f"; on right inputs its error is {figures(own.error, own.times)}{inherited}"
            if own.other_times is not None and self._suspect.other is not None:
                message += f"; {self._suspect.other.runtime.name} is off there by {own.other_times:.2g} times"
        if culprit.alike:
            message += f"; {culprit.alike} more {node.op_type} nodes are off alike"
        return CulpritRecord(
            node=name_of(node),
            op=op_of(node),
            nodes=[name_of(each) for each in culprit.nodes],
            graph=found.graph_name,
            inputs=[
                TensorRecord(name=name, dtype=array.dtype.name, shape=list(array.shape))
                for name, array in own.inputs.items()
            ],
            own_error=None if own.failed else own.error,
            own_times=None if own.failed else own.times,
            inherited_error=culprit.inherited,
            other_own_times=own.other_times,
            alike=culprit.alike,
            count=len(found.graph.nodes),
            message=message,
        )

    def _fused_from(self, found: Found) -> list[str]:
        """Return the nodes of the graph as exported that a fused node stands for; none where it is one of them."""
        own = found.culprit.own
        if found.unfused is None:
            return []
        try:
            nodes = found.unfused.between(list(own.inputs), list(own.want))
        except FormError:
            return []
        return [label(node) for node in nodes] if len(nodes) > len(found.culprit.nodes) else []

    # --- the smallest input

    def smallest(self, budget_s: float, seed: int) -> tuple[Smallest, SmallestRecord]:
        """Return the smallest input that was found to show the fault."""
        folder = self._scratch / "smallest"
        folder.mkdir(exist_ok=True)
        wide = Float64Graph.of(self.model)
        (folder / "other").mkdir(exist_ok=True)
        other = self._suspect.other
        with (
            Runner(self.cell, self._limits, folder) as runner,
            Runner(other or self.cell, self._limits, folder / "other") as second,
        ):

            def standing(inputs: Arrays) -> Standing:
                return self._standing(wide, inputs, runner, second if other is not None else None)

            least = self._least_times()

            def shows(inputs: Arrays) -> bool:
                found = standing(inputs)
                return found.crashed if self._base.crashed else not found.crashed and found.times > least

            small = shrink(self._suspect.inputs, self.artifact.manifest.inputs, shows, budget_s=budget_s, seed=seed)
            found = standing(small.inputs)
        record = SmallestRecord(
            shapes={name: list(array.shape) for name, array in small.inputs.items()},
            values=small.values,
            error=found.error,
            times_expected=found.times if math.isfinite(found.times) else None,
            tried=small.tried,
        )
        return small, record

    def _least_times(self) -> float:
        times = self._base.times
        if times <= LIMIT_TIMES:
            return 0.7 * times
        return max(LIMIT_TIMES, min(10 * LIMIT_TIMES, times / _EASIER))

    def _standing(self, wide: Float64Graph, inputs: Arrays, runner: Runner, second: Runner | None) -> Standing:
        """Hold what the backend gives on any inputs against the graph in float64, or against the other backend."""
        try:
            want: Mapping[str, NDArray[Any]] = wide.run(inputs)
            if self._primed:
                runner.outputs(other_numbers(inputs))
            got = runner.outputs(inputs)
            if second is not None:
                got, want = got, second.outputs(inputs)
        except (InputError, UnsupportedError, FormError):
            return Standing(None, 0.0, False, "refused")
        except (BackendError, WorkerError) as problem:
            return Standing(None, math.inf, False, str(problem), crashed=True)
        errors = {
            name: relative_l2_both(got[name], array)
            for name, array in want.items()
            if name in got and np.any(array) and np.isfinite(np.asarray(array, np.float64)).any()
        }
        error = max((each[0] for each in errors.values()), default=0.0)
        if error <= self._least_error:
            return Standing(error, 0.0, True)  # its yardstick need not be known, which would take the longest
        yards = _yards(self.model, inputs, want, self._precision)
        times = [
            max(whole / yards[name][0], row / yards[name][1]) for name, (whole, row) in errors.items() if name in yards
        ]
        return Standing(error, max(times, default=0.0), max(times, default=0.0) <= LIMIT_TIMES)

    @property
    def _least_error(self) -> float:
        """Where no error of this size counted in the failing case, a smaller case cannot be told from rounding."""
        base = self._base
        if base.error is None or not math.isfinite(base.times) or base.times == 0.0:
            return 0.0
        return 0.1 * self._least_times() * base.error / base.times

    # --- what shows it

    def exhibits(self, found: Found | None, small: Smallest | None) -> list[Exhibit]:
        """Return ways to show the fault: the culprit alone on the smallest input first, the whole graph last."""
        made: list[Exhibit] = []
        if found is not None:
            own = found.culprit.own
            again = self._again(found, small.inputs) if small is not None else None
            made += [self._cut(found, each) for each in (again, own) if each is not None]
        for inputs in ([small.inputs] if small is not None else []) + [self._suspect.inputs]:
            whole = self._whole(inputs)
            made += [whole] if whole is not None else []
        return made

    def _again(self, found: Found, inputs: Arrays) -> Own | None:
        """Return the culprit on its own at other inputs of the graph; None where it does not show the fault there."""
        folder = self._scratch / "again"
        folder.mkdir(exist_ok=True)
        try:
            values = oracle_values(self.graph, inputs)
            if found.unfused is not None:
                values |= oracle_values(found.graph, inputs, values)
        except FormError:
            return None
        with self._asker(self.cell, found.settings, folder) as asker:
            search = Search(
                found.graph,
                values,
                asker.outputs,
                self._precision,
                unfused=found.unfused,
                crashes=self._base.crashed,
            )
            first, last = found.culprit.own.first, found.culprit.own.last
            return search.own(first, last) if search.is_off(first, last) else None

    def _cut(self, found: Found, own: Own) -> Exhibit:
        factor = HALF_LIMIT_TIMES if own.first == own.last and self._precision != "fp32" else LIMIT_TIMES
        limits = {
            name: tuple(factor * yard if math.isfinite(yard) else math.inf for yard in own.yards[name])
            if name in own.yards
            else (0.0, 0.0)
            for name in own.want
        }
        return Exhibit(
            model=own.model,
            inputs=own.inputs,
            expected=own.want,
            got=own.got,
            limits=limits,  # type: ignore[arg-type]  # pairs
            settings=found.settings,
            cut=True,
            crashes=self._base.crashed,
            script=script_for(self.cell.runtime),
        )

    def _whole(self, inputs: Arrays) -> Exhibit | None:
        folder = self._scratch / "whole"
        folder.mkdir(exist_ok=True)
        got: Arrays = {}
        try:
            want = Float64Graph.of(self.model).run(inputs)
            with Runner(self.cell, self._limits, folder) as runner:
                if self._primed:
                    runner.outputs(other_numbers(inputs))
                got = runner.outputs(inputs)
        except FormError:
            return None
        except (BackendError, WorkerError):
            if not self._base.crashed:
                return None
        yards = _yards(self.model, inputs, want, self._precision)
        limits = {name: (LIMIT_TIMES * yards[name][0], LIMIT_TIMES * yards[name][1]) for name in want if name in yards}
        return Exhibit(
            model=self.model,
            inputs=inputs,
            expected=want,
            got=got,
            limits=limits,
            settings=self.cell.settings,
            cut=False,
            crashes=self._base.crashed,
            script=script_for(self.cell.runtime),
        )


def wrong_in_float64(artifact: Artifact, model: onnx.ModelProto, suspect: Suspect, base: Standing) -> bool:
    """Whether an error is in the graph: its own float64 evaluation is as far from the oracle as the backend is."""
    if base.crashed or not base.error or not math.isfinite(base.error):
        return False
    try:
        outputs = Float64Graph.of(model).run(suspect.inputs)
    except FormError:
        return False
    off = [
        relative_l2(outputs[name], want)
        for name, want in suspect.expected.items()
        if name in outputs and outputs[name].shape == want.shape and want.dtype.kind == "f"
    ]
    roundoff = UNIT_ROUNDOFFS[artifact.manifest.precision]
    return max(off, default=0.0) >= max(
        0.5 * base.error, 4 * roundoff if artifact.manifest.precision != "fp32" else 0.0
    )


def _yards(
    model: onnx.ModelProto, inputs: Arrays, want: Mapping[str, NDArray[Any]], precision: Any
) -> dict[str, tuple[float, float]]:
    moves = graph_sensitivity(model, inputs, want, precision, draws=_SENSITIVITY_DRAWS)
    u = UNIT_ROUNDOFFS[precision] / 2
    return {
        name: (max(whole, u), max(row, u))
        for name, (whole, row) in moves.items()
        if math.isfinite(whole) and math.isfinite(row)
    }


def _stays(ladder: Ladder, change: str) -> bool:
    return any(rung.change == change and rung.outcome == "stays" for rung in ladder.rungs)


def other_forms(cell: Cell, artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Return the other forms of a cell's source that are at hand: same precision, with the same case."""
    own = cell.artifact
    return [
        artifact
        for artifact in artifacts
        if artifact.id != own.id
        and artifact.manifest.precision == own.manifest.precision
        and artifact.manifest.source == own.manifest.source
        and any(case.name == cell.case for case in artifact.manifest.all_cases)
    ]
