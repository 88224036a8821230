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


def test_the_deviation_that_is_declared_is_there(assert_close: Any, make_artifact: Any, typed_value: Typed) -> None:
    """When a release mends it, this fails, and the entry goes."""
    (deviation,) = get_runtime("onnx-reference").capabilities.deviations
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
