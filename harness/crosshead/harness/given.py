"""Outputs that a person gave with the inputs (ONNX `test_data_set_N`): a backend is held against them as well."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, Artifact, Yardstick, unpack_arrays
from crosshead.export.error import relative_l2
from crosshead.harness.accuracy import Visit
from crosshead.harness.agreement import AGREEMENT_TIMES
from crosshead.harness.judge import Tolerance, Tolerances, judge_output
from crosshead.harness.metrics import is_floating
from crosshead.results import CellRecord, GivenRecord, OutputRecord

_U32 = 2.0**-24


def with_given(visited: Visit, artifact: Artifact, tolerances: Tolerances) -> CellRecord:
    """Return the record of a judged cell, its outputs held against those that were given with the case.

    Like any two backends, both are the same up to 10 yardsticks; a tolerance that was asked for decides instead. An
    output that is right by the oracle and not what was given *fails*, and the reason says whom the oracle supports.

    Args:
        visited: judged against the oracle.
        artifact: carries the case.
        tolerances: what a person asked for in place of the derived rule.
    """
    case = artifact.case(visited.cell.case)
    if visited.outputs is None or case.given_sha256 is None:
        return visited.record
    given, outputs, expected = artifact.given(case.name), unpack_arrays(visited.outputs), artifact.expected(case.name)
    records = [
        _held(record, outputs, given, expected, case.yardsticks.get(record.name), tolerances.of(record.name))
        if record.name in given and record.name in outputs
        else record
        for record in visited.record.outputs
    ]
    return msgspec.structs.replace(visited.record, outputs=records)


def _held(
    record: OutputRecord,
    outputs: Arrays,
    given: Arrays,
    expected: Arrays,
    yardstick: Yardstick | None,
    tolerance: Tolerance,
) -> OutputRecord:
    got, wanted, oracle = outputs[record.name], given[record.name], expected[record.name]
    found = _compared(got, wanted, yardstick, tolerance)
    if found.verdict == "pass" or record.verdict == "fail":
        return msgspec.structs.replace(record, given=found)
    of_oracle = _compared(oracle, wanted, yardstick, tolerance)
    side = "the outputs that were given" if of_oracle.verdict == "pass" else "the backend"
    reason = f"it is not what was given with the inputs: {found.reason}; the float64 oracle supports {side}"
    return msgspec.structs.replace(record, given=found, verdict="fail", reason=reason)


def _compared(
    got: NDArray[np.generic], wanted: NDArray[np.generic], yardstick: Yardstick | None, tolerance: Tolerance
) -> GivenRecord:
    if got.shape != wanted.shape:
        return GivenRecord(verdict="fail", reason=f"shape {list(got.shape)}, given {list(wanted.shape)}")
    if not is_floating(got) or not is_floating(wanted):
        wrong = int((got != wanted).sum())
        reason = f"{wrong} of {got.size} elements differ" if wrong else ""
        return GivenRecord(verdict="fail" if wrong else "pass", reason=reason)
    wide = wanted.astype(np.float64)
    error = relative_l2(got, wide)
    if tolerance.given:
        asked = judge_output(
            "given", got, wide, expected_dtype=got.dtype.name, yardstick=None, use_native=False, tolerance=tolerance
        )
        return GivenRecord(verdict=asked.verdict, rel_l2=error, reason=asked.reason)
    yard = _U32 if yardstick is None else _yard(yardstick)
    times = error / yard
    verdict = "pass" if times <= AGREEMENT_TIMES else "fail"
    reason = (
        "" if verdict == "pass" else f"rel_l2 {error:.3g}, {times:.3g} yardsticks (to {AGREEMENT_TIMES:g} is the same)"
    )
    return GivenRecord(verdict=verdict, rel_l2=error, yardsticks=times, reason=reason)  # type: ignore[arg-type]  # one of two words


def _yard(yardstick: Yardstick) -> float:
    return max(yardstick.sensitivity, yardstick.native or 0.0, yardstick.unit_roundoff / 2)
