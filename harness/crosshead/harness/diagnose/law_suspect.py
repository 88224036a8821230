"""The input on which a broken law shows as an error: every run that the laws ask for, held against float64."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnx

from crosshead.export.artifact import UNIT_ROUNDOFFS, Arrays, Artifact, FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import Float64Graph, graph_sensitivity
from crosshead.harness.accuracy import Limits, Visit
from crosshead.harness.cells import Cell
from crosshead.harness.diagnose.asking import with_case
from crosshead.harness.diagnose.suspect import Suspect, cell_of
from crosshead.harness.examine import Subject
from crosshead.harness.judge import Tolerances
from crosshead.harness.laws import ask_laws
from crosshead.harness.runner import Runner
from crosshead.results import CellRecord, LawRecord
from crosshead.runtimes import BackendError, WorkerError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DRAWS: Final = 2


class _Watched(Runner):
    """A runner that keeps what it was asked, and what came."""

    def __init__(self, cell: Cell, limits: Limits, scratch: Path) -> None:
        super().__init__(cell, limits, scratch)
        self.runs: list[tuple[Arrays, Arrays]] = []

    def outputs(self, inputs: Arrays) -> Arrays:
        """Run once, and keep both sides."""
        got = super().outputs(inputs)
        self.runs.append((dict(inputs), got))
        return got


def find_broken_law(
    cells: Sequence[CellRecord],
    artifacts: Mapping[str, Artifact],
    source_folder: Path | None,
    limits: Limits,
    scratch: Path,
    seed: int,
) -> Suspect | None:
    """Ask the laws of every cell's artifact and backend, and return the run that is furthest off where one is broken.

    Args:
        cells: of a run in which nothing failed.
        artifacts: by id.
        source_folder: where a user's factory stands.
        limits: of a worker.
        scratch: an existing folder.
        seed: of what the laws draw.
    """
    seen: set[str] = set()
    for number, record in enumerate(cells):
        known = record.artifact in artifacts and record.status == "ok" and record.label not in seen
        if not known:
            continue
        seen.add(record.label)
        cell = cell_of(record, artifacts, source_folder)
        if cell.runtime.capabilities.executes != "graph":
            continue
        folder = scratch / f"laws{number}"
        folder.mkdir()
        try:
            found = _ask(cell, record, limits, folder, seed)
        except (BackendError, WorkerError, FormError):
            continue
        if found is not None:
            return found
    return None


def _ask(cell: Cell, record: CellRecord, limits: Limits, folder: Path, seed: int) -> Suspect | None:
    runner = _Watched(cell, limits, folder)
    with runner:
        subject = Subject(
            artifact=cell.artifact,
            cell=cell,
            visits=(Visit(cell, record),),
            runner=runner,
            limits=limits,
            scratch=folder,
            tolerances=Tolerances(),
            seed=seed,
        )
        broken = [law for law in ask_laws(subject).laws if law.verdict == "fail"]
        if not broken:
            return None
        return _furthest(cell, broken, runner.runs, folder)


def _furthest(
    cell: Cell, broken: Sequence[LawRecord], runs: Sequence[tuple[Arrays, Arrays]], folder: Path
) -> Suspect | None:
    artifact = cell.artifact
    model = onnx.load(artifact.model_path)
    graph = Float64Graph.of(model)
    worst: tuple[float, Arrays, Mapping[str, NDArray[Any]]] | None = None
    for inputs, got in runs:
        want = graph.run(inputs)
        off = max((relative_l2(got[name], array) for name, array in want.items() if name in got), default=0.0)
        if worst is None or off > worst[0]:
            worst = off, inputs, want
    if worst is None or worst[0] <= 10 * UNIT_ROUNDOFFS[artifact.manifest.precision]:
        return None
    _, inputs, right = worst
    law = broken[0]
    name = f"law {law.law}"
    moves = graph_sensitivity(model, inputs, right, artifact.manifest.precision, draws=_DRAWS)
    added = with_case(artifact, name, inputs, dict(right), moves, folder)
    reason = f"it breaks {', '.join(each.law for each in broken)}: {law.reason}"
    return Suspect(
        "output",
        added,
        name,
        reason,
        inputs,
        dict(right),
        cell=Cell(added, cell.runtime, name, cell.settings, timed=False, by_name=True),
    )
