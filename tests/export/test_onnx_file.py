import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from crosshead.export import (
    Artifact,
    ArtifactError,
    FormError,
    SourceError,
    against_onnx_file,
    export_onnx_file,
    onnx_cases,
    onnx_signature,
    relative_l2,
)
from crosshead.export.artifact import sha256_file

Shape = list[int | str | None]
WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def tensor(name: str, kind: int, shape: Shape | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    opset: int = 18,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
        producer_name="maker",
        producer_version="3",
    )


def linear(scale: float = 0.5, weight: np.ndarray = WEIGHT, output: str = "y", bias: float = 0.0) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"], name="product"),
        helper.make_node("Mul", ["wide", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], [output]),
    ]
    weights = {"w": weight, "scale": np.array(scale, np.float32), "bias": np.array(bias, np.float32)}
    return model(
        nodes,
        [tensor("x", TensorProto.FLOAT, ["batch", 4])],
        [tensor(output, TensorProto.FLOAT, ["batch", 3])],
        weights,
    )


def embedding() -> onnx.ModelProto:
    """Token ids, cast and reshaped on their way to a table of 7, positions to one of 5, and a mask."""
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide_ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "wide_ids"], ["tokens"]),
        helper.make_node("Gather", ["places", "positions"], ["where"], axis=1),
        helper.make_node("Transpose", ["where"], ["turned"], perm=[1, 2, 0]),
        helper.make_node("Add", ["tokens", "turned"], ["sum"]),
        helper.make_node("Where", ["keep", "sum", "tokens"], ["y"]),
    ]
    inputs = [
        tensor("ids", TensorProto.INT32, ["batch", "seq"]),
        tensor("positions", TensorProto.INT64, ["batch", "seq"]),
        tensor("keep", TensorProto.BOOL, ["batch", "seq", 1]),
    ]
    weights = {"table": np.ones((7, 2), np.float32), "places": np.ones((2, 5), np.float32)}
    return model(nodes, inputs, [tensor("y", TensorProto.FLOAT, None)], weights)


def save(folder: Path, made: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def save_external(folder: Path) -> Path:
    (folder / "weights").mkdir()
    path = folder / "m.onnx"
    onnx.save(
        linear(weight=np.tile(WEIGHT, (1, 1))),
        path,
        save_as_external_data=True,
        location="weights/part.bin",
        size_threshold=0,
    )
    return path


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(SourceError, match=r"^[^\n]+$") as caught:
        onnx_cases(path, **options)  # type: ignore[arg-type]  # wrong on purpose
    assert str(path.parent) not in str(caught.value)
    return str(caught.value)


def test_the_signature_names_every_axis(tmp_path: Path) -> None:
    made = linear()
    made.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    made.graph.input.append(tensor("w", TensorProto.FLOAT, [4, 3]))  # as files before IR version 4 list their weights
    inputs, outputs = onnx_signature(save(tmp_path, made))
    assert [(spec.name, spec.dtype, spec.shape) for spec in inputs] == [("x", "float32", ("x_0", 4))]
    assert [(spec.name, spec.dtype, spec.shape) for spec in outputs] == [("y", "float32", ("batch", 3))]


def test_an_output_without_a_shape_is_inferred_or_evaluated(tmp_path: Path) -> None:
    path = save(tmp_path, embedding())
    assert onnx_signature(path)[1][0].shape == ("batch", "seq", 2)
    made = linear()
    made.graph.output[0].type.tensor_type.ClearField("shape")
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    made.graph.node[0].op_type, made.graph.node[0].domain = "Product", "nobody"
    made.opset_import.append(helper.make_opsetid("nobody", 1))
    assert onnx_signature(save(tmp_path, made))[1][0].shape == ("…",)


def test_a_file_becomes_an_artifact_that_keeps_its_bytes(tmp_path: Path) -> None:
    path = save(tmp_path, linear(), "my model.onnx")
    steps: list[str] = []
    cases = onnx_cases(path, shapes={"x": [(2, 4), (5, 4)]}, seed=3)
    artifact = export_onnx_file(path, cases, out=tmp_path / "out", on_step=steps.append)
    artifact.verify()
    manifest = artifact.manifest
    assert artifact.id == "my-model-given-opset18-fp32"
    assert artifact.model_path.read_bytes() == path.read_bytes()
    assert manifest.model_sha256 == manifest.source.file_sha256 == sha256_file(path)
    assert (manifest.form, manifest.opset, manifest.exporter, manifest.exporter_version) == ("given", 18, "maker", "3")
    assert (manifest.source.kind, manifest.source.name, manifest.source.factory) == ("onnx", "my model.onnx", None)
    assert manifest.graph.verdict == "not-asked"
    assert manifest.weights_sha256 is None
    assert artifact.weights_path is None
    assert manifest.ops == {"ai.onnx::Add": 1, "ai.onnx::MatMul": 1, "ai.onnx::Mul": 1}
    assert [case.name for case in manifest.cases] == ["2x4", "5x4"]
    assert steps == ["reading my model.onnx", "computing 2x4 in float64", "computing 5x4 in float64"]
    for case in manifest.cases:
        x = artifact.inputs(case.name)["x"]
        want = x.astype(np.float64) @ WEIGHT.astype(np.float64) * 0.5
        assert relative_l2(artifact.expected(case.name)["y"], want) < 1e-15
        assert 1e-8 < case.yardsticks["y"].sensitivity < 1e-6
        assert case.yardsticks["y"].native is None
    assert Artifact.load(artifact.folder) == artifact
    assert sorted(each.name for each in tmp_path.iterdir()) == ["my model.onnx", "out"]


def test_external_data_travels_in_its_place(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    artifact = export_onnx_file(path, onnx_cases(path, shapes={"x": [(1, 4)]}), out=tmp_path / "out")
    artifact.verify()
    assert list(artifact.manifest.external_sha256) == ["weights/part.bin"]
    assert (artifact.folder / "weights" / "part.bin").read_bytes() == (tmp_path / "weights" / "part.bin").read_bytes()
    assert onnx.load(artifact.model_path).graph.initializer[0].dims == [4, 3]


def test_sizes_come_by_shape_or_by_array_and_bind_each_other(tmp_path: Path) -> None:
    path = save(tmp_path, embedding())
    (case,) = onnx_cases(path, shapes={"ids": [(2, 30)]})
    assert case.name == "2x30"
    assert {name: (array.shape, array.dtype.name) for name, array in case.inputs.items()} == {
        "ids": ((2, 30), "int32"),
        "positions": ((2, 30), "int64"),
        "keep": ((2, 30, 1), "bool"),
    }
    assert sorted(set(case.inputs["ids"].ravel().tolist())) == list(range(7))
    assert sorted(set(case.inputs["positions"].ravel().tolist())) == list(range(5))
    assert 0 < case.inputs["keep"].mean() < 1
    again = onnx_cases(path, shapes={"ids": [(2, 30)]})[0]
    assert all(case.inputs[name].tobytes() == again.inputs[name].tobytes() for name in case.inputs)

    np.savez(tmp_path / "given.npz", ids=np.array([[6, 0, 3]], np.int32))
    (case,) = onnx_cases(path, inputs=tmp_path / "given.npz")
    assert case.name == "inputs"
    assert case.inputs["ids"].tolist() == [[6, 0, 3]]
    assert case.inputs["positions"].shape == (1, 3)
    assert list(case.inputs) == ["ids", "positions", "keep"]
    assert case.reason == "ids as given; positions, keep drawn"


def test_a_graph_of_fixed_sizes_needs_nothing(tmp_path: Path) -> None:
    made = linear()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 6
    (case,) = onnx_cases(save(tmp_path, made))
    assert case.name == "fixed"
    assert case.inputs["x"].shape == (6, 4)
    assert 0.3 < case.inputs["x"].std() < 2


def test_an_open_axis_is_refused_by_name_with_the_option(tmp_path: Path) -> None:
    path = save(tmp_path, embedding())
    assert (
        refusal(path) == "input 'ids' of m.onnx leaves batch, seq open; give its sizes with --shape ids=<batch>x<seq>"
    )
    assert "has no input 'x'; inputs: ids, positions, keep" in refusal(path, shapes={"x": [(1,)]})
    assert "expected shape (batch, seq), got (1,)" in refusal(path, shapes={"ids": [(1,)]})
    said = refusal(path, shapes={"ids": [(1, 2)], "positions": [(1, 3)]})
    assert "axis 1 is 'seq', which is 2 in 'ids'" in said
    assert "axis 1 is fixed at 4" in refusal(save(tmp_path, linear()), shapes={"x": [(1, 5)]})
    assert "give it 1 or 3" in refusal(path, shapes={"ids": [(1, 2)] * 3, "positions": [(1, 2)] * 2})


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    np.savez(tmp_path / "a.npz", z=np.ones((1, 4), np.float32))
    assert "a.npz holds an array 'z'; the graph's inputs are: x" in refusal(path, inputs=tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.ones((1, 4)))
    assert "input 'x': expected dtype float32, got float64" in refusal(path, inputs=tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.ones((1, 5), np.float32))
    assert "expected shape (batch, 4), got (1, 5); axis 1 is fixed at 4" in refusal(path, inputs=tmp_path / "a.npz")
    assert "--inputs: cannot read gone.npz" in refusal(path, inputs=tmp_path / "gone.npz")


@pytest.mark.parametrize("reader", ["Add", "output", "Cast to float", "If", "unknown table"])
def test_whole_numbers_that_index_no_table_need_an_array(tmp_path: Path, reader: str) -> None:
    made = embedding()
    if reader == "Add":
        made.graph.node.insert(0, helper.make_node("Add", ["positions", "positions"], ["twice"]))
    elif reader == "output":
        made.graph.node.insert(0, helper.make_node("Identity", ["positions"], ["same"]))
        made.graph.output.append(tensor("same", TensorProto.INT64, ["batch", "seq"]))
    elif reader == "Cast to float":
        made.graph.node.insert(0, helper.make_node("Cast", ["positions"], ["real"], to=TensorProto.FLOAT))
        made.graph.node.insert(1, helper.make_node("Exp", ["real"], ["power"]))
    elif reader == "If":
        inner = helper.make_graph(
            [helper.make_node("Identity", ["positions"], ["inner"])],
            "branch",
            [],
            [tensor("inner", TensorProto.INT64, None)],
        )
        made.graph.node.insert(0, helper.make_node("If", ["flag"], ["any"], then_branch=inner, else_branch=inner))
        made.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    else:
        made.graph.initializer.pop()
        made.graph.input.append(tensor("places", TensorProto.FLOAT, [2, "many"]))
    said = refusal(
        save(tmp_path, made), shapes={"ids": [(1, 2)], "places": [(2, 5)]} if "table" in reader else {"ids": [(1, 2)]}
    )
    assert said == (
        "input 'positions' of m.onnx holds int64, and no table that it indexes tells its range; "
        "give it with --inputs file.npz"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "m.onnx cannot be read: No such file"),
        (b"", "holds no ONNX graph"),
        (b"a text file\n" * 20, "truncated or no ONNX file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "is a Git LFS pointer"),
        (linear().SerializeToString()[:-40], "truncated or no ONNX file"),
        (linear().SerializeToString()[:60], "truncated or no ONNX file"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / "m.onnx").write_bytes(data)
    assert message in refusal(tmp_path / "m.onnx")
    with pytest.raises(SourceError, match=r"m\.onnx"):
        onnx_signature(tmp_path / "m.onnx")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    assert "m.onnx cannot be read: Is a directory" in refusal(tmp_path / "m.onnx")


def test_files_from_the_future_are_refused_with_the_versions(tmp_path: Path) -> None:
    made = linear()
    made.ir_version = 99
    assert f"has IR version 99; onnx {onnx.__version__} reads up to" in refusal(save(tmp_path, made))
    made = linear()
    made.opset_import[0].version = 99
    assert f"is at opset 99; onnx {onnx.__version__} knows up to" in refusal(save(tmp_path, made))


def test_an_invalid_graph_is_refused(tmp_path: Path) -> None:
    made = linear()
    made.graph.node[0].op_type = "MatMull"
    assert "m.onnx is not valid ONNX" in refusal(save(tmp_path, made))
    made = linear()
    made.graph.input[0].type.tensor_type.ClearField("shape")
    assert "input 'x' of m.onnx has no rank" in refusal(save(tmp_path, made))
    made = linear()
    made.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]))
    assert "'s' is a sequence; expected a tensor" in refusal(save(tmp_path, made))


def test_missing_truncated_and_outlying_external_data_is_refused(tmp_path: Path) -> None:
    path = save_external(tmp_path)
    data = tmp_path / "weights" / "part.bin"
    whole = data.read_bytes()
    data.write_bytes(whole[:10])
    assert "m.onnx" in refusal(path, shapes={"x": [(1, 4)]})
    data.unlink()
    assert "needs its external data file 'weights/part.bin', which is missing" in refusal(path)
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data[0].value = "../secret.bin"
    assert "lies in '../secret.bin', outside the model's folder" in refusal(save(tmp_path, made))


@pytest.mark.parametrize("offset", ["-8", "abc"])
def test_an_offset_into_external_data_that_is_none_is_refused(tmp_path: Path, offset: str) -> None:
    made = onnx.load(save_external(tmp_path), load_external_data=False)
    entries = {entry.key: entry for entry in made.graph.initializer[0].external_data}
    entries["offset"].value = offset
    assert "where tensor 'w' lies in its external data is damaged" in refusal(save(tmp_path, made))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    assert "m.onnx cannot be read: it is a pipe" in refusal(tmp_path / "m.onnx")


@pytest.mark.parametrize(("declared", "told"), [(["batch", 5], "[batch, 5]"), ([7, 3], "[7, 3]"), ([3], "[3]")])
def test_an_output_of_another_shape_than_declared_is_said(tmp_path: Path, declared: Shape, told: str) -> None:
    made = linear()
    made.graph.output[0].CopyFrom(tensor("y", TensorProto.FLOAT, declared))
    path = save(tmp_path, made)
    cases = onnx_cases(path, shapes={"x": [(1, 4), (2, 4)]})
    artifact = export_onnx_file(path, cases, out=tmp_path / "out")
    (notice,) = artifact.manifest.notices
    assert (notice.code, notice.where) == ("wrong-output-shape", "y")
    assert notice.message == f"m.onnx declares output 'y' as {told}, but computes [1, 3] (case 1x4)"
    second = against_onnx_file(artifact, save(tmp_path, linear(), "n.onnx"), out=tmp_path / "out")
    assert second.manifest.notices == ()


@pytest.mark.parametrize("declared", [["batch", "other"], [-1, 3], ["batch", 3]])
def test_open_and_right_shapes_of_outputs_pass_in_silence(tmp_path: Path, declared: Shape) -> None:
    made = linear()
    made.graph.output[0].CopyFrom(tensor("y", TensorProto.FLOAT, declared))
    path = save(tmp_path, made)
    artifact = export_onnx_file(path, onnx_cases(path, shapes={"x": [(2, 4)]}), out=tmp_path / "out")
    assert artifact.manifest.notices == ()
    assert Artifact.load(artifact.folder) == artifact


def test_an_operator_without_a_float64_evaluation_is_named(tmp_path: Path) -> None:
    made = linear()
    made.graph.node[0].op_type, made.graph.node[0].domain = "Product", "nobody"
    made.opset_import.append(helper.make_opsetid("nobody", 1))
    path = save(tmp_path, made)
    cases = onnx_cases(path, shapes={"x": [(1, 4)]})
    with pytest.raises(
        FormError, match=r"cannot be evaluated in float64.*Product|Product.*cannot be evaluated in float64"
    ):
        export_onnx_file(path, cases, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_and_no_case(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    cases = onnx_cases(path, shapes={"x": [(1, 4)]})
    with pytest.raises(ArtifactError, match="give a writable folder with --out"):
        export_onnx_file(path, cases, out=path / "out")
    with pytest.raises(SourceError, match="no case was given"):
        export_onnx_file(path, [], out=tmp_path / "out")


def test_half_precision_files_have_their_own_yardstick(tmp_path: Path) -> None:
    for dtype, kind, precision in (
        (np.float16, TensorProto.FLOAT16, "fp16"),
        (ml_dtypes.bfloat16, TensorProto.BFLOAT16, "bf16"),
    ):
        made = model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", kind, ["n", 4])],
            [tensor("y", kind, ["n", 3])],
            {"w": WEIGHT.astype(dtype)},
        )
        path = save(tmp_path, made)
        artifact = export_onnx_file(path, onnx_cases(path, shapes={"x": [(2, 4)]}), out=tmp_path / "out")
        assert artifact.manifest.precision == precision
        assert artifact.inputs("2x4")["x"].dtype == dtype
        assert artifact.expected("2x4")["y"].dtype == np.float64


def test_rows_of_minus_infinity_are_said(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    x = np.ones((2, 4), np.float32)
    x[1] = -np.inf
    np.savez(tmp_path / "a.npz", x=x)
    artifact = export_onnx_file(path, onnx_cases(path, inputs=tmp_path / "a.npz"), out=tmp_path / "out")
    assert [notice.code for notice in artifact.manifest.notices] == ["fully-masked-row"]


def against(folder: Path, old: onnx.ModelProto, new: onnx.ModelProto) -> Artifact:
    (folder / "old").mkdir(parents=True)
    (folder / "new").mkdir()
    first = save(folder / "old", old)
    artifact = export_onnx_file(first, onnx_cases(first, shapes={"x": [(3, 4)]}), out=folder / "out")
    second = against_onnx_file(artifact, save(folder / "new", new), out=folder / "out")
    second.verify()
    assert second.id == "m-given-opset18-fp32-against"
    assert second.manifest.cases == artifact.manifest.cases
    assert second.expected("3x4")["y"].tobytes() == artifact.expected("3x4")["y"].tobytes()
    return second


def test_two_files_of_one_function_agree(tmp_path: Path) -> None:
    same = linear()
    same.graph.node[0].name = "called otherwise"
    verdict = against(tmp_path / "a", linear(), same).manifest.graph
    assert (verdict.verdict, verdict.rel_l2, verdict.parameters_equal, verdict.detail) == ("pass", 0.0, True, "")
    # the same factor, rounded once or twice: told apart from a wrong one by the sensitivity to such literals
    split = linear(scale=0.3)
    split.graph.node[1].input[1] = "other"
    split.graph.initializer.append(numpy_helper.from_array(np.nextafter(np.float32(0.3), np.float32(1)), "other"))
    verdict = against(tmp_path / "b", linear(scale=0.3), split).manifest.graph
    assert verdict.verdict == "pass"
    assert verdict.rel_l2 is not None
    assert verdict.literal_sensitivity is not None
    assert 1e-8 < verdict.rel_l2 < 4 * verdict.literal_sensitivity
    assert verdict.parameters_equal


def test_two_files_of_two_functions_do_not(tmp_path: Path) -> None:
    verdict = against(tmp_path / "a", linear(), linear(scale=0.51)).manifest.graph
    assert verdict.verdict == "fail"
    assert "output 'y' of case 3x4 is off by 0.02" in verdict.detail
    changed = WEIGHT.copy()
    changed[0, 0] *= 1.01
    verdict = against(tmp_path / "b", linear(), linear(weight=changed)).manifest.graph
    assert verdict.verdict == "fail"
    assert verdict.parameters_equal is False
    assert "the weights of the two files differ" in verdict.detail


def test_two_files_are_compared_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    artifact = export_onnx_file(path, onnx_cases(path, shapes={"x": [(3, 4)]}), out=tmp_path / "out")
    other = save(tmp_path, linear(output="z"), "new.onnx")
    with pytest.raises(SourceError, match=r"new\.onnx has outputs z; m\.onnx has y: files are compared by name"):
        against_onnx_file(artifact, other, out=tmp_path / "out")


def test_a_bare_file_is_handled_without_torch(tmp_path: Path) -> None:
    path = save(tmp_path, linear())
    code = f"""
import sys
from pathlib import Path
from crosshead.export import against_onnx_file, export_onnx_file, onnx_cases
path, out = Path({str(path)!r}), Path({str(tmp_path / "out")!r})
artifact = export_onnx_file(path, onnx_cases(path, shapes={{"x": [(2, 4)]}}), out=out)
against_onnx_file(artifact, path, out=out)
print({{"torch", "onnxscript", "onnx_ir", "onnxruntime"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
