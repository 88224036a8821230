"""What is to be looked into: the worst failure of a run, with all that is needed to see it again."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from crosshead.export.artifact import Arrays, Artifact
from crosshead.harness.cells import Cell
from crosshead.harness.errors import RequestError
from crosshead.harness.metrics import is_floating
from crosshead.results import AgreementRecord, ArtifactRecord, CellRecord, RunRecord
from crosshead.results.diagnosis import Subject
from crosshead.runtimes import Settings, get_runtime


@dataclass(frozen=True)
class Suspect:
    """One failure.

    Attributes:
        subject: what failed.
        artifact: the graph.
        case: the inputs.
        reason: what the run says of it.
        cell: the cell; None where the graph itself failed.
        other: the cell that it does not agree with.
        inputs: the arrays of the case.
        expected: the oracle's outputs on them.
        data: why nobody can be right on these inputs, where that is so.
        half: whether only the arithmetic inside is coarser than fp16's, which the error end to end hides.
    """

    subject: Subject
    artifact: Artifact
    case: str
    reason: str
    inputs: Arrays
    expected: Arrays
    cell: Cell | None = None
    other: Cell | None = None
    data: str = ""
    half: bool = False


def find_suspect(
    record: RunRecord, artifacts: Mapping[str, Artifact], source_folder: Path | None, against: str | None = None
) -> Suspect | None:
    """Return the failure of a run to look into: a wrong graph first, then the smallest case that failed.

    Args:
        record: the run.
        artifacts: by id.
        source_folder: where a user's factory stands.
        against: name of a backend; then only what two backends do not agree on counts.

    Raises:
        RequestError: no cell of the other backend ran.
    """
    if against is not None:
        return _disagreement(record, artifacts, source_folder, against)
    for graph in record.artifacts:
        if graph.graph.verdict == "fail" and graph.id in artifacts:
            return _wrong_graph(graph, artifacts[graph.id])
    for cells in (record.cells, record.stress):
        known = [cell for cell in cells if cell.artifact in artifacts]
        ranked = sorted((_rank(cell, artifacts[cell.artifact]), place) for place, cell in enumerate(known))
        if ranked and ranked[0][0][0] < _FINE:
            return _failed_cell(known[ranked[0][1]], artifacts, source_folder)
    for agreement in record.agreements:
        if agreement.verdict == "fail":
            return _agreement(record, agreement, artifacts, source_folder)
    return None


_NOBODY = ("nothing to judge", "ill-conditioned")
_FAILED, _CRASHED, _DOUBTFUL, _FINE = range(4)


def _rank(cell: CellRecord, artifact: Artifact) -> tuple[int, int]:
    elements = sum(math.prod(shape.shape) for shape in artifact.inputs(cell.case).values())
    verdicts = {output.verdict for output in cell.outputs}
    if "fail" in verdicts:
        return _FAILED, elements
    if cell.status == "failed":
        return _CRASHED, elements
    return (_DOUBTFUL if "suspect" in verdicts else _FINE), elements


def _wrong_graph(graph: ArtifactRecord, artifact: Artifact) -> Suspect:
    case = artifact.manifest.cases[0].name
    return Suspect("graph", artifact, case, graph.graph.detail, artifact.inputs(case), artifact.expected(case))


def _failed_cell(record: CellRecord, artifacts: Mapping[str, Artifact], folder: Path | None) -> Suspect:
    cell = cell_of(record, artifacts, folder)
    artifact = cell.artifact
    said = [output.reason for output in record.outputs if output.verdict != "pass" and output.reason]
    return Suspect(
        "crash" if record.status == "failed" else "output",
        artifact,
        record.case,
        record.reason or "; ".join(said),
        artifact.inputs(record.case),
        artifact.expected(record.case),
        cell=cell,
        data=_data(record, artifact),
        half=any(output.verdict == "suspect" and output.times_native is not None for output in record.outputs),
    )


def _data(record: CellRecord, artifact: Artifact) -> str:
    """Say why nobody can be right on the inputs of a cell; empty where somebody can."""
    said = [output.reason for output in record.outputs if output.reason.startswith(_NOBODY)]
    if not said:
        return ""
    inputs = artifact.inputs(record.case)
    nan = [repr(n) for n, array in inputs.items() if is_floating(array) and np.isnan(array.astype(np.float64)).any()]
    return f"{said[0]}; input {', '.join(nan)} holds NaN" if nan else said[0]


def _agreement(
    record: RunRecord, agreement: AgreementRecord, artifacts: Mapping[str, Artifact], folder: Path | None
) -> Suspect:
    cells = {cell.label: cell for cell in record.cells if cell.case == agreement.case}
    a, b = (cell_of(cells[label], artifacts, folder) for label in (agreement.a, agreement.b))
    if a.runtime.capabilities.executes == "module":
        a, b = b, a
    reason = f"{agreement.a} and {agreement.b} are {agreement.yardsticks:.3g} yardsticks apart"
    case, artifact = agreement.case, a.artifact
    return Suspect("agreement", artifact, case, reason, artifact.inputs(case), artifact.expected(case), cell=a, other=b)


def _disagreement(
    record: RunRecord, artifacts: Mapping[str, Artifact], folder: Path | None, against: str
) -> Suspect | None:
    """Return what a backend and the one it is held against do not agree on, the smallest case first."""
    runs = {cell.label for cell in record.cells if cell.status == "ok"}
    if not any(label.startswith(f"{against}/") for label in runs):
        said = next((cell.reason for cell in record.cells if cell.backend == against and cell.reason), "")
        raise RequestError(f"{against} gave no output to be held against{f': {said}' if said else ''}")
    failed = [
        agreement
        for agreement in record.agreements
        if agreement.verdict == "fail" and any(side.startswith(f"{against}/") for side in (agreement.a, agreement.b))
    ]
    if not failed:
        return None
    same = [each for each in failed if each.a.partition("/")[2] == each.b.partition("/")[2]]
    agreement = (same or failed)[0]
    found = _agreement(record, agreement, artifacts, folder)
    cell, other = found.cell, found.other
    turned = cell is not None and cell.runtime.name == against
    if turned and other is not None and other.runtime.capabilities.executes == "graph":
        return replace(found, artifact=other.artifact, cell=other, other=cell)
    return found


def cell_of(record: CellRecord, artifacts: Mapping[str, Artifact], source_folder: Path | None) -> Cell:
    """Return the cell that a record is of."""
    return Cell(
        artifact=artifacts[record.artifact],
        runtime=get_runtime(record.backend),
        case=record.case,
        settings=settings_of(record),
        timed=False,
        by_name=True,
        source_folder=source_folder,
    )


def settings_of(record: CellRecord) -> Settings:
    """Return the settings that a cell ran under."""
    plain: dict[str, Any] = {
        name: value for name, value in record.settings.items() if name in Settings.__struct_fields__
    }
    fake = {name.removeprefix("fake."): value for name, value in record.settings.items() if name.startswith("fake.")}
    return msgspec.convert({**plain, "threads": record.threads, "fake": fake}, Settings)
