"""The verdict over one output: whose rule, and what it says (docs/method.md, "Tolerance is derived")."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from crosshead.export.artifact import Readable, Yardstick
from crosshead.export.pair import Pair
from crosshead.harness.metrics import is_floating, measure_error
from crosshead.harness.padding import Positions, padded_record, unpadded, whole_index
from crosshead.results import OutputRecord, OutputResult, Rule

PASS_TIMES, FAIL_TIMES = 5.0, 50.0
"""With the source framework's own error in the yardstick: pass up to 5 yardsticks, fail above 50."""

PASS_TIMES_ALONE, FAIL_TIMES_ALONE = 10.0, 100.0
"""Without it (a bare .onnx, and the source framework's own rows): 10 and 100."""

ILL_CONDITIONED = 0.05
"""A yardstick above this leaves no digits worth a verdict."""

EMPTY = "empty"
"""The reason that goes with an output without an element: it passes beside others that can be judged."""

NO_ELEMENT = "nothing to judge: the output is empty"
NOTHING_FINITE = "nothing to judge: the oracle is NaN or Inf everywhere (are the weights loaded?)"


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for in place of the derived rule, for all outputs or for one.

    Attributes:
        rtol, atol: numpy's allclose rule, |got - want| <= atol + rtol |want|.
        budget: largest relative L2 error.
    """

    rtol: float | None = None
    atol: float | None = None
    budget: float | None = None

    @property
    def given(self) -> bool:
        """Whether anything was asked for."""
        return any(value is not None for value in (self.rtol, self.atol, self.budget))


DERIVED = Tolerance()
"""Nothing asked for: the rule derived from the case holds."""


class Tolerances(msgspec.Struct, frozen=True, kw_only=True):
    """Tolerances by output name, and one for all others."""

    default: Tolerance = DERIVED
    by_output: Mapping[str, Tolerance] = {}

    def of(self, output: str) -> Tolerance:
        """Return what holds for an output; what is said by name goes before what is said for all."""
        named, default = self.by_output.get(output, DERIVED), self.default
        if named.budget is not None or (named.given and default.budget is not None):
            return named
        return Tolerance(
            rtol=default.rtol if named.rtol is None else named.rtol,
            atol=default.atol if named.atol is None else named.atol,
            budget=default.budget,
        )


def judge_output(
    name: str,
    got: Readable,
    want: Readable,
    *,
    expected_dtype: str,
    yardstick: Yardstick | None,
    use_native: bool,
    tolerance: Tolerance = DERIVED,
    padded: Positions | None = None,
) -> OutputRecord:
    """Hold one output against the oracle.

    Args:
        name: name of the output.
        got: what the backend gave, in memory or on disk.
        want: the oracle's value, float64 for floating outputs; in memory or on disk.
        expected_dtype: dtype that the artifact declares.
        yardstick: the rounding this output must have; None for whole numbers and booleans.
        use_native: whether the source framework's own error counts (not for its own rows).
        tolerance: what a person asked for instead.
        padded: (batch, seq), the leading axes of the output; true where it is padding and decides nothing.
    """
    facts: dict[str, Any] = {
        "name": name,
        "dtype": got.dtype.name,
        "expected_dtype": expected_dtype,
        "shape": list(got.shape),
    }
    if got.shape != want.shape:
        reason = f"shape {list(got.shape)}, expected {list(want.shape)}"
        return OutputRecord(**facts, verdict="fail", rule="exact", reason=reason)
    kept = unpadded(padded)
    if padded is not None:
        facts["padded"] = padded_record(got, want, padded)
    if not is_floating(got) or not is_floating(want):
        return _judge_exact(facts, Pair(got, want, kept))
    found = measure_error(got, want, kept)
    if padded is not None and "worst" in found:
        worst = found["worst"]
        found["worst"] = msgspec.structs.replace(worst, index=whole_index(worst.index, padded))
    size = Pair(got, want, kept).size
    rule, yard, yard_row = _yardstick(yardstick, use_native)
    times = _times(found, yard, yard_row)
    if tolerance.given:
        rule, (verdict, reason) = "user", _judge_by_user(found, Pair(got, want, kept), tolerance)
    else:
        verdict, reason = _judge_by_yardstick(found, times, rule, yard, yard_row)
    if verdict != "fail" and size == 0:
        verdict, reason = "pass", EMPTY
    elif verdict != "fail" and found["expected_nan"] + found["expected_inf"] == size:
        verdict, reason = "suspect", NOTHING_FINITE
    if verdict != "fail" and got.dtype.name != expected_dtype:
        verdict, reason = "fail", f"dtype {got.dtype.name}, expected {expected_dtype}"
    return OutputRecord(
        **facts,
        **found,
        verdict=verdict,
        rule=rule,
        reason=reason,
        times_expected=times,
        yardstick=yard,
        yardstick_row=yard_row,
    )


def doubt_empty(records: Sequence[OutputRecord]) -> list[OutputRecord]:
    """Return the outputs of one cell, none of them passed where all are empty: then nothing at all was compared."""
    if any(record.verdict != "pass" or record.reason != EMPTY for record in records):
        return list(records)
    return [msgspec.structs.replace(record, verdict="suspect", reason=NO_ELEMENT) for record in records]


def _judge_exact(facts: dict[str, Any], pair: Pair) -> OutputRecord:
    dtype, _ = pair.dtypes
    if dtype.name != facts["expected_dtype"]:
        reason = f"dtype {dtype.name}, expected {facts['expected_dtype']}"
        return OutputRecord(**facts, verdict="fail", rule="exact", reason=reason)
    wrong = sum(int((block.got != block.want).sum()) for block in pair.blocks())
    reason = f"{wrong} of {pair.size} elements differ" if wrong else "" if pair.size else EMPTY
    return OutputRecord(**facts, verdict="fail" if wrong else "pass", rule="exact", reason=reason)


def _yardstick(yardstick: Yardstick | None, use_native: bool) -> tuple[Rule, float | None, float | None]:
    if yardstick is None:
        return "sensitivity", None, None
    floor = yardstick.unit_roundoff / 2
    alone = max(yardstick.sensitivity, floor)
    alone_row = max(yardstick.sensitivity_row, floor)
    if use_native and yardstick.native is not None and yardstick.native_row is not None:
        return "yardstick", max(alone, yardstick.native), max(alone_row, yardstick.native_row)
    return "sensitivity", alone, alone_row


def _times(found: Mapping[str, Any], yard: float | None, yard_row: float | None) -> float | None:
    if yard is None or yard_row is None:
        return None
    return float(max(found["rel_l2"] / yard, found["rel_l2_row"] / yard_row))


def _judge_by_yardstick(
    found: Mapping[str, Any], times: float | None, rule: Rule, yard: float | None, yard_row: float | None
) -> tuple[OutputResult, str]:
    if found["nan"] != found["expected_nan"] or found["inf"] != found["expected_inf"] or math.isinf(found["max_abs"]):
        return "fail", _nonfinite_reason(found)
    if math.isinf(found["rel_l2"]):
        return "suspect", f"the oracle is zero everywhere, and {found['max_abs']:.3g} is no relative error; give --atol"
    if times is None or yard is None or yard_row is None:
        if found["max_abs"] == 0.0:
            return "pass", ""
        return "suspect", "no yardstick travels with this case; give --rtol/--atol or --budget"
    if max(yard, yard_row) > ILL_CONDITIONED:
        return (
            "suspect",
            f"ill-conditioned at this precision: rounding alone moves the output by {max(yard, yard_row):.1g}",
        )
    passes, fails = (PASS_TIMES, FAIL_TIMES) if rule == "yardstick" else (PASS_TIMES_ALONE, FAIL_TIMES_ALONE)
    if times <= passes:
        return "pass", ""
    whole, row = found["rel_l2"] / yard, found["rel_l2_row"] / yard_row
    where = "over the whole output" if whole >= row else "in the worst row"
    reason = f"error is {times:.3g} times what rounding explains ({where}; pass to {passes:g}, fail above {fails:g})"
    return ("suspect" if times <= fails else "fail"), reason


def _nonfinite_reason(found: Mapping[str, Any]) -> str:
    parts = []
    for kind, label in (("nan", "NaN"), ("inf", "Inf")):
        got, want = found[kind], found[f"expected_{kind}"]
        if got != want:
            parts.append(f"{got} {label} here, {want} in the oracle")
    return "; ".join(parts) or "NaN or Inf at other places than in the oracle"


def _judge_by_user(found: Mapping[str, Any], pair: Pair, tolerance: Tolerance) -> tuple[OutputResult, str]:
    if tolerance.budget is not None:
        ok = found["rel_l2"] <= tolerance.budget
        return ("pass", "") if ok else ("fail", f"rel_l2 {found['rel_l2']:.3g} over the budget {tolerance.budget:g}")
    rtol, atol, wrong = tolerance.rtol or 0.0, tolerance.atol or 0.0, 0
    for block in pair.blocks():
        got, want = block.got.astype(np.float64), block.want.astype(np.float64)
        wrong += int((~np.isclose(got, want, rtol=rtol, atol=atol, equal_nan=True)).sum())
    if not wrong:
        return "pass", ""
    return "fail", f"{wrong} of {pair.size} elements outside rtol {rtol:g}, atol {atol:g} (asked for)"
