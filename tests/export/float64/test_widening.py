"""A widened model is valid, computes in double, and means the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from crosshead.export.artifact import FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import evaluate_float64, narrowing_casts, widen

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]
NARROW = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def parsed(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    return model


def narrow_places(graph: onnx.GraphProto) -> list[str]:
    """Return where a narrow float type is still named."""
    places = [f"initializer {tensor.name}" for tensor in graph.initializer if tensor.data_type in NARROW]
    values = (*graph.input, *graph.output, *graph.value_info)
    places += [f"value {value.name}" for value in values if value.type.tensor_type.elem_type in NARROW]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == attribute.GRAPH:
                places += narrow_places(attribute.g)
                continue
            named = attribute.name in ("to", "dtype", "stash_type", "softmax_precision") and attribute.i in NARROW
            value = attribute.t.data_type in NARROW or attribute.name in ("value_float", "value_floats")
            places += [f"{node.op_type}.{attribute.name}"] if named or value else []
    return places


EVERYWHERE = """
<ir_version: 10, opset_import: ["" : 23, "local" : 1]>
everywhere (float[2, 4] x, bool flag) => (float[2, 4] y)
<float[4] weight = {0.1, 0.2, 0.3, 0.4}> {
    one = Constant <value = float {0.7}> ()
    two = Constant <value_float = 0.3> ()
    three = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> ()
    shape = Constant <value_ints = [2, 4]> ()
    zeros = ConstantOfShape (shape)
    tenths = ConstantOfShape <value = float[1] {0.1}> (shape)
    whole = Cast <to = 7> (x)
    back = Cast <to = 1> (whole)
    eye = EyeLike <dtype = 1> (x)
    gelu = Gelu (x)
    norm = LayerNormalization <axis = -1> (gelu, weight, weight)
    root = RMSNormalization (norm, weight)
    own = local.tenth (root)
    branch = If (flag) <
        then_branch = yes () => (float[2, 4] a) { a_scale = Constant <value_float = 0.9> ()  a = Mul (own, a_scale) },
        else_branch = no () => (float[2, 4] b) { a_scale = Constant <value_float = 0.8> ()  b = Mul (own, a_scale) }
    >
    y = Sum (one, two, three, zeros, tenths, back, eye, branch)
}
<domain: "local", opset_import: ["" : 23]>
tenth (u) => (v) { factor = Constant <value_float = 0.1> ()  v = Mul (u, factor) }
"""


def test_nothing_narrow_is_left_and_the_model_is_valid() -> None:
    model = parsed(EVERYWHERE)
    before = model.SerializeToString()
    result = widen(model)
    onnx.checker.check_model(result, full_check=True)
    assert narrow_places(result.graph) == []
    assert not result.functions
    assert model.SerializeToString() == before


@pytest.mark.parametrize("flag", [True, False])
def test_values_are_those_of_the_text(flag: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4))
    from scipy.special import erf

    f = {name: float(np.float32(name)) for name in ("0.1", "0.2", "0.3", "0.4", "0.7", "0.8", "0.9")}
    weight = np.array([f["0.1"], f["0.2"], f["0.3"], f["0.4"]])
    gelu = x * (1 + erf(x / np.sqrt(2))) / 2
    eps = float(np.float32(1e-5))
    norm = (gelu - gelu.mean(-1, keepdims=True)) / np.sqrt(gelu.var(-1, keepdims=True) + eps) * weight + weight
    root = norm / np.sqrt((norm**2).mean(-1, keepdims=True) + eps) * weight
    own = root * f["0.1"] * (f["0.9"] if flag else f["0.8"])
    want = f["0.7"] + f["0.3"] + weight + f["0.1"] + np.trunc(x) + np.eye(2, 4) + own
    got = evaluate_float64(parsed(EVERYWHERE), {"x": x, "flag": np.array(flag)})["y"]
    assert relative_l2(got, want) < 1e-15


def test_attention_inlined_before_widening_has_its_scale_in_double(
    attention: nn.Module, case: Arrays, standard: onnx.ModelProto
) -> None:
    late = onnx.ModelProto()
    late.CopyFrom(standard)
    for tensor in late.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    right = evaluate_float64(standard, case)["output"]
    assert all(node.op_type != "Attention" for node in widen(standard).graph.node)
    assert relative_l2(evaluate_float64(late, case)["output"], right) < 1e-15


@pytest.mark.parametrize("precision", [1, 10, 16])
def test_precision_of_a_softmax_inside_attention_is_widened(precision: int) -> None:
    model = parsed(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[1, 1, 2, 4] q) => (float[1, 1, 2, 4] y)'
        f" {{ y = Attention <softmax_precision = {precision}> (q, q, q) }}"
    )
    assert narrow_places(widen(model).graph) == []
    onnx.checker.check_model(widen(model), full_check=True)


@pytest.mark.parametrize("default", ["MelWeightMatrix", "RandomNormal", "RandomUniform", "SequenceEmpty"])
def test_dtype_that_is_left_out_is_float32_and_widened(default: str) -> None:
    texts = {
        "MelWeightMatrix": ("MelWeightMatrix (n, n, n, x, x)", "float[a, b] y", "int64 n, float x"),
        "RandomNormal": ("RandomNormal <shape = [2]> ()", "float[2] y", ""),
        "RandomUniform": ("RandomUniform <shape = [2]> ()", "float[2] y", ""),
        "SequenceEmpty": ("SequenceEmpty ()", "seq(float[n]) y", ""),
    }
    call, output, inputs = texts[default]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({output}) {{ y = {call} }}'
    )
    onnx.checker.check_model(widen(model), full_check=True)  # the type of the output is double as well


def test_initializers_of_subgraphs_are_widened() -> None:
    model = parsed("""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[2] x, bool flag) => (float[2] y) {
        y = If (flag) <
            then_branch = t () => (float[2] u) <float[2] c = {0.1, 0.3}> { u = Mul (x, c) },
            else_branch = e () => (float[2] v) { v = Identity (x) }
        >
    }""")
    result = widen(model)
    onnx.checker.check_model(result, full_check=True)
    assert narrow_places(result.graph) == []
    got = evaluate_float64(model, {"x": np.array([3.0, 3.0]), "flag": np.array(True)})["y"]
    assert got.tolist() == [3 * float(np.float32(0.1)), 3 * float(np.float32(0.3))]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_types_are_widened_exactly(dtype: Any, build: Build) -> None:
    name = {"float16": "float16", "float32": "float"}[np.dtype(dtype).name]
    text = f'<ir_version: 8, opset_import: ["" : 18]> g ({name}[n] x) => ({name}[n] y) {{ y = Mul (x, c) }}'
    tenth = np.array(0.1, dtype)
    got = evaluate_float64(build(text, constants={"c": tenth}), {"x": np.array([3], dtype)})["y"]
    assert got[0] == 3 * float(tenth)


def test_scales_of_resize_stay_float_and_sizes_are_kept() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    larger (float[1, 1, 3] x) => (float[1, 1, m] y) <float[3] scales = {1, 1, 2.3333334}> {
        y = Resize <mode = "linear"> (x, , scales)
    }"""
    model = parsed(text)
    result = widen(model)
    onnx.checker.check_model(result, full_check=True)
    assert evaluate_float64(model, {"x": np.ones((1, 1, 3))})["y"].shape == (1, 1, 7)


def test_constant_that_is_an_output_keeps_its_name() -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g () => (float y) { y = Constant <value_float = 0.1> () }'
    assert evaluate_float64(parsed(text), {})["y"] == float(np.float32(0.1))


def test_sparse_and_unloaded_constants_are_refused_by_name() -> None:
    sparse = parsed('<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Identity (x) }')
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    with pytest.raises(FormError, match="sparse initializers"):
        widen(sparse)
    away = parsed('<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Identity (x) }')
    tensor = away.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    with pytest.raises(FormError, match="data of 'w' lies in another file"):
        widen(away)


def test_invalid_graph_is_one_line() -> None:
    model = parsed('<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Identity (x) }')
    model.graph.node[0].domain = "nowhere"
    with pytest.raises(FormError, match=r"^the functions of this graph cannot be opened: [^\n]*nowhere[^\n]*$"):
        widen(model)


def test_narrowing_casts_are_listed_and_widening_ones_are_not() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 23]>
    casts (float[2, 4] x, float16[4] like, double[4] d) => (float[2, 4] y) {
        half = Cast <to = 10> (x)
        single = Cast <to = 1> (half)
        brain = Cast <to = 16> (half)
        again = Cast <to = 10> (brain)
        alike = CastLike (x, like)
        narrow = Cast <to = 1> (d)
        same = Cast <to = 1> (x)
        whole = Cast <to = 7> (x)
        y = Identity (single)
    }"""
    assert narrowing_casts(parsed(text)) == [
        "Cast 'half' narrows float32 to float16",
        "Cast 'brain' narrows float16 to bfloat16",
        "Cast 'again' narrows bfloat16 to float16",
        "CastLike 'alike' narrows float32 to float16",
        "Cast 'narrow' narrows float64 to float32",
    ]


def test_narrow_inner_precision_and_subgraphs_are_listed() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 23]>
    inner (float[1, 1, 2, 4] q, bool flag) => (float[1, 1, 2, 4] y) {
        a = Attention <softmax_precision = 10> (q, q, q)
        y = If (flag) <
            then_branch = yes () => (float[1, 1, 2, 4] t) { h = Cast <to = 10> (a)  t = Cast <to = 1> (h) },
            else_branch = no () => (float[1, 1, 2, 4] e) { e = Identity (a) }
        >
    }"""
    assert narrowing_casts(parsed(text)) == [
        "Attention 'a' computes in float16 on float32 (softmax_precision)",
        "Cast 'h' narrows float32 to float16",
    ]


def test_plain_graphs_have_no_narrowing_casts(decomposed: onnx.ModelProto, standard: onnx.ModelProto) -> None:
    assert narrowing_casts(decomposed) == []
    assert narrowing_casts(standard) == []
