"""fp16 a second time: sums in fp16 pass end to end, and are told on inputs and weights that are rounded already."""

from collections.abc import Callable
from typing import Any

import pytest

from crosshead.harness import Plan, Tolerance, Tolerances, compare
from crosshead.harness.half import ASK_TIMES, PASS_TIMES
from crosshead.results import RunRecord
from crosshead.runtimes import Settings

pytest.importorskip("torch", exc_type=ImportError)


@pytest.fixture
def compared(tmp_path: Any) -> Callable[..., RunRecord]:
    """A function that compares a small block in fp16."""

    def run(fault: str, block: str = "mha", **fields: Any) -> RunRecord:
        plan = Plan(
            source=block,
            options={"d_model": 64} | ({"d_ff": 384} if block == "feed-forward" else {"num_heads": 4}),
            precisions=("fp16",),
            forms=("decomposed",),
            backends=("fake", "onnx-reference"),
            batches=(2,),
            lengths=(9,),
            threads=1,
            stress=False,
            out=tmp_path,
            settings=Settings(fake={"fault": fault}),
            **fields,
        )
        return compare(plan).record

    return run


@pytest.mark.parametrize("block", ["mha", "feed-forward"])
def test_sums_in_fp16_are_suspect_and_named(compared: Callable[..., RunRecord], block: str) -> None:
    record = compared("fp16-accumulation", block)
    outputs = {cell.backend: cell.outputs[0] for cell in record.cells}
    healthy, faulty = outputs["onnx-reference"], outputs["fake"]
    assert healthy.verdict == "pass"
    assert healthy.times_native is not None
    assert healthy.times_native < ASK_TIMES
    assert faulty.times_expected is not None
    assert faulty.times_expected < 5.0, "end to end it would pass"
    assert faulty.times_native is not None
    assert faulty.times_native > ASK_TIMES
    assert faulty.verdict == "suspect"
    assert f"times PyTorch's own (limit {PASS_TIMES:g}): products formed with sums in float16" in faulty.reason
    (cause,) = record.causes
    assert cause.kind == "math-mode"


def test_a_rule_of_ones_own_is_not_overruled(compared: Callable[..., RunRecord]) -> None:
    record = compared("fp16-accumulation", tolerances=Tolerances(default=Tolerance(budget=0.05)))
    assert {(cell.outputs[0].verdict, cell.outputs[0].times_native) for cell in record.cells} == {("pass", None)}
    assert record.causes == []
