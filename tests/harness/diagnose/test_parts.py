"""The parts of a diagnosis by themselves: cutting, the search for a node, shrinking, and matching values."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from crosshead.export.artifact import Arrays, FormError, TensorSpec
from crosshead.export.float64 import evaluate_float64
from crosshead.harness.diagnose.culprit import Search
from crosshead.harness.diagnose.cutting import CutGraph, name_of
from crosshead.harness.diagnose.departure import find_departure
from crosshead.harness.diagnose.ladder import sentence
from crosshead.harness.diagnose.shrink import cut_to, fill, shrink
from crosshead.harness.diagnose.standing import Standing
from crosshead.harness.diagnose.values import oracle_values
from crosshead.results.diagnosis import RungRecord
from crosshead.runtimes import BackendError

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((6, 6)).astype(np.float32)
INPUTS: Arrays = {"x": RNG.standard_normal((4, 6)).astype(np.float32)}


def chain() -> onnx.ModelProto:
    """Four nodes one after the other; the second weight comes from a Constant node."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([2.0], np.float32))),
        helper.make_node("Mul", ["a", "c"], ["b"], name="second"),
        helper.make_node("Tanh", ["b"], ["t"], name="third"),
        helper.make_node("Add", ["t", "a"], ["y"], name="fourth"),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 6]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", sides[:1], sides[1:], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def computed(model: onnx.ModelProto, inputs: Arrays) -> dict[str, NDArray[np.float32]]:
    """A backend that is right: float64, rounded once."""
    return {name: array.astype(np.float32) for name, array in evaluate_float64(model, inputs).items()}


def right(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    return dict(computed(model, inputs))


def names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node if node.op_type != "Constant"]


def test_a_cut_reads_and_gives_what_passes_its_borders() -> None:
    graph = CutGraph.of(chain())
    assert [name_of(node) for node in graph.nodes] == ["first", "second", "third", "fourth"]
    assert graph.boundary(0, 0) == (["x"], ["a"])
    assert graph.boundary(0, 1) == (["x"], ["a", "b"])
    assert graph.boundary(1, 2) == (["a"], ["t"])
    assert graph.boundary(2, 3) == (["b", "a"], ["y"])
    values = oracle_values(graph, INPUTS)
    cut = graph.cut(graph.nodes[1:3], ["a"], ["t"], values)
    onnx.checker.check_model(cut, full_check=True)
    got = computed(cut, {"a": values["a"].astype(np.float32)})
    np.testing.assert_allclose(got["t"], values["t"], rtol=1e-6)


def test_nodes_between_values_are_those_that_compute_them() -> None:
    graph = CutGraph.of(chain())
    assert [node.name for node in graph.between(["a"], ["t"])] == ["second", "third"]
    with pytest.raises(FormError, match="'x' is computed by no node"):
        graph.between(["b"], ["y"])


def test_a_faulty_node_is_found_with_what_it_inherits() -> None:
    def ask(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        factor = np.float32(1.001 if "third" in names(model) else 1.0)
        return {name: array * factor for name, array in computed(model, inputs).items()}

    graph = CutGraph.of(chain())
    found = Search(graph, oracle_values(graph, INPUTS), ask, "fp32").find()
    assert found is not None
    assert [node.name for node in found.nodes] == ["third"]
    assert found.own.error == pytest.approx(1e-3, rel=0.01)
    assert found.inherited is not None
    assert found.inherited < 1e-6


def test_nodes_that_are_off_together_alone_are_named_together() -> None:
    def ask(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        fused = {"second", "third"} <= {*names(model)}
        return {name: array + np.float32(0.1) * fused for name, array in computed(model, inputs).items()}

    graph = CutGraph.of(chain())
    found = Search(graph, oracle_values(graph, INPUTS), ask, "fp32").find()
    assert found is not None
    assert [node.name for node in found.nodes] == ["second", "third"]


def test_nothing_is_found_on_a_backend_that_is_right() -> None:
    graph = CutGraph.of(chain())
    assert Search(graph, oracle_values(graph, INPUTS), right, "fp32").find() is None


def test_a_node_that_does_not_run_is_found() -> None:
    def ask(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        if "fourth" in names(model):
            raise BackendError("no")
        return right(model, inputs)

    graph = CutGraph.of(chain())
    found = Search(graph, oracle_values(graph, INPUTS), ask, "fp32", crashes=True).find()
    assert found is not None
    assert [node.name for node in found.nodes] == ["fourth"]
    assert found.own.failed == "no"


def test_a_graph_departs_at_the_first_value_that_is_not_known() -> None:
    graph = CutGraph.of(chain())
    values = oracle_values(graph, INPUTS)
    known = [WEIGHT, INPUTS["x"], values["a"].T, values["b"]]  # in another layout, too
    found = find_departure(graph, values, known, tolerance=0.0, wrong=["y"])
    assert found is not None
    assert found.node.name == "third"
    assert found.last_right == ("b",)
    assert find_departure(graph, values, [*known, values["y"]], tolerance=0.0, wrong=[]) is None


def test_shapes_go_down_then_values() -> None:
    specs = [TensorSpec(name="x", dtype="float32", shape=("n", 6))]

    def shows(inputs: Arrays) -> bool:
        return bool(inputs["x"].shape[0] >= 3 and np.any(inputs["x"][2] != 0))

    small = shrink({"x": np.ones((40, 6), np.float32)}, specs, shows, budget_s=10.0)
    assert small.inputs["x"].shape == (3, 6)
    assert np.count_nonzero(small.inputs["x"]) <= 18
    assert shows(small.inputs)


def test_what_cannot_be_made_smaller_stays() -> None:
    specs = [TensorSpec(name="x", dtype="float32", shape=(4, 6))]
    small = shrink(INPUTS, specs, lambda inputs: np.array_equal(inputs["x"], INPUTS["x"]), budget_s=5.0)
    np.testing.assert_array_equal(small.inputs["x"], INPUTS["x"])


def test_axes_of_one_name_are_cut_together_and_infinities_stay() -> None:
    specs = [TensorSpec(name=name, dtype="float32", shape=("n", "m")) for name in "ab"]
    cut = cut_to({name: np.zeros((5, 7), np.float32) for name in "ab"}, specs, {"n": 2})
    assert [array.shape for array in cut.values()] == [(2, 7), (2, 7)]
    np.testing.assert_array_equal(fill(np.array([-np.inf, 3.0], np.float32), "zeros"), [-np.inf, 0.0])


def test_the_sentence_names_the_first_change_that_takes_the_error_away() -> None:
    base = Standing(3.1e-2, 5200.0, False)
    rungs = [
        RungRecord(change="one thread", outcome="stays", error=3.1e-2, times_expected=5200.0),
        RungRecord(change="graph optimisation off", outcome="gone", error=1.9e-7, times_expected=0.9),
        RungRecord(change="the backend onnx-reference", outcome="gone", error=1.9e-7, times_expected=0.9),
    ]
    assert sentence(base, rungs) == (
        "with graph optimisation off the error falls from 3.1e-02 (5,200 times expected) to 1.9e-07 (0.9); "
        "so it does with the backend onnx-reference"
    )
    assert sentence(base, rungs[:1]).startswith("the error of 3.1e-02 (5,200 times expected) stays")
    assert "nothing could be changed" in sentence(base, [])
