"""The ladder: the failing cell again, with one thing changed at a time. Which change takes the error away?"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from crosshead.export.artifact import Arrays, Artifact, ExportError, pack_arrays, sha256_bytes
from crosshead.export.float64 import widen
from crosshead.harness.accuracy import Limits
from crosshead.harness.cells import Cell, refusal
from crosshead.harness.diagnose.asking import with_model
from crosshead.harness.diagnose.standing import SMALLER, Standing, try_cell
from crosshead.results.diagnosis import RungRecord
from crosshead.runtimes import Available, get_runtime

PEERS: Final = ("ort-cpu", "onnx-reference")
"""Backends that a graph is asked of when none of its own settings makes a difference."""


FLASH_OFF: Final = {"ORT_DISABLE_FLASH_ATTENTION": "1", "ORT_DISABLE_MEMORY_EFFICIENT_ATTENTION": "1"}
"""What lets ONNX Runtime's own attention operators take their plain kernel; read when a session is made."""

_OWN_ATTENTION = ("com.microsoft::MultiHeadAttention", "com.microsoft::GroupQueryAttention")


@dataclass(frozen=True)
class Change:
    """One thing changed.

    Attributes:
        name: `graph optimisation off`; after "with", it begins a sentence.
        cell: makes the cell, which may take an export; None where there is nothing to change.
        environment: set while the worker starts.
        export: whether it takes an export.
    """

    name: str
    cell: Callable[[], Cell | None]
    environment: Mapping[str, str] = field(default_factory=dict)
    export: bool = False


@dataclass(frozen=True)
class Ladder:
    """What came of every change."""

    rungs: tuple[RungRecord, ...]
    message: str

    @property
    def remedy(self) -> str:
        """The first change that takes the error away; empty where none does."""
        return next((rung.change for rung in self.rungs if rung.outcome == "gone"), "")


Exports = Callable[..., Sequence[Artifact]]


def climb(
    cell: Cell,
    base: Standing,
    *,
    others: Sequence[Artifact],
    export: Exports | None,
    limits: Limits,
    scratch: Path,
    against: Arrays | None = None,
    on_step: Callable[[str], None],
) -> Ladder:
    """Try every change on a failing cell, cheap ones first; exports only while nothing took the error away.

    Args:
        cell: as it failed.
        base: how it stands.
        others: other forms of the same source that are at hand, with the same case.
        export: exports the source anew (`exporter=`, `precisions=`, `forms=`); None where there is no source.
        limits: of a worker.
        scratch: an existing folder.
        against: outputs of the backend that this one is held against.
        on_step: told what is tried.
    """
    rungs: list[RungRecord] = []
    for number, change in enumerate(_changes(cell, others, export, scratch)):
        if change.export and any(rung.outcome == "gone" for rung in rungs):
            continue
        on_step(f"with {change.name}")
        folder = scratch / f"rung{number}"
        folder.mkdir()
        rungs.append(_rung(change, base, limits, folder, against))
    return Ladder(tuple(rungs), sentence(base, rungs))


def _rung(change: Change, base: Standing, limits: Limits, scratch: Path, against: Arrays | None) -> RungRecord:
    try:
        changed = change.cell()
    except ExportError as error:
        return RungRecord(change=change.name, outcome="not-run", reason=" ".join(str(error).split()))
    if changed is None:
        return RungRecord(change=change.name, outcome="not-run", reason="it is not to be had here")
    reason = refusal(changed)
    if reason is not None:
        return RungRecord(change=change.name, outcome="not-run", reason=reason)
    with _environment(change.environment):
        found = try_cell(changed, changed.artifact.inputs(changed.case), limits, scratch, against)
    return record_rung(change.name, base, found)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Let workers that start meanwhile see these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def record_rung(name: str, base: Standing, found: Standing) -> RungRecord:
    """Return the record of a change: what is left of the error under it."""
    if found.crashed and not base.crashed:
        return RungRecord(change=name, outcome="not-run", reason=found.said)
    if found.passes:
        outcome: Any = "gone"
    elif not base.crashed and found.times <= SMALLER * base.times and math.isfinite(found.times):
        outcome = "smaller"
    else:
        outcome = "stays"
    times = found.times if math.isfinite(found.times) else None
    return RungRecord(change=name, outcome=outcome, error=found.error, times_expected=times, reason=found.said)


def sentence(base: Standing, rungs: Sequence[RungRecord]) -> str:
    """Say in one sentence which change takes the error away."""
    tried = [rung for rung in rungs if rung.outcome != "not-run"]
    gone = [rung for rung in tried if rung.outcome == "gone"]
    if base.crashed:
        if gone:
            return f"with {gone[0].change} it runs and is right ({_figures(gone[0])}); as it was: {base.said}"
        return f"it fails under every change tried ({', '.join(rung.change for rung in tried) or 'none'})"
    if not tried:
        return f"nothing could be changed; the error is {base.figures}"
    if gone:
        first, *more = gone
        also = f"; so it does with {', '.join(rung.change for rung in more)}" if more else ""
        return f"with {first.change} the error falls from {base.figures} to {_figures(first)}{also}"
    smaller = [rung for rung in tried if rung.outcome == "smaller"]
    if smaller:
        first = smaller[0]
        return f"no change takes the error away; with {first.change} it falls from {base.figures} to {_figures(first)}"
    return f"the error of {base.figures} stays under every change tried: {', '.join(rung.change for rung in tried)}"


def _figures(rung: RungRecord) -> str:
    times = rung.times_expected
    shown = "" if times is None else f" ({times:,.0f})" if times >= 100 else f" ({times:.2g})"
    if rung.error is not None and not math.isfinite(rung.error):
        return "NaN or Inf"
    return f"{rung.error:.1e}{shown}" if rung.error is not None else "nothing"


def _changes(cell: Cell, others: Sequence[Artifact], export: Exports | None, scratch: Path) -> Iterator[Change]:
    """Yield what can be changed, from the smallest change to the largest."""
    settings, runtime, manifest = cell.settings, cell.runtime, cell.artifact.manifest
    graph = runtime.capabilities.executes == "graph"

    def set_to(name: str, **fields: Any) -> Change:
        return Change(name, lambda: replace(cell, settings=msgspec.structs.replace(settings, **fields)))

    if settings.threads > 1:
        yield set_to("one thread", threads=1)
    if runtime.name.startswith("ort-"):
        if settings.optimization not in ("disable", "basic"):
            yield set_to("fusion off (optimisation level basic)", optimization="basic")
        if settings.optimization != "disable":
            yield set_to("graph optimisation off", optimization="disable")
        if any(op in manifest.ops for op in _OWN_ATTENTION):
            yield Change("the plain attention kernel", lambda: cell, environment=FLASH_OFF)
    if settings.tf32 and runtime.capabilities.device == "cuda":
        yield set_to("TF32 off", tf32=False)
    if not graph:
        return
    for other in others:
        name = f"the form {other.manifest.form}, opset {other.manifest.opset}"
        yield Change(name, partial(replace, cell, artifact=other))
    yield Change("all arithmetic in float64", partial(_in_double, cell, scratch))
    if export is not None and manifest.precision != "fp32":
        how: dict[str, Any] = {"forms": ((manifest.form, manifest.opset),), "precisions": ("fp32",)}
        yield Change("the module in fp32", partial(_exported, cell, export, how), export=True)
    if export is not None and not manifest.exporter.startswith("torchscript"):
        how = {"forms": (("decomposed", 18),), "exporter": "torchscript"}
        yield Change("another exporter (torchscript)", partial(_exported, cell, export, how), export=True)
    for peer in PEERS:
        if peer != runtime.name:
            yield Change(f"the backend {peer}", partial(_elsewhere, cell, peer))


def _elsewhere(cell: Cell, name: str) -> Cell | None:
    runtime = get_runtime(name)
    return replace(cell, runtime=runtime) if isinstance(runtime.probe(), Available) else None


def _exported(cell: Cell, export: Exports, how: Mapping[str, Any]) -> Cell:
    """Raise ExportError where the source cannot be exported so, or the case is not among those exported."""
    (artifact,) = export(**how)
    artifact.case(cell.case)
    return replace(cell, artifact=artifact)


def _in_double(cell: Cell, scratch: Path) -> Cell:
    """The same graph on the same backend, widened: its inputs are the same numbers in float64."""
    artifact, case = cell.artifact, cell.artifact.case(cell.case)
    doubled = with_model(artifact, widen(onnx.load(artifact.model_path)), f"{artifact.id}-float64", scratch)
    inputs = {
        name: array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array
        for name, array in artifact.inputs(case.name).items()
    }
    data = pack_arrays(inputs)
    specs = tuple(
        msgspec.structs.replace(spec, dtype=inputs[spec.name].dtype.name) for spec in artifact.manifest.inputs
    )
    manifest = msgspec.structs.replace(
        doubled.manifest,
        cases=(msgspec.structs.replace(case, inputs_sha256=sha256_bytes(data)),),
        size_cases=(),
        stress_cases=(),
        inputs=specs,
        precision="fp32",  # the nearest that a backend declares
        source=msgspec.structs.replace(artifact.manifest.source, cast=None),
        form="given",
    )
    doubled = doubled.with_manifest(manifest)
    doubled.inputs_path(case.name).write_bytes(data)
    return replace(cell, artifact=doubled)
