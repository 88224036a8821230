"""A module that draws random numbers: nobody is blamed for a draw, and a real fault still shows."""

from pathlib import Path

import pytest

from crosshead.harness import Plan, Tolerance, Tolerances, compare
from crosshead.harness.pipeline import Finished
from crosshead.harness.randomness import NOISE_TIMES, doubted
from crosshead.harness.verdict import exit_status
from crosshead.results import OutputRecord

RANDOM = Path(__file__).parents[1] / "export" / "sources" / "random.py"
BACKENDS = ("torch-eager", "ort-cpu", "onnx-reference")


def status(finished: Finished, *, strict: bool = False) -> int:
    return exit_status(finished.record, by_name=finished.by_name, strict=strict, interrupted=False)


def output(**fields: object) -> OutputRecord:
    defaults: dict[str, object] = {
        "name": "y",
        "verdict": "fail",
        "rule": "sensitivity",
        "reason": "error is 1e+06 times what rounding explains",
        "dtype": "float32",
        "expected_dtype": "float32",
        "rel_l2": 0.9,
    }
    return OutputRecord(**defaults | fields)  # type: ignore[arg-type]  # fields of several types


@pytest.mark.parametrize(
    ("record", "noise", "verdict", "said"),
    [
        (
            output(),
            0.6,
            "suspect",
            "rel_l2 0.9 says nothing, since two float64 evaluations of the module differ by 0.6",
        ),
        (output(verdict="suspect"), 0.6, "suspect", "it draws random numbers"),
        (output(rel_l2=NOISE_TIMES * 0.61), 0.6, "fail", "what rounding explains; rel_l2 1.8, while two float64"),
        (output(), 0.0, "fail", "error is 1e+06 times what rounding explains"),
        (output(verdict="pass", reason=""), 0.6, "pass", ""),
        (output(nan=2), 0.6, "fail", "error is 1e+06 times"),
        (output(dtype="float16"), 0.6, "fail", "error is 1e+06 times"),
        (output(rule="user", reason="3 of 4 elements outside"), 0.6, "fail", "3 of 4 elements outside"),
        (
            output(rule="exact", reason="3 of 4 elements differ", dtype="int64", expected_dtype="int64", rel_l2=None),
            0.2,
            "suspect",
            "3 of 4 elements differ, and two float64 evaluations of the module differ by 0.2 themselves",
        ),
    ],
)
def test_what_random_numbers_explain_is_suspect(record: OutputRecord, noise: float, verdict: str, said: str) -> None:
    found = doubted(record, noise)
    assert found.verdict == verdict
    assert said in found.reason
    assert bool(said) == bool(found.reason)


def test_a_module_kept_in_training_mode_is_suspect_on_every_backend(tmp_path: Path) -> None:
    plan = Plan(source=f"{RANDOM}:in_training", keep_training_mode=True, backends=BACKENDS, out=tmp_path, threads=1)
    finished = compare(plan)
    record = finished.record
    assert (record.verdict, status(finished), status(finished, strict=True)) == ("suspect", 0, 1)
    assert {artifact.graph.verdict for artifact in record.artifacts} == {"not-asked"}
    assert {(cell.backend, cell.status) for cell in record.cells} == {(name, "ok") for name in BACKENDS}
    for cell in record.cells:
        assert [each.verdict for each in cell.outputs] == ["suspect"]
        assert "it draws random numbers" in cell.outputs[0].reason
    assert {each.verdict for each in record.agreements} == {"pass"}
    (artifact, *_) = record.artifacts
    assert {"training-mode", "nondeterministic"} <= {notice.code for notice in artifact.notices}
    codes = {notice.code for notice in record.notices}
    assert not codes & {"native-error", "native-missing", "nondeterministic"}, "said once, by the artifact"


def test_the_same_module_switched_to_eval_passes(tmp_path: Path) -> None:
    plan = Plan(source=f"{RANDOM}:in_training", backends=("ort-cpu",), forms=("decomposed",), out=tmp_path, threads=1)
    finished = compare(plan)
    assert (finished.record.verdict, status(finished, strict=True)) == ("pass", 0)
    assert "training-mode" in {notice.code for notice in finished.record.artifacts[0].notices}


def test_dropout_that_the_graph_leaves_out_is_no_failure_of_a_backend(tmp_path: Path) -> None:
    plan = Plan(source=f"{RANDOM}:fused_dropout", backends=("ort-cpu",), forms=("decomposed",), out=tmp_path, threads=1)
    (cell,) = compare(plan).record.cells
    assert cell.details["repeat"] == "same bits"
    assert cell.outputs[0].verdict == "suspect"


def test_a_persons_own_tolerance_stays_theirs(tmp_path: Path) -> None:
    tolerances = Tolerances(default=Tolerance(budget=1e-3))
    finished = compare(
        Plan(
            source=f"{RANDOM}:left_on",
            backends=("ort-cpu",),
            forms=("decomposed",),
            out=tmp_path,
            threads=1,
            tolerances=tolerances,
        )
    )
    assert finished.record.cells[0].outputs[0].verdict == "fail"
    assert status(finished) == 1
