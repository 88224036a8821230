"""What an artifact carries is held against its graph before anything runs; what a person gives wrong is one line."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from crosshead.export.artifact import Artifact, ArtifactError, pack_arrays, sha256_bytes
from crosshead.harness.carried import check_cases
from crosshead.harness.cli import _main

WriteLinear = Callable[[Path], Artifact]
Refusal = Callable[..., str]
X = np.ones((1, 3, 4), np.float32)


def edited(artifact: Artifact, **fields: object) -> Artifact:
    """Write the artifact's first case anew with other fields, as whoever edits a manifest would."""
    first, *others = artifact.manifest.cases
    cases = (msgspec.structs.replace(first, **fields), *others)
    return artifact.with_manifest(msgspec.structs.replace(artifact.manifest, cases=cases))


def blob(artifact: Artifact, arrays: dict[str, np.ndarray]) -> str:
    data = pack_arrays(arrays)
    (artifact.folder / "blobs" / f"{sha256_bytes(data)}.npz").write_bytes(data)
    return sha256_bytes(data)


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what gives the one line with which a command ends; its exit status is 2."""

    def said(*arguments: str) -> str:
        assert _main([*arguments, "--quiet"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line

    return said


def test_what_an_export_wrote_fits(tmp_path: Path, write_linear: WriteLinear) -> None:
    check_cases(write_linear(tmp_path))


def test_inputs_of_another_shape_are_refused_through_the_command_line(
    tmp_path: Path, write_linear: WriteLinear, refusal: Refusal
) -> None:
    artifact = write_linear(tmp_path)
    edited(artifact, inputs_sha256=blob(artifact, {"x": X[..., :2]}))
    said = refusal("compare", str(artifact.folder), "--backend", "fake", "--out", str(tmp_path / "out"))
    assert said == (
        "crosshead: artifact linear, case 1x3: input 'x': expected shape (batch, seq, 4), got (1, 3, 2); "
        "axis 2 is fixed at 4; export again"
    )


def test_an_output_without_an_expectation_is_refused(tmp_path: Path, write_linear: WriteLinear) -> None:
    artifact = write_linear(tmp_path)
    wrong = edited(artifact, expected_sha256=blob(artifact, {"z": np.ones((1, 3, 3))}))
    message = r"^artifact linear, case 1x3: no expectation for output 'y'; there are: z; export again$"
    for read in (
        check_cases,
        lambda artifact: artifact.expected("1x3"),
        lambda artifact: artifact.stored_expected("1x3"),
    ):
        with pytest.raises(ArtifactError, match=message):
            read(wrong)


@pytest.mark.parametrize(
    ("oracle", "refused"),
    [(np.ones((1, 3, 3)), True), (np.zeros((1, 3, 3)), False), (np.full((1, 3, 3), np.nan), False)],
)
def test_an_edited_manifest_without_yardsticks_is_refused_unless_there_is_none(
    tmp_path: Path, write_linear: WriteLinear, oracle: np.ndarray, refused: bool
) -> None:
    artifact = write_linear(tmp_path)
    without = edited(artifact, yardsticks={}, expected_sha256=blob(artifact, {"y": oracle}))
    if refused:
        with pytest.raises(ArtifactError, match=r"1x3: output 'y' has no yardstick, .*; export again$"):
            check_cases(without)
    else:
        check_cases(without)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return y = x + x over (batch, 4), and n = 2 i over (batch)."""
    values = [
        helper.make_tensor_value_info(name, dtype, shape)
        for name, dtype, shape in (
            ("x", TensorProto.FLOAT, ("batch", 4)),
            ("i", TensorProto.INT64, ("batch",)),
            ("y", TensorProto.FLOAT, ("batch", 4)),
            ("n", TensorProto.INT64, ("batch",)),
        )
    ]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Add", ["i", "i"], ["n"])]
    graph = helper.make_graph(nodes, "twice", values[:2], values[2:])
    path = tmp_path_factory.mktemp("model") / "twice.onnx"
    opsets = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return path


FLOATS, WHOLE = np.ones((2, 4), np.float32), np.ones(2, np.int64)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": FLOATS.astype(np.float64), "i": WHOLE}, "input 'x': expected dtype float32, got float64; convert it"),
        ({"x": FLOATS[:, :3], "i": WHOLE}, "input 'x': expected shape (batch, 4), got (2, 3); axis 1 is fixed at 4"),
        ({"x": FLOATS[0], "i": WHOLE}, "input 'x': expected shape (batch, 4), got (4,)"),
        (
            {"x": FLOATS, "i": WHOLE[:1]},
            "input 'i': expected shape (batch), got (1,); axis 0 is 'batch', which is 2 in",
        ),
        ({"x": FLOATS, "i": WHOLE, "mask": WHOLE}, "holds an array 'mask'; the graph's inputs are: x, i"),
        ({"x": FLOATS, "../i": WHOLE}, "holds an array '../i'; the graph's inputs are: x, i"),
        ({"x": FLOATS}, "input 'i' of twice.onnx holds int64, and no table that it indexes tells its range"),
        ({"i": np.array([{}], dtype=object)}, "'i' holds Python objects, no numbers"),
        ({"x": np.zeros(2, [("a", "f4")])}, "'x' has fields (a); save each as an array of its own"),
        ({"x": FLOATS.astype(ml_dtypes.bfloat16), "i": WHOLE}, "'x' holds raw bytes; bfloat16 goes in as"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, model: Path, refusal: Refusal, arrays: dict[str, np.ndarray], said: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]  # no name is that of an argument
    line = refusal("compare", str(model), "--inputs", str(tmp_path / "a.npz"), "--out", str(tmp_path / "out"))
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("keep", [0, 40, 300])
def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path, model: Path, refusal: Refusal, keep: int) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(pack_arrays({"x": FLOATS, "i": WHOLE})[:keep])
    line = refusal("compare", str(model), "--inputs", str(path), "--out", str(tmp_path / "out"))
    assert "cannot read a.npz" in line
    assert line.endswith("expected an .npz of plain arrays")


def test_a_zero_length_axis_runs_and_proves_nothing(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "empty.npz", x=FLOATS[:0], i=WHOLE[:0])
    options = ["--inputs", str(tmp_path / "empty.npz"), "--backend", "onnx-reference", "--out", str(tmp_path / "out")]
    assert _main(["compare", str(model), *options, "--json", "--quiet"]) == 0
    record = json.loads(capsys.readouterr().out)
    (cell,) = record["cells"]
    assert [(output["shape"], output["verdict"]) for output in cell["outputs"]] == [
        ([0, 4], "suspect"),
        ([0], "suspect"),
    ]
    assert {output["reason"] for output in cell["outputs"]} == {"nothing to judge: the output is empty"}
