"""Which constants of a graph count as rounded literals, and how far they move it."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from torch import nn

from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64.literals import Literals

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]

SUM = """
<ir_version: 8, opset_import: ["" : 18]>
sum (float[n, m] x) => (float[n, m] y) { y = Mul (x, c) }
"""

SIZE = '<ir_version: 8, opset_import: ["" : 18]> size () => (int64 y) { y = Size (c) }'


def literals(model: onnx.ModelProto, *state: NDArray[Any]) -> Literals:
    return Literals.of(Float64Graph.of(model), state)


def of_constant(build: Build, constant: Any, *state: NDArray[Any]) -> NDArray[Any]:
    """Return how far each element of a constant moves, over its value."""
    found = literals(build(SIZE, constants={"c": constant}), *state).moves
    return (
        np.zeros(np.shape(constant)) if "c" not in found else np.asarray(found["c"] / np.asarray(constant, np.float64))
    )


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 10000.0, 0.5, 0.125, -0.75, np.inf, -np.inf, np.nan, 3.4028235e38])
def test_what_is_exact_on_purpose_is_no_literal(value: float, build: Build) -> None:
    assert np.all(of_constant(build, np.float32(value)) == 0)


@pytest.mark.parametrize("value", [0.1, 1 / np.sqrt(3), 0.7978845608, 1e-5, -0.044715, 1e-30])
def test_a_rounded_number_moves_by_its_unit_roundoff(value: float, build: Build) -> None:
    assert of_constant(build, np.float32(value)) == pytest.approx(2.0**-24)


def test_elements_of_a_table_are_judged_one_by_one(build: Build) -> None:
    moves = of_constant(build, np.cos(np.arange(4, dtype=np.float32)))
    assert moves[0] == 0  # cos 0 is 1
    assert moves[1:] == pytest.approx(2.0**-24)


WEIGHT = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
OTHER = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
VECTOR = np.random.default_rng(2).normal(size=6).astype(np.float32)


@pytest.mark.parametrize(
    "constant",
    [
        WEIGHT,
        WEIGHT.T,
        WEIGHT.reshape(2, 2, 3),
        WEIGHT[1:3],
        WEIGHT[:, 2:].repeat(1, axis=1),
        np.concatenate([WEIGHT, OTHER]),
        np.concatenate([WEIGHT, OTHER]).T,
        WEIGHT[2],
        VECTOR[2:5],
        VECTOR.reshape(1, 2, 1, 3),
    ],
    ids=["whole", "transposed", "reshaped", "rows", "column", "packed", "packed, turned", "row", "slice", "folded"],
)
def test_weights_and_parts_of_them_are_no_literals(constant: NDArray[Any], build: Build) -> None:
    assert np.all(of_constant(build, constant, WEIGHT, OTHER, VECTOR) == 0)


def test_a_changed_weight_is_a_literal(build: Build) -> None:
    assert np.all(of_constant(build, WEIGHT * np.float32(1.1), WEIGHT) > 0)


def test_a_scalar_that_equals_an_element_of_a_weight_is_a_literal(build: Build) -> None:
    assert of_constant(build, VECTOR[3], VECTOR) == pytest.approx(2.0**-24)


@pytest.mark.parametrize(("name", "dtype", "bits"), [("float16", np.float16, 11), ("bfloat16", ml_dtypes.bfloat16, 8)])
def test_half_types_move_by_their_own_unit_roundoff(name: str, dtype: Any, bits: int, build: Build) -> None:
    model = build(SUM.replace("float[", f"{name}["), constants={"c": np.array(0.1, dtype)})
    value = float(np.array(0.1, dtype))
    assert literals(model).moves["c"] / value == pytest.approx(2.0**-bits)


def test_double_constants_and_scales_of_resize_are_no_literals(build: Build) -> None:
    double = build(SUM.replace("float[", "double["), constants={"c": np.float64(0.1)})
    assert not literals(double).moves
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    larger (float[1, 3] x) => (float[1, m] y) { y = Resize <mode = "nearest"> (x, , scales) }"""
    assert not literals(build(text, constants={"scales": np.array([1, 2.3333334], np.float32)})).moves


def test_sensitivity_of_a_factor_is_its_unit_roundoff(build: Build) -> None:
    found = literals(build(SUM, constants={"c": np.float32(0.1)}))
    inputs = {"x": np.ones((2, 3), np.float32)}
    moved = found.sensitivity(inputs, found.graph.run(inputs))
    assert moved == {"y": pytest.approx(2.0**-24)}


def test_literals_inside_function_bodies_and_subgraphs_count(build: Build) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    inside (float[4] x, bool flag) => (float[4] y) {
        gelu = Gelu <approximate = "tanh"> (x)
        y = If (flag) <then_branch = t () => (float[4] u) { c = Constant <value_float = 0.3> ()  u = Mul (gelu, c) },
                       else_branch = e () => (float[4] v) { v = Identity (gelu) }>
    }"""
    values = {float(np.float32(array.reshape(-1)[0])) for array in _moved_constants(literals(build(text)))}
    assert {float(np.float32(0.3)), float(np.float32(0.044715))} <= values


def _moved_constants(found: Literals) -> list[NDArray[Any]]:
    return [np.asarray(found.graph.constants[name]) for name in found.moves]


def test_float_attributes_of_nodes_without_a_body_count(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    product (float[2, 2] x) => (float[2, 2] y) { y = Gemm <alpha = 0.3> (x, x) }"""
    model = build(text)
    found = literals(model)
    inputs = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    base = found.graph.run(inputs)
    assert found.attributes
    moved = found.sensitivity(inputs, base)["y"]
    assert 2.0**-25 < moved < 2.0**-22
    assert np.array_equal(found.graph.run(inputs)["y"], base["y"])  # the graph itself stays
    whole = build(text.replace("0.3", "2.0"))
    assert not literals(whole).attributes
    assert literals(whole).sensitivity(inputs, base) == {"y": 0.0}


def test_attention_scale_is_a_literal_unless_it_is_exact(
    attention: nn.Module, case: Arrays, build: Build, standard_text: str
) -> None:
    state = [parameter.detach().numpy() for parameter in attention.parameters()]
    for scale, moves in [("0.3", True), ("0.25", False)]:
        text = standard_text.replace("kv_num_heads = 2", f"kv_num_heads = 2, scale = {scale}")
        found = literals(build(text, attention), *state)
        moved = found.sensitivity(case, found.graph.run(case))["output"]
        assert (moved > 1e-9) is moves
