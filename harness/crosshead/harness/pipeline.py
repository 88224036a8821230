"""The main job: export, visit, judge, measure, record. `export`, `compare` and `bench` are parts of it."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from crosshead.export.artifact import Artifact, open_arrays
from crosshead.harness.accuracy import (
    NATIVE_BACKEND,
    Limits,
    Visit,
    judge,
    native_notices,
    noise_notices,
    with_native,
)
from crosshead.harness.agreement import agreements
from crosshead.harness.axes import BAKED, AxesProof, prove_axes
from crosshead.harness.cause import find_causes
from crosshead.harness.cells import Cell, choose_backends, make_cells
from crosshead.harness.conformity.support import support_notices
from crosshead.harness.examine import Examination, Stage
from crosshead.harness.given import with_given
from crosshead.harness.growth import measure_growth
from crosshead.harness.half import HalfJudge
from crosshead.harness.overflow import overflow_notices
from crosshead.harness.padding import padded_notices
from crosshead.harness.phases import OTHER, Phases
from crosshead.harness.plan import Plan, default_threads
from crosshead.harness.saved import save_inputs, save_outputs
from crosshead.harness.sources import ARTIFACTS, Prepared, prepare
from crosshead.harness.stages import STAGES
from crosshead.harness.stress import StressStage
from crosshead.harness.timing import Timing
from crosshead.harness.verdict import overall
from crosshead.harness.visits import Visitor
from crosshead.results import (
    ArtifactRecord,
    CellRecord,
    ComparisonRecord,
    CpuTimes,
    GraphRecord,
    Notice,
    PlanRecord,
    RunRecord,
    RunStore,
    compare_latency,
    environment_notices,
    new_run_id,
    read_environment,
    summary,
)
from crosshead.runtimes import Available, Runtime, Settings, get_runtime

Part = Literal["compare", "bench"]


class Progress(Protocol):
    """Told what a run is doing."""

    def __call__(self, step: str, share: float | None = None) -> None:
        """Take a step's name and, where it is known, how much of the step is done (0 to 1)."""


def silent(step: str, share: float | None = None) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Finished:
    """What a run leaves.

    Attributes:
        record: the record, as it stands in `run.json`.
        folder: the run's folder.
        interrupted: whether the person stopped it (Ctrl-C); what was finished is in the record.
        by_name: backends that were asked for by name.
    """

    record: RunRecord
    folder: Path
    interrupted: bool
    by_name: frozenset[str]


def run(plan: Plan, progress: Progress = silent) -> Finished:
    """Export, compare numbers and measure latency.

    Raises:
        RequestError, ExportError, RuntimesError, ResultsError: the request cannot be carried out; one line.
    """
    return _Run(plan, ("compare", "bench"), progress).carry_out()


def export(plan: Plan, progress: Progress = silent) -> Finished:
    """Export and check graphs; nothing is run on a backend but PyTorch, for the yardstick. Raises as `run`."""
    return _Run(plan, (), progress).carry_out()


def compare(plan: Plan, progress: Progress = silent) -> Finished:
    """Export and compare numbers; nothing is timed. Raises as `run`."""
    return _Run(plan, ("compare",), progress).carry_out()


def compare_to_failure(plan: Plan, progress: Progress = silent) -> Finished:
    """Compare numbers as far as it takes to fail: laws, noise and causes are left out. Raises as `run`.

    The stress set is run only where nothing else failed.
    """
    return _Run(plan, ("compare",), progress, to_failure=True).carry_out()


def bench(plan: Plan, progress: Progress = silent) -> Finished:
    """Export and measure latency; outputs are not judged. Raises as `run`."""
    return _Run(plan, ("bench",), progress).carry_out()


class _Run:
    """One run under way. The record is written after every step, so that what is finished is never lost."""

    def __init__(self, plan: Plan, parts: tuple[Part, ...], progress: Progress, *, to_failure: bool = False) -> None:
        self._to_failure = to_failure
        self._plan = plan if "compare" in parts else msgspec.structs.replace(plan, stress=False)
        self._parts = parts
        self._progress = progress
        self._settings = plan.resolved_settings()
        self._limits = Limits(plan.cell_timeout_s, plan.memory_limit_bytes)
        self._phases = Phases()
        self._cpu_times = CpuTimes()
        self._artifacts: list[Artifact] = []
        self._axes: dict[str, AxesProof] = {}
        self._notices: list[Notice] = []
        self._half = HalfJudge()

    def carry_out(self) -> Finished:
        plan = self._plan
        backends, missing = choose_backends(plan.backends) if self._parts else ([], [])
        if plan.source_kind == "module":
            plan.form_opsets()  # refuses before anything is written
        self._notices = [*missing, *thread_notices(self._settings)]
        self._record = self._first_record(backends)
        self._store = RunStore.create(plan.out, self._record.id, self._record)
        by_name = frozenset(runtime.name for runtime, named in backends if named)
        try:
            with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch:
                self._work(backends, Path(scratch))
        except KeyboardInterrupt:
            self._update(notices=[*self._notices, Notice(code="interrupted", message="stopped before the end")])
            self._store.write_summary(summary(self._record))
            return Finished(self._record, self._store.path, True, by_name)
        except BaseException:
            if not self._record.artifacts:
                self._store.discard()  # nothing was made: leave nothing behind
            raise
        return Finished(self._record, self._store.path, False, by_name)

    def _work(self, backends: Sequence[tuple[Runtime, bool]], scratch: Path) -> None:
        prepared = prepare(self._plan, self._store.path / ARTIFACTS, self._prepare_step)
        self._phases.enter(OTHER)
        self._artifacts = prepared.artifacts
        self._notices += prepared.notices
        self._update(artifacts=self._artifact_records(), notices=self._notices)
        if self._plan.save_inputs is not None:
            save_inputs(self._plan.save_inputs, self._artifacts)
        cells, refused = make_cells(
            self._artifacts,
            backends,
            self._settings,
            source_folder=prepared.source_folder,
            cache_folder=scratch / "compiled",
            timed="bench" in self._parts,
        )
        cells.sort(key=lambda cell: cell.runtime.capabilities.executes != "module")  # native before those it judges
        visits = self._visit_all(cells, refused, prepared, scratch)
        if self._plan.save_outputs is not None:
            save_outputs(self._plan.save_outputs, visits)
        if "compare" in self._parts:
            if not self._to_failure or overall(self._record) == "pass":
                self._examine(visits, scratch)
            current = {artifact.id: artifact for artifact in self._artifacts}
            with self._phases.during("judge"):
                found = agreements(visits, current, self._record.noise)
                self._notices += support_notices(self._record.cells, found, current)
            self._update(agreements=found, notices=self._notices)
        if self._parts != ("bench",):
            self._prove_axes(scratch)
        if "compare" in self._parts and not self._to_failure:
            with self._phases.during("causes"):
                causes = find_causes(visits, {artifact.id: artifact for artifact in self._artifacts}, self._record)
            self._update(causes=causes)
        if "bench" in self._parts:
            self._grow(visits)
            self._measure(visits)
        steal_share = CpuTimes().steal_share(self._cpu_times)
        environment = msgspec.structs.replace(self._record.environment, steal_share=steal_share)
        self._update(finished=True, verdict=overall(self._record), environment=environment)
        self._store.write_summary(summary(self._record))

    def _update(self, **fields: object) -> None:
        with self._phases.during("record"):
            spent_s = self._phases.seconds()
            wall_s = sum(spent_s.values())
            self._record = msgspec.structs.replace(self._record, wall_s=wall_s, phases_s=spent_s, **fields)
            self._store.update(self._record)
            self._record = self._store.record  # its id is that of the folder

    def _prepare_step(self, text: str) -> None:
        self._phases.step(text)
        self._progress(text)

    # --- numbers

    def _visit_all(
        self, cells: Sequence[Cell], refused: Sequence[CellRecord], prepared: Prepared, scratch: Path
    ) -> list[Visit]:
        visits: list[Visit] = []
        with Visitor(scratch, self._limits, self._phases, self._progress) as visitor:
            native = self._native_cells(cells, prepared)
            for visited in visitor.visits(native, "the source framework's own error"):
                self._fill_native(visited)
            for visited in visitor.visits(cells):
                visits.append(visited)
                if visited.cell.runtime.name == NATIVE_BACKEND:
                    self._fill_native(visited)
                if "compare" in self._parts:
                    with self._phases.during("judge"):
                        artifact = self._current(visited.cell.artifact)
                        visited.record = judge(visited, artifact, self._plan.tolerances)
                        visited.record = with_given(visited, artifact, self._plan.tolerances)
                        visited.record = self._half.judged(visited, artifact)
                self._notices += [*noise_notices(visited), *padded_notices(visited.record)]
                self._update(cells=[*refused, *(v.record for v in visits)])
        self._update(cells=[*refused, *(v.record for v in visits)], artifacts=self._artifact_records())
        for artifact in self._one_of_each_precision():
            self._notices += native_notices(artifact)
        self._notices += overflow_notices(visits)
        self._update(notices=self._notices)
        return visits

    def _native_cells(self, cells: Sequence[Cell], prepared: Prepared) -> list[Cell]:
        """Return what must be run only to know the source framework's own error: nothing where a cell gives it."""
        runtime = get_runtime(NATIVE_BACKEND)
        asked = {(cell.artifact.manifest.precision, cell.case) for cell in cells if cell.runtime is runtime}
        missing = [
            (artifact, case.name)
            for artifact in self._one_of_each_precision()
            for case in artifact.manifest.cases
            if artifact.manifest.source.factory is not None
            and (artifact.manifest.precision, case.name) not in asked
            and any(yardstick.native is None for yardstick in case.yardsticks.values())
        ]
        if not missing or not isinstance(runtime.probe(), Available):
            return []
        return [
            Cell(
                artifact,
                runtime,
                case,
                self._settings,
                timed=False,
                by_name=False,
                source_folder=prepared.source_folder,
            )
            for artifact, case in missing
        ]

    def _one_of_each_precision(self) -> list[Artifact]:
        """Return the first artifact of each precision: the module behind those of one precision is the same."""
        return list({artifact.manifest.precision: artifact for artifact in reversed(self._artifacts)}.values())[::-1]

    def _fill_native(self, visited: Visit) -> None:
        cell = visited.cell
        if visited.outputs is None:
            message = (
                f"PyTorch's own error is not known ({visited.record.reason}); rounding is judged by sensitivity alone"
            )
            self._notices.append(
                Notice(code="native-missing", message=message, where=f"{cell.artifact.id} {cell.case}")
            )
            return
        outputs = open_arrays(visited.outputs)
        self._artifacts = with_native(self._artifacts, cell.artifact, cell.case, outputs)
        self._artifacts = self._half.filled(self._artifacts, self._current(cell.artifact), cell.case, outputs)
        case = self._current(cell.artifact).case(cell.case)
        lost = [name for name, yard in case.yardsticks.items() if yard.native is None and not case.noise.get(name)]
        if lost:
            message = (
                f"PyTorch's own {', '.join(lost)} is at no finite distance from the oracle (NaN, Inf, or an oracle of "
                "zeros); rounding is judged by sensitivity alone"
            )
            self._notices.append(
                Notice(code="native-missing", message=message, where=f"{cell.artifact.id} {cell.case}")
            )

    def _current(self, artifact: Artifact) -> Artifact:
        """Return the artifact with the manifest as it stands now."""
        return next(other for other in self._artifacts if other.id == artifact.id)

    def _examine(self, visits: Sequence[Visit], scratch: Path) -> None:
        """Ask every backend that ran for more than its cases: see `STAGES`."""
        folder = scratch / "examined"
        folder.mkdir()
        stages: dict[str, Stage] = {"stress": StressStage()} if self._plan.stress else {}
        examination = Examination(
            stages if self._to_failure else {**stages, **STAGES},
            limits=self._limits,
            tolerances=self._plan.tolerances,
            seed=self._plan.seed,
            scratch=folder,
            phases=self._phases,
            on_progress=self._progress,
        )
        for found in examination.findings(visits, {artifact.id: artifact for artifact in self._artifacts}):
            self._notices += found.notices
            self._artifacts = [found.artifacts.get(artifact.id, artifact) for artifact in self._artifacts]
            self._update(
                stress=[*self._record.stress, *found.stress],
                laws=[*self._record.laws, *found.laws],
                noise=[*self._record.noise, *found.noise],
                notices=self._notices,
            )

    def _prove_axes(self, scratch: Path) -> None:
        """Run every artifact at other sizes of its dynamic axes; one with a size baked in is not called right."""
        for index, artifact in enumerate(self._artifacts):
            self._progress(f"{artifact.id}: other sizes of its dynamic axes")
            folder = scratch / f"axes{index}"
            folder.mkdir()
            with self._phases.during("axes"):
                proof = prove_axes(artifact, self._settings, folder, self._limits)
            self._artifacts[index] = proof.noted(artifact)
            self._axes[artifact.id] = proof
            self._notices += [notice for notice in proof.notices if notice.code != BAKED]  # the artifact's own
        self._update(artifacts=self._artifact_records(), notices=self._notices)

    # --- memory and latency

    def _grow(self, visits: Sequence[Visit]) -> None:
        """Find out how memory grows over varying lengths, where that was asked: of graphs that are timed."""
        calls, first = self._plan.growth, len(self._record.cells) - len(visits)
        for visited in visits if calls else ():
            cell = visited.cell
            if not cell.timed or visited.record.status != "ok" or cell.runtime.capabilities.executes != "graph":
                continue
            self._progress(f"{cell.label}, case {cell.case}: {calls} calls with varying lengths")
            with self._phases.during("growth"):
                growth, notices = measure_growth(cell, calls=calls, seed=self._plan.seed, limits=self._limits)
            visited.record = msgspec.structs.replace(visited.record, growth=growth)
            self._notices += notices
            cells = [*self._record.cells[:first], *(other.record for other in visits)]
            self._update(cells=cells, notices=self._notices)

    def _measure(self, visits: Sequence[Visit]) -> None:
        timed = [visited for visited in visits if visited.cell.timed and visited.record.status == "ok"]
        if not timed:
            return
        self._notices += environment_notices(self._record.environment)
        timing = Timing(
            [visited.cell for visited in timed],
            processes=self._plan.processes,
            budget_s=self._plan.time_budget_s,
            seed=self._plan.seed,
            limits=self._limits,
            worker_bytes=[visited.record.peak_rss_bytes or 0 for visited in timed],
            phases=self._phases,
            on_progress=self._progress,
        )
        try:
            timing.measure()
        finally:  # also when interrupted: what was measured is kept
            self._record_latency(timing, visits, timed)

    def _record_latency(self, timing: Timing, visits: Sequence[Visit], timed: Sequence[Visit]) -> None:
        first = len(self._record.cells) - len(visits)
        for visited, measured in zip(timed, timing.timings, strict=True):
            if measured.failure is not None:
                visited.record = msgspec.structs.replace(
                    visited.record,
                    status="void" if measured.failure.status == "void" else "failed",
                    reason=f"while timing: {measured.failure.reason}",
                    stderr_tail=measured.failure.stderr_tail,
                )
                continue
            latency = timing.latency(measured, visited.opened, visited.compile_s)
            peaks = [replica.peak_rss_bytes for replica in measured.timed()]
            visited.record = msgspec.structs.replace(
                visited.record,
                latency=latency,
                peak_rss_bytes=max([*peaks, visited.record.peak_rss_bytes or 0]),
            )
            if latency is not None and measured.why_void():
                visited.record = msgspec.structs.replace(visited.record, status="void", reason=measured.why_void())
            for replica in measured.timed():
                index = first + next(i for i, other in enumerate(visits) if other is visited)
                self._store.add_samples(index, replica.process, replica.samples_s, replica.turns)
        self._notices += timing.notices()
        self._update(
            cells=[*self._record.cells[:first], *(visited.record for visited in visits)],
            comparisons=_comparisons(timed),
            peaks=list(timing.peaks.values()),
            notices=self._notices,
        )

    # --- records

    def _first_record(self, backends: Sequence[tuple[Runtime, bool]]) -> RunRecord:
        plan = self._plan
        now = datetime.now(UTC)
        module = plan.source_kind == "module"
        pairs = plan.form_opsets() if module else []
        name = Path(plan.source).name if plan.source_kind != "module" else plan.source.rsplit("/", 1)[-1]
        return RunRecord(
            id=new_run_id(now, name),
            crosshead=version("crosshead"),
            started=now.isoformat(timespec="seconds"),
            plan=PlanRecord(
                source=name,
                options=dict(plan.options),
                backends=[runtime.name for runtime, _ in backends],
                exporter=plan.exporter,
                forms=list(dict.fromkeys(form for form, _ in pairs)),
                precisions=list(plan.precisions),
                opsets=list(dict.fromkeys(opset for _, opset in pairs)),
                cases=[],
                threads=self._settings.threads,
                processes=plan.processes,
                time_budget_s=plan.time_budget_s,
                seed=plan.seed,
                timed="bench" in self._parts,
                growth_calls=plan.growth,
            ),
            environment=read_environment(library_versions(backends)),
            notices=self._notices,
        )

    def _artifact_records(self) -> list[ArtifactRecord]:
        return [artifact_record(artifact, self._axes.get(artifact.id, AxesProof())) for artifact in self._artifacts]


def artifact_record(artifact: Artifact, proof: AxesProof) -> ArtifactRecord:
    """Return what a record says of an artifact, its dynamic axes included."""
    manifest = artifact.manifest
    return ArtifactRecord(
        id=manifest.id,
        path=f"{ARTIFACTS}/{artifact.folder.name}/{artifact.model_path.name}",
        sha256=manifest.model_sha256,
        source=manifest.source.name,
        exporter=manifest.exporter,
        exporter_version=manifest.exporter_version,
        opset=manifest.opset,
        form=manifest.form,
        precision=manifest.precision,
        ops=manifest.ops,
        graph=proof.judged(msgspec.convert(msgspec.to_builtins(manifest.graph), GraphRecord)),
        axes=proof.axes,
        stress_left_out=manifest.stress_left_out,
        notices=[Notice(code=n.code, message=n.message, where=n.where or manifest.id) for n in manifest.notices],
    )


def _comparisons(timed: Sequence[Visit]) -> list[ComparisonRecord]:
    """Compare every two timed cells of one case; intervals are widened for the number of pairs."""
    cells = [visited for visited in timed if visited.record.status == "ok" and visited.record.latency is not None]
    pairs = [(a, b) for a, b in itertools.combinations(cells, 2) if a.cell.case == b.cell.case]
    found = []
    for a, b in pairs:
        if a.record.latency is None or b.record.latency is None:
            continue
        ratio, low, high, verdict = compare_latency(
            a.record.latency.process_medians_s, b.record.latency.process_medians_s, pairs=len(pairs)
        )
        found.append(
            ComparisonRecord(
                a=a.cell.label, b=b.cell.label, case=a.cell.case, ratio=ratio, ci_low=low, ci_high=high, verdict=verdict
            )
        )
    return found


def thread_notices(settings: Settings) -> list[Notice]:
    """Return a notice where there are more threads than cores."""
    cores = default_threads()
    if settings.threads <= cores:
        return []
    message = (
        f"{settings.threads} threads on {cores} cores: spinning threads wait for each other, and calls can take many "
        f"times longer; give --threads {cores} or fewer"
    )
    return [Notice(code="threads-over-cores", message=message, where="plan")]


def library_versions(backends: Sequence[tuple[Runtime, bool]]) -> dict[str, str]:
    """Return the versions of the libraries that decide the figures, by distribution name."""
    from importlib.metadata import PackageNotFoundError

    found = {}
    for name in ("crosshead", "torch", "onnx", "onnxruntime", "onnxruntime-gpu", "onnxscript", "onnx-ir", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    for runtime, _ in backends:
        state = runtime.probe()
        if isinstance(state, Available) and state.version not in found.values():
            found[runtime.name] = state.version
    return found
