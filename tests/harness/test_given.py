"""Cases of a person's own through the whole run: given outputs, saved files, and one line for what does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from crosshead.export.artifact import SourceError, unpack_arrays
from crosshead.harness import Plan, RequestError, Tolerance, Tolerances, compare
from crosshead.harness.saved import SavedFiles
from crosshead.results import RunRecord

WEIGHT = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
X = np.random.default_rng(5).standard_normal((2, 3, 4)).astype(np.float32)
RIGHT = X @ WEIGHT


def data_set(folder: Path, x: NDArray[Any], y: NDArray[Any]) -> Path:
    folder.mkdir()
    for kind, name, array in (("input", "x", x), ("output", "y", y)):
        tensor = numpy_helper.from_array(array.astype(np.float32), name)
        (folder / f"{kind}_0.pb").write_bytes(tensor.SerializeToString())
    return folder


def ran(linear: Path, out: Path, inputs: Any, **fields: Any) -> RunRecord:
    model = str(linear / "linear" / "model.onnx")
    return compare(Plan(source=model, inputs=inputs, backends=("ort-cpu",), threads=1, out=out, **fields)).record


def test_outputs_that_were_given_are_compared_too(linear: Path, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "test_data_set_0", X, RIGHT)
    record = ran(linear, tmp_path / "runs", folder)
    (cell,) = record.cells
    given = cell.outputs[0].given
    assert given is not None
    assert (cell.case, given.verdict, record.verdict) == ("test_data_set_0", "pass", "pass")
    assert given.yardsticks is not None
    assert given.yardsticks < 10


def test_a_backend_that_is_right_and_not_as_given_fails_and_it_is_said_why(linear: Path, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "test_data_set_0", X, RIGHT + 1e-3)
    record = ran(linear, tmp_path / "runs", folder)
    output = record.cells[0].outputs[0]
    assert output.verdict == "fail"
    assert "not what was given" in output.reason
    assert output.reason.endswith("the float64 oracle supports the backend")
    assert record.verdict == "fail"
    wide = Tolerances(default=Tolerance(atol=1e-2))
    assert ran(linear, tmp_path / "runs", folder, tolerances=wide).verdict == "pass"
    other = data_set(tmp_path / "test_data_set_1", X, RIGHT[:, :2])
    assert "shape [2, 3, 3], given [2, 2, 3]" in ran(linear, tmp_path / "runs", other).cells[0].outputs[0].reason


def test_what_went_in_and_came_out_is_saved_and_can_be_given_again(linear: Path, tmp_path: Path) -> None:
    folder = data_set(tmp_path / "test_data_set_0", X, RIGHT)
    saved = {"save_inputs": tmp_path / "in", "save_outputs": tmp_path / "deep" / "out"}
    record = ran(linear, tmp_path / "runs", folder, **saved)
    assert unpack_arrays(tmp_path / "in" / "test_data_set_0.npz")["x"].tolist() == X.tolist()
    (out,) = (tmp_path / "deep" / "out").iterdir()
    assert out.name == f"test_data_set_0--ort-cpu--{record.artifacts[0].id}.npz"
    assert np.allclose(unpack_arrays(out)["y"], RIGHT)
    again = ran(linear, tmp_path / "runs", tmp_path / "in" / "test_data_set_0.npz")
    assert again.verdict == "pass"


def test_saved_names_are_safe_and_none_replaces_another(tmp_path: Path) -> None:
    source = tmp_path / "a.npz"
    source.write_bytes(b"1")
    files = SavedFiles(tmp_path / "saved")
    for parts in (["x=1x2,m=../etc", "b"], ["x=1x2,m=.. etc", "b"], ["...", "é"]):
        files.take(parts, source)
    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert names == ["unnamed--unnamed.npz", "x=1x2,m=..-etc--b-2.npz", "x=1x2,m=..-etc--b.npz"]


def test_a_folder_that_cannot_be_written_is_one_line(linear: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = data_set(tmp_path / "test_data_set_0", X, RIGHT)
    with pytest.raises(RequestError, match="cannot write into"):
        ran(linear, tmp_path / "runs", folder, save_inputs=tmp_path / "file" / "in")


def test_a_module_gets_its_own_cases_beside_the_usual_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", query=np.ones((1, 3, 16), np.float32))
    options = {"d_model": 16, "num_heads": 2}
    fields: dict[str, Any] = {"batches": (2,), "lengths": (5,), "forms": ("decomposed",), "backends": ("ort-cpu",)}
    plan = Plan(
        source="mha", options=options, inputs=(str(tmp_path / "mine.npz"),), out=tmp_path, stress=False, **fields
    )
    assert [cell.case for cell in compare(plan).record.cells] == ["2x5", "mine"]
    np.savez(tmp_path / "other.npz", key=np.ones((1, 3, 16), np.float32))
    plan = Plan(source="mha", options=options, inputs=tmp_path / "other.npz", out=tmp_path, stress=False, **fields)
    with pytest.raises(SourceError, match=r"other\.npz holds an array 'key'; the graph's inputs are: query"):
        compare(plan)


def test_a_folder_of_artifacts_takes_no_inputs(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="carry their cases"):
        compare(make_plan(inputs=tmp_path / "mine.npz"))
