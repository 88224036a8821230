"""The first visit to every cell, one worker alone at a time: does it run, what does it give, how cold does it start?"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from crosshead.export.artifact import Artifact, CaseRecord, Readable, open_arrays
from crosshead.export.error import relative_l2, relative_l2_both
from crosshead.export.pair import Pair
from crosshead.harness.cells import Cell
from crosshead.harness.judge import Tolerances, doubt_empty, judge_output
from crosshead.harness.metrics import is_floating
from crosshead.harness.padding import padded_positions, unpadded
from crosshead.harness.phases import Phases
from crosshead.harness.randomness import doubted
from crosshead.results import CellRecord, CellStatus, Notice, OutputRecord, ProviderRecord, scrub
from crosshead.runtimes import (
    BackendError,
    Opened,
    Placement,
    PlacementError,
    UnsupportedError,
    VoidError,
    Worker,
    WorkerError,
)

NATIVE_BACKEND = "torch-eager"
"""The source framework: its own error at the artifact's precision is part of the yardstick."""

NATIVE_TIMES = 10.0
"""A source framework that loses more than so many sensitivities is a finding by itself."""


@dataclass(frozen=True)
class Limits:
    """How long and how large a worker may be: seconds for one answer, bytes of resident memory."""

    timeout_s: float
    memory_bytes: int | None


@dataclass
class Visit:
    """What the first visit to a cell found.

    Attributes:
        cell: the cell.
        record: its record so far; `outputs` are filled in by `judge`.
        outputs: where the outputs lie, when there are any.
        noise: by output, relative L2 between two runs on the same inputs in the same process.
        opened: cold start and placement, when it opened.
        compile_s: seconds of compiling for the case, where the backend compiles.
    """

    cell: Cell
    record: CellRecord
    outputs: Path | None = None
    noise: Mapping[str, float] = field(default_factory=dict)
    opened: Opened | None = None
    compile_s: float | None = None


def launch(cell: Cell, limits: Limits) -> Worker:
    """Return a worker for a cell, not yet started."""
    return Worker(
        cell.runtime.name,
        cell.artifact.folder,
        cell.settings,
        source_folder=cell.source_folder,
        cache_folder=cell.cache_folder,
        timeout_s=limits.timeout_s,
        memory_limit_bytes=limits.memory_bytes,
    )


def visit(
    cell: Cell,
    scratch: Path,
    worker: Worker,
    phases: Phases,
    *,
    meanwhile: Callable[[], None] = lambda: None,
) -> Visit:
    """Open a cell in a worker of its own, run it twice on its case, and keep what came out.

    Args:
        cell: what is run.
        scratch: takes the outputs.
        worker: of `launch`; started, booted, or neither. It is closed in the end.
        phases: told where the time went.
        meanwhile: called once the cold start was read, when something else may run beside the worker.
    """
    first, second = scratch / "first.npz", scratch / "second.npz"
    inputs = cell.artifact.inputs_path(cell.case)
    compiles = cell.runtime.capabilities.compiles
    try:
        with phases.during("visit_start"), worker:
            began = time.perf_counter()
            if not worker.started:
                worker.start()
            opened = worker.opened()
            waited_s = time.perf_counter() - began  # less than the worker took, where it came up beside another
            seen = min(1.0, waited_s / (opened.import_s + opened.session_s))
            spent = {"visit_import": seen * opened.import_s, "visit_session": seen * opened.session_s}
            phases.share_out("visit_start", spent)
            if not compiles:  # that is a reading, too
                meanwhile()
            with phases.during("visit_run"):
                ran = worker.run(inputs, first)
                again = worker.run(inputs, second)
            phases.share_out("visit_run", {"compile": ran.compile_s or 0.0})
            if compiles:
                meanwhile()
    except (BackendError, WorkerError) as error:
        return Visit(cell, failure_record(cell, error))
    placement = ran.placement or opened.placement
    noise = _noise(open_arrays(first), open_arrays(second))
    details = {name: scrub(text) for name, text in (opened.details | ran.details).items()}
    details["repeat"] = "same bits" if not any(noise.values()) else f"rel_l2 {max(noise.values()):.3g} between two runs"
    if ran.compile_s is not None:
        details["compile_s"] = f"{ran.compile_s:.3g}"
    record = cell.record(
        status="ok",
        details=details,
        peak_rss_bytes=max(opened.peak_rss_bytes, again.peak_rss_bytes),
        placement=providers(placement),
        placement_proof=placement.proof if placement is not None else "",
    )
    return Visit(cell, record, outputs=first, noise=noise, opened=opened, compile_s=ran.compile_s)


def failure_record(cell: Cell, error: Exception) -> CellRecord:
    """Return the record of a cell that an error ended."""
    status: CellStatus = "failed"
    if isinstance(error, UnsupportedError):
        status = "unsupported"
    elif isinstance(error, VoidError):
        status = "void"
    tail = error.stderr_tail if isinstance(error, WorkerError) else ""
    reason = scrub(" ".join(str(error).split()))
    if isinstance(error, PlacementError):
        reason = f"placement: {reason}"
    return cell.record(status=status, reason=reason, stderr_tail=scrub(tail))


def providers(placement: Placement | None) -> dict[str, ProviderRecord]:
    """Return what each execution provider computes; empty where the backend has no such notion."""
    if placement is None:
        return {}
    return {
        name: ProviderRecord(nodes=share.nodes, flops_share=share.flops_share)
        for name, share in placement.providers.items()
    }


def _noise(first: Mapping[str, Readable], second: Mapping[str, Readable]) -> dict[str, float]:
    """Return by output how far two runs lie apart: nothing where the bits are the same."""
    noise: dict[str, float] = {}
    for name, array in first.items():
        other = second.get(name)
        if other is None or other.shape != array.shape:
            noise[name] = math.inf
        elif Pair(other, array).identical():
            noise[name] = 0.0
        else:
            noise[name] = relative_l2(other, array) if is_floating(array) else math.inf
    return noise


def noise_notices(visited: Visit) -> list[Notice]:
    """Say where two runs on the same inputs in one process gave different bits, unless the module itself is random."""
    if not any(visited.noise.values()) or visited.cell.artifact.case(visited.cell.case).noise:
        return []
    message = (
        f"two runs on the same inputs differ by rel_l2 {max(visited.noise.values()):.3g}; "
        "differences between backends below that mean nothing"
    )
    return [Notice(code="nondeterministic", message=message, where=f"{visited.cell.label} {visited.cell.case}")]


def with_native(
    artifacts: Sequence[Artifact], source: Artifact, case: str, outputs: Mapping[str, Readable]
) -> list[Artifact]:
    """Write the source framework's own error into the yardsticks of every artifact of the same precision.

    Args:
        artifacts: all artifacts of the run.
        source: the artifact whose module gave `outputs`.
        case: the case.
        outputs: what the module gave at its own precision, by output name.

    Returns:
        `artifacts`, with new manifests where something was filled in.
    """
    expected = source.stored_expected(case)
    padded = padded_positions(source, case, expected)
    native: dict[str, tuple[float, float]] = {}
    for name, want in expected.items():
        got = outputs.get(name)
        if got is None or got.shape != want.shape or not is_floating(got) or source.case(case).noise.get(name):
            continue
        errors = relative_l2_both(got, want, unpadded(padded.get(name)))
        if max(errors) < float("inf"):
            native[name] = errors
    return [_fill_native(artifact, source, case, native) for artifact in artifacts]


def _fill_native(
    artifact: Artifact, source: Artifact, case: str, native: Mapping[str, tuple[float, float]]
) -> Artifact:
    if artifact.manifest.precision != source.manifest.precision:
        return artifact
    cases: list[CaseRecord] = []
    for record in artifact.manifest.cases:
        if record.name != case:
            cases.append(record)
            continue
        yardsticks = {
            name: msgspec.structs.replace(yardstick, native=native[name][0], native_row=native[name][1])
            if name in native
            else yardstick
            for name, yardstick in record.yardsticks.items()
        }
        cases.append(msgspec.structs.replace(record, yardsticks=yardsticks))
    return artifact.with_manifest(msgspec.structs.replace(artifact.manifest, cases=tuple(cases)))


def native_notices(artifact: Artifact) -> list[Notice]:
    """Say where the source framework itself loses far more than its inputs' rounding explains."""
    notices = []
    for case in artifact.manifest.cases:
        for name, yardstick in case.yardsticks.items():
            floor = max(yardstick.sensitivity, yardstick.unit_roundoff / 2)
            if yardstick.native is not None and yardstick.native > NATIVE_TIMES * floor:
                times = yardstick.native / floor
                message = (
                    f"PyTorch's own error on output {name!r} is {times:.3g} times what one rounding of inputs "
                    "and weights moves it; other backends are judged by that larger error"
                )
                notices.append(Notice(code="native-error", message=message, where=f"{artifact.id} {case.name}"))
    return notices


def judge(visited: Visit, artifact: Artifact, tolerances: Tolerances) -> CellRecord:
    """Return the record of a visited cell with a verdict on each output."""
    if visited.outputs is None:
        return visited.record
    case = artifact.case(visited.cell.case)
    outputs, expected = open_arrays(visited.outputs), artifact.stored_expected(case.name)
    padded = padded_positions(artifact, case.name, expected)
    own_rows = visited.cell.runtime.name == NATIVE_BACKEND
    records: list[OutputRecord] = []
    for spec in artifact.manifest.outputs:
        if spec.name not in outputs:
            reason = f"the backend gave no output of this name; it gave: {', '.join(outputs) or 'none'}"
            records.append(OutputRecord(name=spec.name, verdict="fail", rule="exact", reason=reason))
            continue
        record = judge_output(
            spec.name,
            outputs[spec.name],
            expected[spec.name],
            expected_dtype=spec.dtype,
            yardstick=case.yardsticks.get(spec.name),
            use_native=not own_rows,
            tolerance=tolerances.of(spec.name),
            padded=padded.get(spec.name),
        )
        same_shape = outputs[spec.name].shape == expected[spec.name].shape
        records.append(doubted(record, case.noise.get(spec.name, 0.0)) if same_shape else record)
    return msgspec.structs.replace(visited.record, outputs=doubt_empty(records))
