"""Is each axis that was declared dynamic really free? Asked by running an artifact at other sizes, 1 among them.

An exporter that took an example's size for a constant leaves a graph that breaks elsewhere, or, where a size of 1 is
broadcast, one that runs and is wrong. The cases travel with the artifact; here they are run in one worker of a backend
that executes graphs, and what fails is asked again of the reference evaluator, so that a kernel's trouble with a size
is not taken for the graph's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, ArtifactNotice, CaseRecord, unpack_arrays
from crosshead.harness.accuracy import Limits, launch
from crosshead.harness.cells import Cell, refusal
from crosshead.harness.judge import judge_output
from crosshead.results import GraphRecord, Notice, OutputRecord, scrub
from crosshead.runtimes import (
    Available,
    BackendError,
    InputError,
    Settings,
    UnsupportedError,
    Worker,
    WorkerError,
    get_runtime,
)

Array = NDArray[np.generic]

PROVERS = ("ort-cpu", "onnx-reference")
"""Backends that prove axes, the first one that is here first; the next one gives a second opinion."""

BAKED = "baked-dimension"

USUAL_TIMES = 10.0
"""Numbers at another size show a fault of the graph only where they are off by more than so many times the error that
the same backend has at the usual sizes: a module that narrows inside errs alike at every size."""

Kind = Literal["right", "wrong", "unclear", "refused"]


@dataclass(frozen=True)
class AxesProof:
    """What running at other sizes showed.

    Attributes:
        axes: by dynamic axis, `proved: 1, 11` or `not proved: …` with the reason.
        baked: why the graph cannot be called right; empty where no size is baked in.
        notices: each axis with a baked size, and each size that only a backend fails at.
    """

    axes: dict[str, str] = field(default_factory=dict)
    baked: str = ""
    notices: list[Notice] = field(default_factory=list)

    def judged(self, graph: GraphRecord) -> GraphRecord:
        """Return the verdict of a run over the graph: *fail* where a size is baked in, whatever float64 said."""
        if not self.baked:
            return graph
        detail = "; ".join(part for part in (self.baked, graph.detail) if part)
        return msgspec.structs.replace(graph, verdict="fail", detail=detail)

    def noted(self, artifact: Artifact) -> Artifact:
        """Return the artifact, its baked sizes among its notices on disk too, wherever it goes from here.

        The float64 verdict in the manifest stays: it is about the usual sizes, and another run begins with it.
        """
        manifest = artifact.manifest
        baked = [ArtifactNotice(code=each.code, message=each.message) for each in self.notices if each.code == BAKED]
        fresh = [notice for notice in baked if notice not in manifest.notices]
        if not fresh:
            return artifact
        return artifact.with_manifest(msgspec.structs.replace(manifest, notices=(*manifest.notices, *fresh)))


@dataclass
class _Usual:
    """How far a backend is off at the artifact's usual sizes, asked at the first need of it and once.

    Attributes:
        cell: the artifact and the backend.
        outputs: where its outputs are put.
        errors: by output, relative L2 over all of it and over its worst row; infinite where the output is NaN or Inf
            where the oracle is not, or is no output to be measured. None as long as nothing was asked.
        failed: what the backend said where it does not run the usual sizes either.
    """

    cell: Cell
    outputs: Path
    errors: dict[str, tuple[float, float]] | None = None
    failed: str = ""

    def ask(self, worker: Worker) -> None:
        """Run the artifact's first case, unless that was done.

        Raises:
            WorkerError: the worker is lost.
        """
        if self.errors is not None:
            return
        artifact = self.cell.artifact
        case = artifact.manifest.cases[0]
        try:
            worker.run(artifact.inputs_path(case.name), self.outputs)
        except BackendError as error:
            self.errors, self.failed = {}, _one_line(error)
            return
        got = unpack_arrays(self.outputs)
        self.errors = {
            name: _errors(_record(name, got[name], want, case))
            for name, want in artifact.expected(case.name).items()
            if name in got
        }

    def explains(self, record: OutputRecord) -> bool:
        """Whether an output is no further off than this backend is at the usual sizes, `USUAL_TIMES` times."""
        allowed = (self.errors or {}).get(record.name, (math.inf, math.inf))
        return all(
            error <= USUAL_TIMES * usual or math.isinf(usual)
            for error, usual in zip(_errors(record), allowed, strict=True)
        )


@dataclass(frozen=True)
class _Outcome:
    """What came of one case on one backend; `said` is one clause where it is not right."""

    kind: Kind
    said: str = ""
    backend: str = ""


def prove_axes(artifact: Artifact, settings: Settings, scratch: Path, limits: Limits) -> AxesProof:
    """Run an artifact at the other sizes that it carries.

    A size is *proved* where the graph gives the oracle's outputs at it: the same shape, and an error within the limits
    of the derived rule. An axis is *baked* where a backend fails or is wrong at a size of it, and not alike at the
    usual sizes, and the reference evaluator does not get it right either. Where several axes change at once, those
    that are proved at their size by another case are not blamed.

    Args:
        artifact: its graph is run; it is not changed.
        settings: how backends run.
        scratch: an empty folder for outputs.
        limits: of the workers.
    """
    manifest = artifact.manifest
    names = list(dict.fromkeys(axis for spec in manifest.inputs for axis in spec.shape if isinstance(axis, str)))
    if not names:
        return AxesProof()
    if not manifest.size_cases:
        reason = "a bare .onnx has no module to be held against" if manifest.source.kind == "onnx" else _NO_CASES
        return AxesProof({name: f"not proved: {manifest.sizes_left_out.get(name, reason)}" for name in names})
    cells = [cell for cell in _cells(artifact, settings) if refusal(cell) is None]
    if not cells:
        return AxesProof(dict.fromkeys(names, f"not proved: no backend for graphs is here ({', '.join(PROVERS)})"))
    outcomes, notices = _ask(cells, manifest.size_cases, scratch, limits)
    return _concluded(artifact, names, outcomes, notices)


_NO_CASES = "the artifact carries no other sizes; export it again"


def _cells(artifact: Artifact, settings: Settings) -> Iterator[Cell]:
    for name in PROVERS:
        runtime = get_runtime(name)
        if isinstance(runtime.probe(), Available):
            yield Cell(artifact, runtime, "", settings, timed=False, by_name=False)


def _ask(
    cells: Sequence[Cell], cases: Sequence[CaseRecord], scratch: Path, limits: Limits
) -> tuple[dict[str, _Outcome], list[Notice]]:
    """Ask the first backend every case, and the others what it does not answer well."""
    outcomes: dict[str, _Outcome] = {}
    notices: list[Notice] = []
    for cell in cells:
        open_cases = [case for case in cases if case.name not in outcomes or outcomes[case.name].kind != "right"]
        for case, found in _run(cell, open_cases, scratch, limits):
            before = outcomes.get(case.name)
            outcomes[case.name] = _weighed(before, found)
            if before is not None and found.kind == "right" and before.kind != "refused":
                message = (
                    f"{before.backend} alone fails at {_told(case.sizes)} ({before.said}); "
                    f"{found.backend} computes what the module does there, so the graph is not at fault"
                )
                notices.append(Notice(code="size-fails-on-backend", message=message, where=cell.artifact.id))
    return outcomes, notices


def _weighed(first: _Outcome | None, second: _Outcome) -> _Outcome:
    """Return what two backends say together: right if any is, else wrong if the one asked first is."""
    if first is None or second.kind == "right":
        return second
    return second if first.kind in ("refused", "unclear") and second.kind == "wrong" else first


def _run(
    cell: Cell, cases: Sequence[CaseRecord], scratch: Path, limits: Limits
) -> Iterator[tuple[CaseRecord, _Outcome]]:
    """Run cases in one worker, in another one after it died."""
    worker: Worker | None = None
    backend = cell.runtime.name
    usual = _Usual(cell, scratch / f"{backend} usual.npz")
    try:
        for case in cases:
            try:
                if worker is None:
                    worker = launch(cell, limits)
                    worker.start()
                    worker.opened()
            except (BackendError, WorkerError) as error:
                kind: Kind = "refused" if isinstance(error, UnsupportedError) else "unclear"
                for left in cases[cases.index(case) :]:
                    yield left, _Outcome(kind, _one_line(error), backend)
                return
            outputs = scratch / f"{backend}.npz"
            try:
                found = _found(cell, case, outputs, worker, usual)
            except WorkerError as error:
                worker.close()
                worker = None
                found = _Outcome("unclear", _one_line(error), backend)
            yield case, found
    finally:
        if worker is not None:
            worker.close()


def _found(cell: Cell, case: CaseRecord, path: Path, worker: Worker, usual: _Usual) -> _Outcome:
    """Run one case in a worker, and say what came of it."""
    backend = cell.runtime.name
    try:
        worker.run(cell.artifact.inputs_path(case.name), path)
    except UnsupportedError as error:
        return _Outcome("refused", _one_line(error), backend)
    except InputError as error:
        return _Outcome("unclear", _one_line(error), backend)
    except BackendError as error:
        usual.ask(worker)
        said = _one_line(error)
        return (
            _Outcome("unclear", f"{said}, and so it is at the usual sizes", backend)
            if usual.failed
            else _Outcome("wrong", said, backend)
        )
    return _judged(cell, case, path, worker, usual)


def _judged(cell: Cell, case: CaseRecord, path: Path, worker: Worker, usual: _Usual) -> _Outcome:
    """Hold what a backend gave against the oracle, and what is off against how it errs at the usual sizes."""
    artifact, backend = cell.artifact, cell.runtime.name
    got, want = unpack_arrays(path), artifact.expected(case.name)
    doubt = _doubt(cell)
    worst = _Outcome("unclear", doubt, backend) if doubt else _Outcome("right", backend=backend)
    for name in want:
        if name not in got:
            return _Outcome("wrong", f"output {name!r} is missing", backend)
        if got[name].shape != want[name].shape:
            shapes = f"has shape {list(got[name].shape)}, and {list(want[name].shape)} in the module"
            return _Outcome("wrong", f"output {name!r} {shapes}", backend)
        if doubt:
            continue
        record = _record(name, got[name], want[name], case)
        finite = record.rel_l2 is not None and math.isfinite(record.rel_l2)
        off = f"is off by rel_l2 {record.rel_l2:.2g}" if finite else f"is wrong ({record.reason})"
        if record.verdict == "fail":
            usual.ask(worker)
            if usual.explains(record):
                worst = _Outcome(
                    "unclear",
                    f"output {name!r} {off}, within {USUAL_TIMES:g} times what it is off by at the usual sizes",
                    backend,
                )
                continue
            deviates = [each for each in cell.runtime.capabilities.deviations if each.op in artifact.manifest.ops]
            if not deviates:
                return _Outcome("wrong", f"output {name!r} {off}", backend)
            known = f"output {name!r} {off} there, and {backend} is known to be off for {deviates[0].op}"
            worst = _Outcome("unclear", known, backend)
        elif record.verdict == "suspect" and worst.kind == "right":
            worst = _Outcome("unclear", f"output {name!r}: {record.reason}", backend)
    return worst


def _record(name: str, got: Array, want: Array, case: CaseRecord) -> OutputRecord:
    dtype = got.dtype.name  # another dtype than declared is no matter of sizes
    yardstick = case.yardsticks.get(name)
    return judge_output(name, got, want, expected_dtype=dtype, yardstick=yardstick, use_native=False)


def _errors(record: OutputRecord) -> tuple[float, float]:
    """Return the relative L2 error of an output, and of its worst row; of whole numbers none or an infinite one."""
    if record.rel_l2 is None or record.rel_l2_row is None:
        return (math.inf, math.inf) if record.verdict == "fail" else (0.0, 0.0)
    return record.rel_l2, record.rel_l2_row


def _doubt(cell: Cell) -> str:
    """Say why numbers tell nothing about sizes; empty where they do."""
    if cell.artifact.manifest.graph.by_stress:
        return ""
    return {
        "fail": "the graph is wrong at the usual sizes already",
        "not-asked": "the graph was not held against the module at the usual sizes",
    }.get(cell.artifact.manifest.graph.verdict, "")


def _concluded(
    artifact: Artifact, names: Sequence[str], outcomes: Mapping[str, _Outcome], notices: list[Notice]
) -> AxesProof:
    manifest = artifact.manifest
    proved = {
        pair for case in manifest.size_cases if outcomes[case.name].kind == "right" for pair in case.sizes.items()
    }
    baked: dict[str, dict[int, str]] = {}
    unclear: dict[str, dict[int, str]] = {}
    for case in manifest.size_cases:
        outcome = outcomes[case.name]
        if outcome.kind == "right":
            continue
        into = baked if outcome.kind == "wrong" else unclear
        for name, size in _blamed(case, proved):
            into.setdefault(name, {}).setdefault(size, outcome.said)
    axes = {}
    for name in names:
        sizes = sorted(size for axis, size in proved if axis == name)
        axes[name] = _line(
            name, sizes, baked.get(name, {}), unclear.get(name, {}), manifest.sizes_left_out.get(name, "")
        )
    for name, failed in baked.items():
        message = (
            f"axis {name!r} is baked in: at {_sizes(failed)} {next(iter(failed.values()))}; "
            "what depends on it must be computed from the input's shape, not from the example's"
        )
        notices.append(Notice(code=BAKED, message=message, where=artifact.id))
    detail = "; ".join(
        f"axis {name!r} is baked in: at {_sizes(failed)} {next(iter(failed.values()))}"
        for name, failed in baked.items()
    )
    return AxesProof(axes, detail, notices)


def _blamed(case: CaseRecord, proved: set[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the axes of a failed case, without those that another case proves at the same size."""
    return [pair for pair in case.sizes.items() if pair not in proved] or list(case.sizes.items())


def _line(name: str, proved: Sequence[int], baked: Mapping[int, str], unclear: Mapping[int, str], left_out: str) -> str:
    """Return what is to be said of one axis."""
    if baked:
        return f"not proved: baked in, fails at {_sizes(baked)} ({next(iter(baked.values()))})"
    doubts = [f"{name}={size}: {said}" for size, said in unclear.items() if size not in proved]
    if not proved:
        return f"not proved: {'; '.join([*doubts, left_out] if left_out else doubts) or _NO_CASES}"
    doubts += [f"not tried: {left_out}"] if left_out else []
    return "; ".join([f"proved: {', '.join(map(str, proved))}", *doubts])


def _sizes(sizes: Mapping[int, str]) -> str:
    return " and ".join(map(str, sizes))


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _one_line(error: Exception) -> str:
    return scrub(" ".join(str(error).split()))
