"""How far a cell is off, seen again: what each rung of the ladder, and each input of the search, is judged by."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crosshead.export.artifact import Arrays, Artifact, CaseRecord
from crosshead.export.error import relative_l2_both
from crosshead.harness.accuracy import NATIVE_BACKEND, Limits
from crosshead.harness.agreement import AGREEMENT_TIMES
from crosshead.harness.cells import Cell
from crosshead.harness.judge import Tolerances, judge_output
from crosshead.harness.padding import padded_positions
from crosshead.harness.runner import Runner
from crosshead.harness.stress import judge_stress
from crosshead.results import OutputRecord
from crosshead.results.diagnosis_text import figures
from crosshead.runtimes import BackendError, WorkerError

SMALLER: Final = 0.1
"""An error counts as smaller when no more than this share of it is left."""


@dataclass(frozen=True)
class Standing:
    """How far outputs are off.

    Attributes:
        error: the largest relative L2; None where nothing came out.
        times: in units of the rounding that the case must have; infinite where nothing came out, or NaN or Inf.
        passes: whether that is within the limit.
        said: why not.
        crashed: the backend gave nothing.
    """

    error: float | None
    times: float
    passes: bool
    said: str = ""
    crashed: bool = False

    @property
    def figures(self) -> str:
        """`3.1e-02 (5,200 times expected)`."""
        return figures(self.error, self.times) if self.error is not None else self.said or "nothing"


def failed(error: Exception) -> Standing:
    """Return the standing of a cell that gave nothing."""
    return Standing(None, math.inf, False, " ".join(str(error).split()) or type(error).__name__, crashed=True)


def hold(outputs: Arrays, artifact: Artifact, case: CaseRecord, backend: str) -> Standing:
    """Hold outputs against the oracle, as a run does.

    Args:
        outputs: by name.
        artifact: that carries the case.
        case: with its yardsticks.
        backend: the source framework is not judged by itself.
    """
    worst = Standing(0.0, 0.0, True)
    for record in _judged(outputs, artifact, case, native=backend != NATIVE_BACKEND):
        passes = record.verdict == "pass"
        error = record.rel_l2 if record.rel_l2 is not None else (0.0 if passes else math.inf)
        times = record.times_expected if record.times_expected is not None else (0.0 if passes else math.inf)
        if not passes and math.isnan(times):
            times = math.inf
        found = Standing(error, times, passes, record.reason)
        if (found.passes, -found.times) < (worst.passes, -worst.times):
            worst = found
    return worst


def _judged(outputs: Arrays, artifact: Artifact, case: CaseRecord, *, native: bool) -> list[OutputRecord]:
    if any(case.name == stress.name for stress in artifact.manifest.stress_cases):
        return judge_stress(artifact, case, outputs, {}, Tolerances(), use_native=native)
    expected = artifact.expected(case.name)
    padded = padded_positions(artifact, case.name, expected)
    return [
        judge_output(
            spec.name,
            outputs[spec.name],
            expected[spec.name],
            expected_dtype=outputs[spec.name].dtype.name,  # one rung computes in double
            yardstick=case.yardsticks.get(spec.name),
            use_native=native,
            padded=padded.get(spec.name),
        )
        if spec.name in outputs
        else OutputRecord(name=spec.name, verdict="fail", rule="exact", reason="the backend does not give it")
        for spec in artifact.manifest.outputs
    ]


def hold_together(a: Arrays, b: Arrays, artifact: Artifact, case: CaseRecord) -> Standing:
    """Hold the outputs of two backends against each other, by the rule of agreement."""
    padded = padded_positions(artifact, case.name, a)
    worst = Standing(0.0, 0.0, True)
    for name, yardstick in case.yardsticks.items():
        if name not in a or name not in b:
            return Standing(None, math.inf, False, f"no output {name!r}")
        yard = max(yardstick.sensitivity, yardstick.native or 0.0, yardstick.unit_roundoff / 2)
        rows = padded.get(name)
        error, _ = relative_l2_both(a[name], b[name], None if rows is None else ~rows)
        found = Standing(error, error / yard, error <= AGREEMENT_TIMES * yard)
        if found.times > worst.times:
            worst = found
    return worst


def run_cell(cell: Cell, inputs: Arrays, limits: Limits, scratch: Path) -> Arrays:
    """Run a cell once in a worker of its own.

    Raises:
        BackendError, WorkerError: it gave nothing.
    """
    with Runner(cell, limits, scratch) as runner:
        return runner.outputs(inputs)


def try_cell(cell: Cell, inputs: Arrays, limits: Limits, scratch: Path, other: Arrays | None = None) -> Standing:
    """Run a cell, and hold it against the oracle, or against another backend's outputs."""
    case = cell.artifact.case(cell.case)
    try:
        outputs = run_cell(cell, inputs, limits, scratch)
    except (BackendError, WorkerError) as error:
        return failed(error)
    if other is not None:
        return hold_together(outputs, other, cell.artifact, case)
    return hold(outputs, cell.artifact, case, cell.runtime.name)
