import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from crosshead.export.artifact import Artifact
from crosshead.runtimes import Available, BackendError, Session, Settings, Unavailable, UnsupportedError, get_runtime
from crosshead.runtimes import _ort_evidence as evidence
from crosshead.runtimes._ort_errors import translate
from crosshead.runtimes._ort_wheels import Wheels, find_wheels

Typed = Callable[[str, str, tuple[int | str, ...]], onnx.ValueInfoProto]


def opened(artifact: Artifact, **settings: Any) -> Session:
    return get_runtime("ort-cpu").open(artifact, Settings(**settings))


@pytest.mark.parametrize("case", ["1x5", "2x7"])
def test_numbers(assert_close: Any, linear: Artifact, case: str) -> None:
    with opened(linear) as session:
        outputs = session.run(linear.inputs(case))
    assert_close(outputs["y"], linear.expected(case)["y"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("io_binding", [True, False])
def test_a_bound_call_computes_every_time(linear: Artifact, io_binding: bool) -> None:
    inputs = linear.inputs("2x7")
    with opened(linear, io_binding=io_binding) as session:
        step = session.bind(inputs)
        assert [step() is not None for _ in range(3)] == [True] * 3
        assert session.copies(inputs) is None


def test_settings_reach_the_session_and_come_back(linear: Artifact) -> None:
    with opened(linear, threads=2, optimization="basic", spinning=False, memory_arena=False) as session:
        assert session.details() == {
            "intra_op_threads": "2",
            "inter_op_threads": "1",
            "optimization": "ORT_ENABLE_BASIC",
            "memory_arena": "False",
            "memory_pattern": "True",
            "arena_shrinkage": "False",
            "spinning": "0",
            "io_binding": "True",
            "providers": "CPUExecutionProvider",
        }


def test_weights_in_half_precision_behind_a_transpose_load(make_artifact: Any, typed_value: Typed) -> None:
    """With every optimizer on, this graph ends the process."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["turned", "w"], ["y"]),
    ]
    sides = [typed_value("x", "float16", ("b", "l", 64)), typed_value("y", "float16", ("l", "b", 192))]
    weights = onnx.numpy_helper.from_array(np.ones((64, 192), np.float16), "w")
    graph = helper.make_graph(nodes, "half", sides[:1], sides[1:], [weights])
    with opened(make_artifact(graph, precision="fp16")) as session:
        assert session.details()["optimization"] == "ORT_ENABLE_ALL"
        assert session.details()["disabled_optimizers"] == "NchwcTransformer"
        output = session.run({"x": np.ones((2, 3, 64), np.float16)})["y"]
    np.testing.assert_array_equal(output, np.full((3, 2, 192), 64.0))


@pytest.mark.parametrize("io_binding", [True, False])
def test_an_arena_that_shrinks_after_every_call_computes_the_same(
    assert_close: Any, linear: Artifact, io_binding: bool
) -> None:
    settings = {"arena_shrinkage": True, "memory_pattern": False, "io_binding": io_binding}
    with opened(linear, **settings) as session:
        session.bind(linear.inputs("2x7"))()
        assert_close(session.run(linear.inputs("2x7"))["y"], linear.expected("2x7")["y"], rtol=1e-6, atol=1e-7)
        assert (session.details()["arena_shrinkage"], session.details()["memory_pattern"]) == ("True", "False")


def test_an_arena_that_is_not_there_cannot_shrink(linear: Artifact) -> None:
    with pytest.raises(BackendError, match="arena_shrinkage=on shrinks the arena that memory_arena=off leaves out"):
        opened(linear, arena_shrinkage=True, memory_arena=False)


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "layout", "all"])
def test_every_optimisation_level_exists(linear: Artifact, level: str) -> None:
    with opened(linear, optimization=level) as session:
        assert session.details()["optimization"].startswith("ORT_")


def test_the_cpu_is_proven_without_a_run(linear: Artifact) -> None:
    with opened(linear) as session:
        placement = session.placement()
        assert placement is not None
        assert placement.proof == "assignment"
        assert placement.providers["CPUExecutionProvider"].nodes == 2
        assert placement.providers["CPUExecutionProvider"].flops_share == 1.0
        assert session.prove(linear.inputs("1x5")) == placement


def test_without_an_assignment_record_the_profile_is_the_proof(
    linear: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evidence, "assigned_nodes", lambda session: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with opened(linear) as session:
        assert session.placement() is None
        placement = session.prove(linear.inputs("2x7"))
    assert placement is not None
    assert placement.proof == "profile"
    assert placement.providers["CPUExecutionProvider"].nodes in (1, 2)  # product and bias may be fused
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_folds_away_ran_on_the_cpu(make_artifact: Any, typed_value: Typed) -> None:
    constant = helper.make_tensor("c", onnx.TensorProto.FLOAT, [2], [1.0, 2.0])
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["y"], value=constant)], "folded", [], [typed_value("y", "float32", (2,))]
    )
    with opened(make_artifact(graph)) as session:
        assert session.run({})["y"].tolist() == [1.0, 2.0]
        placement = session.placement()
        assert placement is not None
        assert placement.providers["CPUExecutionProvider"].flops_share == 1.0


def test_outputs_whose_shape_hangs_on_the_data(make_artifact: Any, typed_value: Typed) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        "nonzero",
        [typed_value("x", "float32", ("n",))],
        [typed_value("y", "int64", (1, "found"))],
    )
    inputs = {"x": np.array([0, 3, 0, 4], np.float32)}
    with opened(make_artifact(graph)) as session:
        assert session.run(inputs)["y"].tolist() == [[1, 3]]
        step = session.bind(inputs)
        step()
        step()


@pytest.mark.parametrize("length", [0, 3])
def test_empty_tensors_booleans_and_scalars_are_bound(make_artifact: Any, typed_value: Typed, length: int) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
            helper.make_node("Where", ["keep", "all", "fill"], ["y"]),
        ],
        "past",
        [
            typed_value("past", "float32", (2, "past")),
            typed_value("x", "float32", (2, 1)),
            typed_value("keep", "bool", ()),
            typed_value("fill", "float32", ()),
        ],
        [typed_value("y", "float32", (2, "total"))],
    )
    inputs: dict[str, Any] = {
        "past": np.ones((2, length), np.float32),
        "x": np.ones((1, 2), np.float32).T,  # not contiguous as C has it
        "keep": np.array(False),
        "fill": np.array(7.0, np.float32),
    }
    with opened(make_artifact(graph)) as session:
        assert session.run(inputs)["y"].tolist() == [[7.0] * (length + 1)] * 2
        step = session.bind(inputs)
        step()
        step()


def test_a_missing_kernel_names_operator_and_dtype(make_artifact: Any, typed_value: Typed) -> None:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"], name="square")],
        "bf16",
        [typed_value("x", "bfloat16", (2,))],
        [typed_value("y", "bfloat16", (2,))],
    )
    with pytest.raises(
        UnsupportedError, match=r"onnxruntime [\d.]+ has no CPU kernel for Mul of bfloat16 \(node 'square'\)"
    ):
        opened(make_artifact(graph, precision="bf16"))


def test_a_mask_that_the_kernel_refuses_is_unsupported_and_says_what_to_do(
    make_artifact: Any, typed_value: Typed
) -> None:
    names = [typed_value(name, "float32", (2, 4, 6, 8)) for name in ("q", "k", "v")]
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])],
        "broadcast_mask",
        [*names, typed_value("mask", "bool", (2, 1, 1, 6))],
        [typed_value("y", "float32", (2, 4, 6, 8))],
    )
    inputs: dict[str, Any] = {name: np.ones((2, 4, 6, 8), np.float32) for name in "qkv"}
    inputs["mask"] = np.ones((2, 1, 1, 6), bool)
    with (
        opened(make_artifact(graph, opset=23)) as session,
        pytest.raises(
            UnsupportedError, match="no mask that is broadcast along the queries; the form `decomposed` does"
        ),
    ):
        session.run(inputs)


def test_keys_of_length_0_are_unsupported_and_say_what_to_do(make_artifact: Any, typed_value: Typed) -> None:
    values = [typed_value(name, "float32", (2, 4, length, 8)) for name, length in (("q", 6), ("k", 0), ("v", 0))]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = helper.make_graph([node], "no_keys", values, [typed_value("y", "float32", (2, 4, 6, 8))])
    inputs: dict[str, Any] = {
        name: np.ones((2, 4, length, 8), np.float32) for name, length in (("q", 6), ("k", 0), ("v", 0))
    }
    with (
        opened(make_artifact(graph, opset=23)) as session,
        pytest.raises(UnsupportedError, match="takes no keys of length 0; the form `decomposed` does"),
    ):
        session.run(inputs)


def relu_like(op: str, typed_value: Typed, domain: str = "") -> onnx.GraphProto:
    sides = [typed_value(name, "float32", (2,)) for name in "xy"]
    return helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "one", sides[:1], sides[1:])


def test_what_this_version_does_not_know_is_unsupported(make_artifact: Any, typed_value: Typed) -> None:
    with pytest.raises(UnsupportedError, match="knows no operator Frobnicate at opset 17"):
        opened(make_artifact(relu_like("Frobnicate", typed_value)))
    with pytest.raises(UnsupportedError, match=r"knows no operator my.own:Frobnicate"):
        opened(make_artifact(relu_like("Frobnicate", typed_value, "my.own"), domains=("my.own",)))
    with pytest.raises(UnsupportedError, match=r"reads ONNX IR versions up to \d+; this file has 99"):
        opened(make_artifact(relu_like("Relu", typed_value), ir_version=99))


def test_an_opset_that_is_too_new_is_unsupported(linear: Artifact) -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/graph/model_load_utils.h:46 void f() "
        "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. "
        "Opset 29 is under development and support for this is limited."
    )
    found = translate(RuntimeError(text), linear, "onnxruntime 1.32.0", "CPU")
    assert isinstance(found, UnsupportedError)
    assert str(found) == "onnxruntime 1.32.0 is older than opset 29 of this file"


@pytest.mark.parametrize("model", [b"", b"hello", None])
def test_a_truncated_file_is_told(
    linear: Artifact, make_artifact: Any, typed_value: Typed, model: bytes | None
) -> None:
    data = linear.model_path.read_bytes()[:60] if model is None else model
    with pytest.raises(BackendError, match=r"model.onnx is truncated or no ONNX file|onnxruntime"):
        opened(make_artifact(relu_like("Relu", typed_value), model=data))


@pytest.mark.parametrize(("name", "told"), [("", "Reshape"), ("Name:'split' ", "Reshape 'split'")])
def test_any_other_error_is_one_plain_line_that_names_the_node(linear: Artifact, name: str, told: str) -> None:
    text = (
        f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Reshape node. {name}"
        "Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/reshape_helper.h:47 "
        "onnxruntime::ReshapeHelper::ReshapeHelper(const TensorShape&, TensorShapeVector&, bool) "
        "size != 0 was false. The input tensor cannot be reshaped\n"
    )
    found = translate(RuntimeError(text), linear, "onnxruntime 1.32.0", "CPU")
    assert type(found) is BackendError
    assert str(found) == f"onnxruntime 1.32.0 on CPU, {told}: The input tensor cannot be reshaped"


def test_probe_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosshead.runtimes.ort.find_wheels", lambda: Wheels(names={}, package="", version=""))
    assert get_runtime("ort-cpu").probe() == Unavailable(
        reason="ONNX Runtime is not installed", remedy="pip install 'crosshead[cpu]'"
    )


def test_probe_with_both_wheels_says_that_they_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(
        "crosshead.runtimes.ort.find_wheels", lambda: Wheels(names=both, package="onnxruntime", version="1.32.0")
    )
    found = get_runtime("ort-cpu").probe()
    assert isinstance(found, Available)
    assert found.detail == "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 are both installed and overwrite each other"


def test_what_is_on_disk_decides_which_wheel_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "onnxruntime"
    (package / "capi").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('nobody imports this')\n")
    facts = "package_name = 'onnxruntime-gpu'\n__version__ = '9.8.7'\ncuda_version = '13.0'\n"
    (package / "capi" / "build_and_package_info.py").write_text(facts)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    found = find_wheels()
    assert (found.package, found.version) == ("onnxruntime-gpu", "9.8.7")


def test_no_package_folder_is_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_wheels().package == ""


def test_import_without_the_library_is_one_line(linear: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # this is how an import is forbidden
    with pytest.raises(BackendError, match=r"cannot be imported .*pip install 'crosshead\[cpu\]'"):
        opened(linear)


def test_a_level_that_a_version_lacks_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    from crosshead.runtimes.ort import session_options

    old = ModuleType("onnxruntime")
    old.__version__ = "1.0"  # type: ignore[attr-defined]  # a stand-in
    old.GraphOptimizationLevel = object()  # type: ignore[attr-defined]  # a stand-in
    with pytest.raises(UnsupportedError, match=r"onnxruntime 1.0 has no optimisation level 'layout'"):
        session_options(old, Settings(optimization="layout"))


def test_the_deviation_that_is_declared_is_there(assert_close: Any, make_artifact: Any, typed_value: Typed) -> None:
    """When a release mends it, this fails, and the entry goes."""
    (deviation,) = get_runtime("ort-cpu").capabilities.deviations
    assert deviation.op == "ai.onnx::Attention"
    names = [typed_value(name, "float32", (1, 1, 2, 4)) for name in ("q", "k", "v")]
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])],
        "lowest",
        [*names, typed_value("mask", "float32", (2, 2))],
        [typed_value("y", "float32", (1, 1, 2, 4))],
    )
    value = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    mask = np.array([[np.finfo(np.float32).min] * 2, [0.0, 0.0]], np.float32)
    inputs = {"q": np.ones_like(value), "k": np.ones_like(value), "v": value, "mask": mask}
    artifact = make_artifact(graph, opset=23)
    mean = value[0, 0].mean(0)
    with opened(artifact) as session:
        assert session.run(inputs)["y"][0, 0, 0].tolist() == [0.0] * 4
    with get_runtime("onnx-reference").open(artifact, Settings()) as session:
        assert_close(session.run(inputs)["y"][0, 0, 0], mean)
