import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crosshead.export.artifact import Artifact, pack_arrays
from crosshead.harness import Plan, compare
from crosshead.harness.accuracy import Visit
from crosshead.harness.agreement import agreements
from crosshead.harness.cells import Cell
from crosshead.harness.noise import apart
from crosshead.results import AgreementRecord, NoiseRecord
from crosshead.runtimes import Settings, get_runtime


def test_the_distance_of_two_sets_of_outputs_is_that_of_the_worst() -> None:
    x, whole = np.array([3.0, 4.0]), np.array([1, 2])
    assert apart({"x": x, "n": whole}, {"x": x.copy(), "n": whole.copy()}) == 0.0
    assert apart({"x": x, "y": 1.01 * x}, {"x": x, "y": x}) == pytest.approx(0.01)
    assert apart({"n": whole}, {"n": whole + 1}) == math.inf
    assert apart({"x": x[:1]}, {"x": x}) == math.inf
    assert apart({}, {"x": x}) == math.inf


def test_each_case_is_held_against_itself(make_plan: Callable[..., Plan]) -> None:
    record = compare(make_plan(backends=("onnx-reference",))).record
    found = {each.case: each for each in record.noise}
    assert set(found) == {"1x3", "2x5"}
    assert all((each.repeat, each.other_batch, each.other_threads) == (0.0, 0.0, None) for each in found.values())
    assert [found[case].detail for case in ("1x3", "2x5")] == ["batch 1 against 2", "batch 2 against 1"]


def test_another_number_of_threads_is_asked_of_a_backend_that_has_any(make_plan: Callable[..., Plan]) -> None:
    pytest.importorskip("onnxruntime")
    record = compare(make_plan(backends=("ort-cpu",))).record
    assert {each.other_threads for each in record.noise} == {0.0}
    assert {each.detail.partition("; ")[2] for each in record.noise} == {"1 threads against 2"}


def test_what_changes_from_call_to_call_is_measured(make_plan: Callable[..., Plan]) -> None:
    record = compare(make_plan(fake={"noise": 1e-3})).record
    assert all(each.repeat is not None and 1e-4 < each.repeat < 1e-2 for each in record.noise)


@pytest.fixture
def hold(write_linear: Callable[..., Artifact], tmp_path: Path) -> Callable[..., AgreementRecord]:
    """A function that holds two backends against each other whose outputs are a relative error apart."""

    def held(error: float, repeat: float = 0.0, threads: float | None = None) -> AgreementRecord:
        artifact = write_linear(tmp_path)
        want = artifact.expected("2x5")["y"].astype(np.float64)
        visits = []
        for name, factor in (("onnx-reference", 1.0), ("fake", 1.0 + error)):
            outputs = tmp_path / f"{name}.npz"
            outputs.write_bytes(pack_arrays({"y": factor * want}))
            cell = Cell(artifact, get_runtime(name), "2x5", Settings(), timed=False, by_name=True)
            visits.append(Visit(cell, cell.record(status="ok"), outputs=outputs, noise={"y": repeat}))
        noise = [NoiseRecord(artifact="linear", backend="fake", case="2x5", other_threads=threads)]
        (record,) = agreements(visits, {"linear": artifact}, noise)
        return record

    return held


@pytest.mark.parametrize(
    ("error", "repeat", "threads", "verdict"),
    [
        (5e-7, 0.0, None, "pass"),  # 8 yardsticks
        (1e-6, 0.0, None, "fail"),  # 17
        (1e-3, 6e-4, None, "pass"),  # both differ from themselves by as much, together
        (1e-3, 4e-4, None, "fail"),
        (1e-3, 0.0, 2e-3, "pass"),
        (1e-3, 0.0, 5e-4, "fail"),
        (1e-3, math.inf, math.inf, "fail"),  # an infinite floor would excuse everything
    ],
)
def test_two_backends_agree_within_yardsticks_or_their_own_noise(
    hold: Callable[..., AgreementRecord], error: float, repeat: float, threads: float | None, verdict: str
) -> None:
    record = hold(error, repeat, threads)
    assert record.verdict == verdict
    assert record.error == pytest.approx(error, rel=1e-3)
    assert record.yardsticks == pytest.approx(error / 6e-8, rel=1e-3)
    assert record.noise == (0.0 if math.isinf(repeat) else max(2 * repeat, threads or 0.0))
