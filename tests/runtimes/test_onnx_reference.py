from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from crosshead.export.artifact import Artifact
from crosshead.runtimes import BackendError, Settings, UnsupportedError, get_runtime

Typed = Callable[[str, str, tuple[int | str, ...]], onnx.ValueInfoProto]


def test_numbers_and_a_bound_call(assert_close: Any, linear: Artifact) -> None:
    with get_runtime("onnx-reference").open(linear, Settings()) as session:
        for case in ("1x5", "2x7"):
            got = session.run(linear.inputs(case))["y"]
            assert_close(got, linear.expected(case)["y"], rtol=1e-6, atol=1e-7)
        session.bind(linear.inputs("1x5"))()
        assert session.placement() is None


def test_an_unknown_operator_is_unsupported(make_artifact: Any, typed_value: Typed) -> None:
    sides = [typed_value(name, "float32", (2,)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Frobnicate", ["x"], ["y"])], "one", sides[:1], sides[1:])
    with pytest.raises(UnsupportedError, match="Frobnicate"):
        get_runtime("onnx-reference").open(make_artifact(graph), Settings())


def test_a_truncated_file_is_told(linear: Artifact, make_artifact: Any, typed_value: Typed) -> None:
    sides = [typed_value(name, "float32", (2,)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", sides[:1], sides[1:])
    artifact = make_artifact(graph, model=linear.model_path.read_bytes()[:60])
    with pytest.raises(BackendError, match=r"model.onnx is truncated or no ONNX file; export again"):
        get_runtime("onnx-reference").open(artifact, Settings())


def test_an_evaluation_that_fails_is_told(make_artifact: Any, typed_value: Typed) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "sum",
        [typed_value("a", "float32", ("m",)), typed_value("b", "float32", ("n",))],
        [typed_value("y", "float32", ("m",))],
    )
    inputs = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    with (
        get_runtime("onnx-reference").open(make_artifact(graph), Settings()) as session,
        pytest.raises(BackendError, match="the reference evaluator failed"),
    ):
        session.run(inputs)


def test_attention_without_keys_is_unsupported(make_artifact: Any, typed_value: Typed) -> None:
    values = [typed_value(name, "float32", (2, 4, length, 8)) for name, length in (("q", 6), ("k", 0), ("v", 0))]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    graph = helper.make_graph([node], "no_keys", values, [typed_value("y", "float32", (2, 4, 6, 8))])
    inputs = {name: np.ones((2, 4, length, 8), np.float32) for name, length in (("q", 6), ("k", 0), ("v", 0))}
    with (
        get_runtime("onnx-reference").open(make_artifact(graph, opset=23), Settings()) as session,
        pytest.raises(UnsupportedError, match="Attention without keys; the form `decomposed` does"),
    ):
        session.run(inputs)


def test_scores_are_capped_where_they_should_be_raw(make_artifact: Any, typed_value: Typed) -> None:
    """When a release mends it, this fails, and the entry goes."""
    (deviation,) = (entry for entry in get_runtime("onnx-reference").capabilities.deviations if "softcap" in entry.when)
    assert deviation.op == "ai.onnx::Attention"
    shape, cap = (1, 1, 2, 4), 0.5
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "s"], qk_matmul_output_mode=0, softcap=cap)],
        "capped",
        [typed_value(name, "float32", shape) for name in ("q", "k", "v")],
        [typed_value("y", "float32", shape), typed_value("s", "float32", (1, 1, 2, 2))],
    )
    inputs = {name: np.linspace(-1, 1, 8, dtype=np.float32).reshape(shape) for name in ("q", "k", "v")}
    raw = inputs["q"][0, 0] @ inputs["k"][0, 0].T / 2.0  # (2, 2); the scale is 1/sqrt(4)
    artifact = make_artifact(graph, opset=23)
    with get_runtime("onnx-reference").open(artifact, Settings()) as session:
        np.testing.assert_allclose(session.run(inputs)["s"][0, 0].astype(float), cap * np.tanh(raw / cap), rtol=1e-5)
    with get_runtime("ort-cpu").open(artifact, Settings()) as session:
        np.testing.assert_allclose(session.run(inputs)["s"][0, 0].astype(float), raw, rtol=1e-5)


def test_a_column_mask_is_padded_where_it_should_be_broadcast(
    assert_close: Any, make_artifact: Any, typed_value: Typed
) -> None:
    """When a release mends it, this fails, and the entry goes."""
    (deviation,) = (entry for entry in get_runtime("onnx-reference").capabilities.deviations if "mask" in entry.when)
    assert deviation.op == "ai.onnx::Attention"
    names = [typed_value(name, "float32", (1, 1, 3, 4)) for name in ("q", "k", "v")]
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"])],
        "column_mask",
        [*names, typed_value("mask", "float32", (3, 1))],
        [typed_value("y", "float32", (1, 1, 3, 4))],
    )
    value = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    inputs = {"q": np.ones_like(value), "k": np.ones_like(value), "v": value, "mask": np.zeros((3, 1), np.float32)}
    with get_runtime("onnx-reference").open(make_artifact(graph, opset=23), Settings()) as session:
        got = session.run(inputs)["y"]
    # Equal keys and a mask of zeros: every row is the mean of the values. Only the first key is kept instead.
    assert_close(value[0, 0].mean(0), [4, 5, 6, 7])
    assert_close(got[0, 0], [[0, 1, 2, 3]] * 3)
