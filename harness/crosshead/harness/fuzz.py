"""`crosshead fuzz`: search for inputs on which a graph or a backend is off; each find is shrunk and bundled.

The oracle is the module in float64, or for a bare graph the graph itself. An input counts as a find when an error is
above the limit of a fail (100 sensitivities of that very input) and above twice what the backend differs from itself
by. After its first find a graph, or a graph on a backend, is asked no more: the second would most often be the same.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, ExportError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import Float64Graph
from crosshead.export.stress_draws import Draw, StressDraws
from crosshead.harness.accuracy import Limits
from crosshead.harness.cells import Cell, choose_backends, make_cells
from crosshead.harness.diagnose.asking import with_case
from crosshead.harness.diagnose.explain import Explanation
from crosshead.harness.diagnose.shrink import check_hypothesis
from crosshead.harness.diagnose.suspect import Suspect
from crosshead.harness.diagnose.truth import ModuleTruth, Truth
from crosshead.harness.diagnose.verb import library_versions, read_artifacts, source_folder
from crosshead.harness.errors import RequestError
from crosshead.harness.fuzz_case import RANGES, FuzzCase, largest_value
from crosshead.harness.judge import FAIL_TIMES_ALONE
from crosshead.harness.phases import Phases
from crosshead.harness.pipeline import Progress, export, silent
from crosshead.harness.plan import Plan
from crosshead.harness.runner import Runner
from crosshead.results import Notice
from crosshead.results.diagnosis import DiagnosisRecord, DiagnosisStore
from crosshead.results.fuzz import FindRecord, FuzzRecord, FuzzStore, SearchedRecord
from crosshead.results.fuzz_text import fuzz_summary
from crosshead.runtimes import BackendError, InputError, UnsupportedError, WorkerError

ILL_CONDITIONED: Final = 0.03
"""An input that one rounding moves by more than this leaves too few digits to judge."""

SURE_SHARE: Final = 0.2
"""An error that one draw of rounding puts below this share of the limit is rounding; others are looked at closely."""

NOISE_TIMES: Final = 2.0
SURELY_ROUNDING: Final = 5.0
"""Up to so many unit roundoffs an error is far from the limit, whatever its yardstick: that is not computed then."""

RANGE_SHARE: Final = 0.25
"""Values up to this share of the range of the precision can be computed in any order."""

SHRINK_BUDGET_S: Final = 5.0
FINDS: Final = "finds"
_GRAPH_LIMIT: Final = 1e-7
"""A graph whose literals are float32 may be off by so much in float64 at inputs other than those it was proved on."""


@dataclass(frozen=True)
class Fuzzed:
    """What a search leaves.

    Attributes:
        record: as it stands in `fuzz.json`.
        folder: that holds it.
        interrupted: whether the person stopped it; what was found is in the record.
    """

    record: FuzzRecord
    folder: Path
    interrupted: bool = False


@dataclass
class _Side:
    """A graph on a backend (or alone, in float64), and what became of it."""

    artifact: Artifact
    cell: Cell | None = None
    runner: Runner | None = None
    inputs: int = 0
    refused: int = 0
    worst: float = 0.0
    done: bool = False
    noisy: bool = False

    @property
    def record(self) -> SearchedRecord:
        return SearchedRecord(
            artifact=self.artifact.id,
            backend="" if self.cell is None else self.cell.runtime.name,
            inputs=self.inputs,
            refused=self.refused,
            worst_times=self.worst,
        )


@dataclass
class _Graph:
    """One artifact: its graph in float64, what it is held against, and the backends that run it."""

    artifact: Artifact
    model: onnx.ModelProto
    wide: Float64Graph
    truth: Truth | None
    draws: StressDraws
    alone: _Side
    sides: list[_Side] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to find: whatever runs a wrong graph is off."""
        return self.wrong or all(side.done for side in self.sides)

    @property
    def wrong(self) -> bool:
        """Whether the graph itself was found to be off."""
        return self.truth is not None and self.alone.done


def fuzz(
    plan: Plan, *, seconds: float = 60.0, tries: int | None = None, zipped: bool = False, progress: Progress = silent
) -> Fuzzed:
    """Search for inputs on which something is off.

    Args:
        plan: as for `compare`.
        seconds: how long to search; what finds take to be explained comes on top.
        tries: number of draws at most, for the same search on a machine of another speed.
        zipped: whether bundles are zipped as well.
        progress: told what is being done.

    Raises:
        RequestError, ExportError, RuntimesError, ResultsError: the request cannot be carried out; one line.
    """
    if not 0 < seconds < math.inf or (tries is not None and tries < 1):
        raise RequestError(f"expected seconds and tries above 0, got {seconds:g} s and {tries} tries")
    check_hypothesis()
    return _Fuzz(plan, seconds, tries, zipped, progress).carry_out()


class _Fuzz:
    """One search under way; the record is written after every find."""

    def __init__(self, plan: Plan, seconds: float, tries: int | None, zipped: bool, progress: Progress) -> None:
        self._plan = msgspec.structs.replace(plan, stress=False)
        self._seconds, self._tries, self._zipped, self._progress = seconds, tries, zipped, progress
        self._limits = Limits(plan.cell_timeout_s, plan.memory_limit_bytes)
        self._explaining_s = 0.0
        self._notices: list[Notice] = []
        self._last: tuple[tuple[int, str], Arrays, Mapping[str, NDArray[Any]]] | None = None

    def carry_out(self) -> Fuzzed:
        began, started = time.monotonic(), datetime.now(UTC)
        backends, missing = choose_backends(self._plan.backends)
        made = export(self._plan, self._progress)
        self._artifacts = read_artifacts(made.folder)
        self._store = FuzzStore(made.folder)
        self._notices = missing
        self._record = FuzzRecord(
            id=self._store.run_id,
            run=made.record.id,
            crosshead=version("crosshead"),
            started=started.isoformat(timespec="seconds"),
            source=made.record.plan.source,
            seed=self._plan.seed,
            budget_s=self._seconds,
            versions=library_versions(),
        )
        self._began = began
        interrupted = made.interrupted
        try:
            if not interrupted:
                with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch, ExitStack() as stack:
                    graphs = self._graphs(Path(scratch), stack, backends)
                    self._search(graphs, Path(scratch))
        except KeyboardInterrupt:
            interrupted = True
        found = "found" if self._record.finds else "nothing-found"
        self._update(finished=not interrupted, verdict="" if interrupted and not self._record.finds else found)
        self._store.write_summary(fuzz_summary(self._record))
        return Fuzzed(self._record, self._store.path, interrupted)

    def _update(self, **fields: object) -> None:
        wall_s = time.monotonic() - self._began
        self._record = msgspec.structs.replace(self._record, wall_s=wall_s, notices=self._notices, **fields)
        self._store.update(self._record)

    # --- what is searched

    def _graphs(self, scratch: Path, stack: ExitStack, backends: Sequence[Any]) -> list[_Graph]:
        """Open every graph on every backend that takes it.

        Raises:
            RequestError: none does.
        """
        cells, _ = make_cells(
            list(self._artifacts.values()),
            backends,
            self._plan.resolved_settings(),
            source_folder=source_folder(self._plan),
            cache_folder=scratch / "compiled",
            timed=False,
        )
        firsts = {cell.label: cell for cell in reversed(cells)}
        graphs = []
        loaded = self._loaded()
        for artifact in self._artifacts.values():
            graph = self._graph(artifact, loaded)
            for label, cell in sorted(firsts.items()):
                if cell.artifact.id != artifact.id or cell.runtime.capabilities.compiles:
                    continue
                folder = scratch / f"run{len(list(scratch.iterdir()))}"
                folder.mkdir()
                self._progress(f"{label}: opening")
                runner = stack.enter_context(Runner(cell, self._limits, folder))
                runner.start()
                graph.sides.append(_Side(artifact, cell, runner))
            graphs.append(graph)
        if not any(graph.sides for graph in graphs):
            raise RequestError("no backend takes any of these graphs; `crosshead backends` says what is here")
        return graphs

    def _loaded(self) -> Any:
        if self._plan.source_kind != "module":
            return None
        from crosshead.export import load_source

        source = next(iter(self._artifacts.values())).manifest.source
        return load_source(
            self._plan.source, options=source.options, seed=source.seed, keep_training_mode=source.training
        )

    def _graph(self, artifact: Artifact, loaded: Any) -> _Graph:
        model = onnx.load(artifact.model_path)
        wide = Float64Graph.of(model)
        wide.prepare()
        known: Mapping[str, Any] = {}
        truth = None
        if loaded is not None:
            from crosshead.export.stress_draws import source_structure

            known, truth = source_structure(loaded), ModuleTruth(loaded, artifact)
        draws = StressDraws(artifact, self._plan.seed, **known)
        return _Graph(artifact, model, wide, truth, draws, _Side(artifact))

    # --- the search

    def _search(self, graphs: Sequence[_Graph], scratch: Path) -> None:
        start, number, skipped, said = time.monotonic(), 0, 0, 0.0
        self._record = msgspec.structs.replace(self._record, searched=_searched(graphs))
        try:
            while self._tries is None or number < self._tries:
                spent = time.monotonic() - start - self._explaining_s
                open_graphs = [graph for graph in graphs if not graph.done]
                if spent >= self._seconds or not open_graphs:
                    break
                if spent - said >= 0.5:
                    said = spent
                    self._progress(f"draw {number}: {len(self._record.finds)} found", min(1.0, spent / self._seconds))
                for graph in open_graphs:
                    skipped += not self._try(graph, number, scratch)
                number += 1
        finally:
            spent = time.monotonic() - start - self._explaining_s
            draws = number * len(graphs)
            self._record = msgspec.structs.replace(
                self._record, searched=_searched(graphs), spent_s=spent, draws=draws, skipped=min(skipped, draws)
            )

    def _try(self, graph: _Graph, number: int, scratch: Path) -> bool:
        """Try one draw on a graph and its backends; False where nothing can be said of it."""
        draw = graph.draws.draw(number)
        if draw is None:
            return False
        try:
            own, largest = largest_value(graph.wide, draw.inputs)
            if largest > RANGE_SHARE * RANGES[graph.artifact.manifest.precision]:
                return False
            want = own if graph.truth is None else self._right(graph, graph.truth, draw, number)
        except (ExportError, MemoryError):
            return False
        case = FuzzCase(draw, want, own)
        if not case.judgeable:
            return False
        if graph.truth is not None:
            self._hold_graph(graph, case, number, scratch)
        for side in graph.sides:
            if not (side.done or graph.wrong):
                self._hold(graph, side, case, number, scratch)
        return True

    def _right(self, graph: _Graph, truth: Truth, draw: Draw, number: int) -> Mapping[str, NDArray[Any]]:
        """Return the module's outputs; the forms of one precision are asked the same, and share them."""
        key = number, graph.artifact.manifest.precision
        if self._last is None or self._last[0] != key:
            self._last = key, draw.inputs, truth.outputs(draw.inputs)
        last = self._last[1]
        same = all(name in last and np.array_equal(array, last[name]) for name, array in draw.inputs.items())
        return self._last[2] if same else truth.outputs(draw.inputs)

    def _hold_graph(self, graph: _Graph, case: FuzzCase, number: int, scratch: Path) -> None:
        """Hold the graph in float64 against the module."""
        graph.alone.inputs += 1
        verdict = graph.artifact.manifest.graph
        limit = max(_GRAPH_LIMIT, 40.0 * (verdict.literal_sensitivity or 0.0))
        if graph.artifact.manifest.precision != "fp32":
            limit = max(limit, UNIT_ROUNDOFFS[graph.artifact.manifest.precision])
        errors = [whole for whole, _ in case.errors(case.own).values()]
        error = max(errors, default=0.0)
        if error <= limit:
            return
        if error < math.inf and error <= 20.0 * max(
            (whole for whole, _ in case.yards(graph.model, "fp32").values()), default=0.0
        ):
            return  # the input is so ill-conditioned that float32 literals may do that
        graph.alone.done = True
        self._found(graph, None, case, number, error, None, "", scratch)

    def _hold(self, graph: _Graph, side: _Side, case: FuzzCase, number: int, scratch: Path) -> None:
        """Run a backend, and hold it against the oracle."""
        assert side.runner is not None, "only the graph alone has none"
        side.inputs += 1
        try:
            got = side.runner.outputs(case.draw.inputs)
        except (InputError, UnsupportedError):
            side.refused += 1
            return
        except (BackendError, WorkerError) as problem:
            reason = " ".join(str(problem).split()) or type(problem).__name__
            if side.cell is not None and _is_size_limit(reason):
                side.refused += 1
                return
            side.done = True
            self._found(graph, side, case, number, math.inf, None, reason, scratch)
            return
        errors = case.errors(got)
        precision = graph.artifact.manifest.precision
        if max((max(pair) for pair in errors.values()), default=0.0) <= SURELY_ROUNDING * UNIT_ROUNDOFFS[precision]:
            return
        times = case.times(errors, case.yards(graph.model, precision, 1))
        if times > SURE_SHARE * FAIL_TIMES_ALONE:
            yards = case.yards(graph.model, precision)
            if any(max(yard) > ILL_CONDITIONED for yard in yards.values()):
                return
            times = case.times(errors, yards)
        if times <= FAIL_TIMES_ALONE:
            side.worst = max(side.worst, times)
            return
        error = max(whole for whole, _ in errors.values())
        if self._is_noise(side, case, got, error):
            return
        side.done = True
        self._found(graph, side, case, number, error, times, "", scratch)

    def _is_noise(self, side: _Side, case: FuzzCase, got: Arrays, error: float) -> bool:
        """Whether a backend differs from itself by about as much."""
        assert side.runner is not None, "asked of backends alone"
        try:
            again = side.runner.outputs(case.draw.inputs)
        except (BackendError, WorkerError):
            return False
        spread = max((relative_l2(again[name], array) for name, array in got.items() if name in again), default=0.0)
        if not error <= NOISE_TIMES * spread:
            return False
        if not side.noisy and side.cell is not None:
            side.noisy = True
            message = (
                f"two runs on the same input differ by {spread:.2g}, and the error is {error:.2g}: differences below "
                "that are no finds"
            )
            self._notices.append(Notice(code="nondeterministic", message=message, where=side.cell.label))
        return True

    # --- a find

    def _found(
        self,
        graph: _Graph,
        side: _Side | None,
        case: FuzzCase,
        number: int,
        error: float,
        times: float | None,
        reason: str,
        scratch: Path,
    ) -> None:
        """Record a find, and explain it: node, kind, smallest input, bundle."""
        began = time.monotonic()
        backend = "" if side is None or side.cell is None else side.cell.runtime.name
        self._progress(f"{backend or 'graph'} {graph.artifact.id}: a find on draw {number}; explaining it")
        find = FindRecord(
            artifact=graph.artifact.id,
            backend=backend,
            number=number,
            idea=case.draw.idea,
            shapes={name: list(array.shape) for name, array in case.draw.inputs.items()},
            error=error,
            times_expected=times if times is None or math.isfinite(times) else None,
            reason=reason,
        )
        finds = [*self._record.finds, find]
        self._update(finds=finds)  # whatever happens while it is explained
        try:
            diagnosis, folder = self._explained(graph, side, case, len(finds), error, times, reason, scratch)
        except (ExportError, RequestError, BackendError, WorkerError) as problem:
            message = f"a find could not be explained to the end: {' '.join(str(problem).split())}"
            self._notices.append(Notice(code="not-examined", message=message, where=graph.artifact.id))
        else:
            node = diagnosis.culprit.node if diagnosis.culprit is not None else ""
            finds[-1] = msgspec.structs.replace(
                find, cause=diagnosis.cause, node=node, message=diagnosis.message, folder=folder
            )
        finally:
            self._explaining_s += time.monotonic() - began
        self._update(finds=finds)

    def _explained(
        self,
        graph: _Graph,
        side: _Side | None,
        case: FuzzCase,
        place: int,
        error: float,
        times: float | None,
        reason: str,
        scratch: Path,
    ) -> tuple[DiagnosisRecord, str]:
        name = f"draw {place}"
        folder = scratch / f"find{place}"
        folder.mkdir()
        want = {name: np.asarray(array) for name, array in case.want.items()}
        moves = case.yards(graph.model, graph.artifact.manifest.precision)
        artifact = with_case(graph.artifact, name, case.draw.inputs, want, moves, folder, apart=case.draw.apart)
        said = reason or f"off by {error:.2g}" + (f", {times:,.0f} times expected" if times is not None else "")
        cell = None
        subject: Any = "graph"
        if side is not None and side.cell is not None:
            cell = Cell(
                artifact,
                side.cell.runtime,
                name,
                side.cell.settings,
                timed=False,
                by_name=True,
                source_folder=side.cell.source_folder,
                cache_folder=side.cell.cache_folder,
            )
            subject = "crash" if reason else "output"
        suspect = Suspect(subject, artifact, name, f"{said}, on {case.draw.idea}", case.draw.inputs, want, cell=cell)
        store = DiagnosisStore.create(
            self._store.path / FINDS, f"{place}-{'graph' if cell is None else cell.runtime.name}"
        )
        explanation = Explanation(
            self._plan,
            {**self._artifacts, artifact.id: artifact},
            store,
            DiagnosisRecord(
                id=store.run_id,
                run=self._record.run,
                crosshead=self._record.crosshead,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                source=self._record.source,
                versions=self._record.versions,
            ),
            limits=self._limits,
            phases=Phases(),
            on_step=self._progress,
            zipped=self._zipped,
            exports=False,
            shrink_budget_s=SHRINK_BUDGET_S,
        )
        looking = folder / "looking"
        looking.mkdir()
        explanation.look_into(suspect, looking)
        explanation.update(finished=True)
        explanation.finish()
        return explanation.record, f"{FINDS}/{store.run_id}"


def _searched(graphs: Sequence[_Graph]) -> list[SearchedRecord]:
    sides = [side for graph in graphs for side in ([graph.alone] if graph.truth is not None else []) + graph.sides]
    return [side.record for side in sides]


def _is_size_limit(reason: str) -> bool:
    """Whether a backend says that it does not take empty axes, which is a refusal and no crash."""
    return "axis of length 0" in reason
