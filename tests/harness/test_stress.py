"""The stress set on a backend: rows that decide nothing, whose NaN it is, and what is refused, lost or excused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from crosshead.export.artifact import Apart, Arrays, Artifact, Manifest, Yardstick
from crosshead.harness import Plan, Tolerance, Tolerances, compare
from crosshead.harness.judge import EMPTY
from crosshead.harness.stress import EVERY_ROW, MOST_LOST_WORKERS, OVERFLOW, judge_stress
from crosshead.harness.verdict import overall
from crosshead.results import OutputRecord, read_run
from crosshead.runtimes import Settings

NONE = Tolerances()
SHAPE = (2, 3, 4)
WANT = np.linspace(1.0, 2.0, 24).reshape(SHAPE)
MASKED = Apart(reason="fully masked", shape=(2, 3), rows=((0, 1),))
PADDED = Apart(reason="padded", shape=(2, 3), rows=((1, 2),))

Judge = Callable[..., OutputRecord]


@pytest.fixture
def judge(write_linear: Callable[..., Artifact], tmp_path: Path) -> Judge:
    """Judge one output y of a case of the stress set."""

    def judge(
        got: Any,
        *,
        want: Any = WANT,
        apart: tuple[Apart, ...] = (),
        native: Arrays | None = None,
        yardstick: Yardstick | None = None,
        tolerances: Tolerances = NONE,
    ) -> OutputRecord:
        artifact = write_linear(tmp_path)
        usual = artifact.manifest.cases[0]
        case = msgspec.structs.replace(usual, apart=apart, yardsticks={"y": yardstick or usual.yardsticks["y"]})

        class Stands(Artifact):
            def expected(self, case: str) -> Arrays:
                return {"y": np.asarray(want)}

        outputs: Arrays = {"y": np.asarray(got, np.float32)}
        stands = Stands(artifact.folder, artifact.manifest)
        (record,) = judge_stress(stands, case, outputs, native or {}, tolerances, use_native=True)
        return record

    return judge


def changed(row: tuple[int, int], value: float) -> Any:
    got = WANT.copy()
    got[row] = value
    return got


def test_rows_apart_may_be_anything_and_are_measured(judge: Judge) -> None:
    for value, largest in ((np.nan, 0.0), (0.0, 1.4), (17.0, 15.9)):
        record = judge(changed((0, 1), value), apart=(MASKED, PADDED))
        assert (record.verdict, record.nan) == ("pass", 0)
        masked = record.apart["fully masked"]
        assert (masked.positions, masked.nonfinite) == (1, 4 if np.isnan(value) else 0)
        assert masked.max_abs == pytest.approx(largest, abs=0.1)
        assert record.padded is not None
        assert record.padded.positions == 1
        assert record.padded.max_abs < 1e-6


def test_all_other_rows_must_be_right(judge: Judge) -> None:
    record = judge(changed((0, 2), np.nan), apart=(MASKED,))
    assert record.verdict == "fail"
    assert record.reason == "4 NaN here, 0 in the oracle"
    assert record.worst is not None
    assert record.worst.index[:2] == [0, 2], "the index is that of the whole output"
    assert judge(changed((0, 2), 1.2), apart=(MASKED,)).verdict == "fail"


def test_a_nan_of_the_oracle_is_its_own(judge: Judge) -> None:
    want = changed((0, 2), np.nan)
    assert judge(want, want=want).verdict == "pass"
    record = judge(WANT, want=want)
    assert (record.verdict, record.reason) == ("fail", "0 NaN here, 4 in the oracle")


def test_rows_in_which_pytorch_itself_overflows_decide_nothing(judge: Judge) -> None:
    native: Arrays = {"y": changed((1, 0), np.inf)}
    record = judge(changed((1, 0), np.nan), native=native)
    assert record.verdict == "pass"
    assert record.apart[OVERFLOW].nonfinite == 4
    assert judge(changed((1, 1), np.nan), native=native).verdict == "fail"


def test_where_every_row_is_apart_nothing_is_judged(judge: Judge) -> None:
    every = Apart(reason="fully masked", shape=(2, 3), rows=tuple((b, i) for b in range(2) for i in range(3)))
    record = judge(np.full(SHAPE, np.nan), apart=(every,))
    assert (record.verdict, record.reason) == ("pass", EVERY_ROW)
    assert record.reason != EMPTY


def test_a_tolerance_excuses_and_never_fails(judge: Judge) -> None:
    off = WANT * (1 + 1e-4)
    assert judge(off).verdict == "fail"
    wide, tight = (Tolerances(default=Tolerance(budget=budget)) for budget in (1e-3, 1e-12))
    assert (judge(off, tolerances=wide).verdict, judge(off, tolerances=wide).rule) == ("pass", "user")
    assert judge(off, tolerances=tight).verdict == "fail"
    near = WANT * (1 + 1e-7)
    assert judge(near, tolerances=tight).verdict == "pass", "these inputs are not theirs"


def test_a_native_error_without_digits_excuses_nobody(judge: Judge) -> None:
    lost = Yardstick(sensitivity=1e-7, sensitivity_row=1e-7, unit_roundoff=2.0**-24, native=0.5, native_row=0.5)
    assert judge(WANT * 1.01, yardstick=lost).verdict == "fail"
    assert judge(WANT * (1 + 1e-7), yardstick=lost).verdict == "pass"


def test_another_shape_fails(judge: Judge) -> None:
    record = judge(WANT[:, :2], apart=(MASKED,))
    assert record.verdict == "fail"
    assert "shape" in record.reason


# --- the whole run, over artifacts that carry their set


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one artifact of masked attention, its stress set with it."""
    from crosshead.export import cases_for, export_source, load_source

    out = tmp_path_factory.mktemp("stressed")
    loaded = load_source("mha-masked", options={"d_model": 16, "num_heads": 2})
    cases = cases_for(loaded, batches=(2,), lengths=(5,))
    export_source(loaded, cases, forms=[("decomposed", 18)], out=out, stress=True)
    return out


def plan(exported: Path, out: Path, fake: dict[str, Any] | None = None, **fields: Any) -> Plan:
    defaults: dict[str, Any] = {
        "source": str(exported),
        "backends": ("ort-cpu",),
        "out": out,
        "threads": 1,
        "cell_timeout_s": 60.0,
        "settings": Settings(fake=fake or {}),
    }
    return Plan(**defaults | fields)


def test_a_right_backend_passes_the_set(exported: Path, tmp_path: Path) -> None:
    finished = compare(plan(exported, tmp_path))
    record = finished.record
    (artifact,) = exported.iterdir()
    carried = [case.name for case in Artifact.load(artifact).manifest.stress_cases]
    assert [cell.case for cell in record.stress] == carried
    assert len(carried) >= 20
    assert {(cell.status, cell.outputs[0].verdict) for cell in record.stress} == {("ok", "pass")}
    masked = next(cell for cell in record.stress if cell.case == "fully masked row")
    assert masked.outputs[0].apart["fully masked"].positions == 2
    assert (record.verdict, read_run(finished.folder)) == ("pass", record)
    assert "stress" in record.phases_s
    assert f"{len(carried)}/{len(carried)} pass" in (finished.folder / "summary.md").read_text()
    native = Artifact.load(finished.folder / "artifacts" / artifact.name).manifest.stress_cases
    assert all(case.yardsticks["output"].native is not None for case in native), "PyTorch's own error goes with it"


def test_it_can_be_left_out(exported: Path, tmp_path: Path) -> None:
    record = compare(plan(exported, tmp_path, stress=False)).record
    assert record.stress == []


def test_a_fault_that_the_usual_inputs_do_not_show_fails_the_run(exported: Path, tmp_path: Path) -> None:
    record = compare(plan(exported, tmp_path, {"fault": "softmax-no-max"}, backends=("fake",))).record
    assert {output.verdict for cell in record.cells for output in cell.outputs} == {"pass"}
    failed = [cell.case for cell in record.stress if any(output.verdict == "fail" for output in cell.outputs)]
    assert "logits beyond fp16 at gain 600" in failed
    assert "length 13" not in failed
    assert record.verdict == "fail"
    assert overall(msgspec.structs.replace(record, stress=[])) == "pass"


def test_a_lost_worker_costs_its_case_and_a_few_end_the_stage(exported: Path, tmp_path: Path) -> None:
    ending = {"ending": "segfault", "after_calls": 2, "wraps": "ort-cpu"}
    record = compare(plan(exported, tmp_path, ending, backends=("fake",))).record
    failed = [cell for cell in record.stress if cell.status == "failed"]
    assert len(failed) == MOST_LOST_WORKERS
    assert all("SIGSEGV" in cell.reason for cell in failed)
    assert {cell.status for cell in record.stress} == {"ok", "failed"}
    assert record.verdict == "fail"
    assert any("were not asked" in notice.message for notice in record.notices)


def test_what_a_backend_refuses_is_unsupported_and_no_failure(exported: Path, tmp_path: Path) -> None:
    record = compare(plan(exported, tmp_path, {"raises": "no such size", "after_calls": 6}, backends=("fake",))).record
    refused = [cell for cell in record.stress if cell.status == "unsupported"]
    assert [cell.reason for cell in refused] == ["RuntimeError: no such size"]
    assert record.verdict == "pass"


def test_a_manifest_with_rows_outside_is_refused(exported: Path) -> None:
    from crosshead.export.artifact._check import manifest_fault

    (folder,) = exported.iterdir()
    manifest: Manifest = Artifact.load(folder).manifest
    outside = Apart(reason="padded", shape=(2, 3), rows=((2, 0),))
    broken = msgspec.structs.replace(manifest.stress_cases[0], apart=(outside,))
    assert "rows inside (2, 3)" in manifest_fault(msgspec.structs.replace(manifest, stress_cases=(broken,)))
