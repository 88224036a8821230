"""What random numbers do to a module: where it draws them, how far apart its own outputs lie, what the graph keeps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from crosshead.export._captured import Captured
from crosshead.export._quiet import printing_to_stderr
from crosshead.export._randomness import graph_draws
from crosshead.export._records import CaseFiles
from crosshead.export.artifact import Arrays, ArtifactNotice
from crosshead.export.case import Case
from crosshead.export.error import relative_l2
from crosshead.export.float64 import module_outputs_float64
from crosshead.export.source import LoadedSource

_SHOWN = 4
_OTHER_SEED = 0x5EED


@dataclass(frozen=True)
class Spread:
    """What was found; empty for a module that gives the same outputs each time.

    Attributes:
        said: which steps draw, in one clause; empty where nothing is random.
        noise: by case and output, how far two evaluations of the module lie apart (`CaseRecord.noise`).
        notices: at most one, `nondeterministic`.
    """

    said: str = ""
    noise: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notices: tuple[ArtifactNotice, ...] = ()

    def noted(self, files: CaseFiles) -> CaseFiles:
        """Return records of cases with their noise filled in."""
        records = (msgspec.structs.replace(case, noise=dict(self.noise.get(case.name, {}))) for case in files.records)
        return CaseFiles(tuple(records), files.blobs)


def find_spread(
    loaded: LoadedSource, captured: Captured, cases: Sequence[Case], expected: Mapping[str, Arrays]
) -> Spread:
    """Evaluate a module in float64 once more on other random numbers, and say what draws them.

    The smallest case tells whether anything does, also what no operator of torch draws; the others are evaluated only
    then.

    Args:
        loaded: the source.
        captured: its graph, with the steps that draw.
        cases: at least one.
        expected: by case name, the oracle's outputs.
    """
    smallest = min(cases, key=lambda case: sum(array.size for array in case.inputs.values()))
    first = _noise(loaded, captured, smallest, expected[smallest.name])
    if not captured.draws and not any(first.values()):
        return Spread()
    noise = {
        case.name: first if case is smallest else _noise(loaded, captured, case, expected[case.name]) for case in cases
    }
    shown = ", ".join(captured.draws[:_SHOWN])
    more = len(captured.draws) - _SHOWN
    where = f"in {shown}{f' and {more} more' if more > 0 else ''}" if captured.draws else "outside of torch's operators"
    said = f"the module draws random numbers {where}"
    largest = max((size for sizes in noise.values() for size in sizes.values()), default=0.0)
    message = (
        f"{said}; two evaluations of it differ by rel_l2 {largest:.2g}, so outputs are held against one draw of many"
        f"{_kept(captured)}; {_advice(loaded, captured)}"
    )
    return Spread(said, noise, (ArtifactNotice(code="nondeterministic", message=message, where=loaded.source.name),))


def _noise(loaded: LoadedSource, captured: Captured, case: Case, expected: Arrays) -> dict[str, float]:
    with torch.random.fork_rng(devices=[]), printing_to_stderr():
        torch.manual_seed(loaded.source.seed ^ _OTHER_SEED)
        other = module_outputs_float64(loaded.module, case.inputs, captured.output_names)
    return {name: _apart(other[name], want) for name, want in expected.items()}


def _apart(other: NDArray[np.generic], want: NDArray[np.generic]) -> float:
    """Relative L2 between two draws; for whole numbers and booleans, or with NaN in one of them, a share or 1."""
    if other.shape != want.shape:
        return 1.0
    if want.dtype.kind != "f":
        return float(np.mean(other != want)) if want.size else 0.0
    apart = min(relative_l2(other, want), relative_l2(want, other))  # a draw may be all zeros
    return apart if math.isfinite(apart) else 1.0


def _kept(captured: Captured) -> str:
    """Say where the graph draws less than the module: exporters leave out the dropout of fused attention."""
    kept, drawn = graph_draws(captured.model), len(captured.draws)
    if kept >= drawn:
        return ""
    return (
        f", and the graph keeps {kept or 'none'} of these {drawn} steps"
        if drawn > 1
        else ", and the graph leaves it out"
    )


def _advice(loaded: LoadedSource, captured: Captured) -> str:
    if loaded.source.training:
        return "leave --keep-training-mode out to have the function that is deployed"
    if any("drop" in step.lower() or "attention" in step for step in captured.draws):
        return "let dropout follow the module's mode: F.dropout(training=self.training), dropout_p=0.0 under eval"
    return "pass what is drawn as an input"
