"""The float64 evaluator against the module, the standard's own cases, and ONNX Runtime where it has kernels."""

import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from crosshead.export.artifact import FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import _ops as ops
from crosshead.export.float64 import evaluate_float64, module_outputs_float64, widen
from crosshead.export.float64._graph import Float64Graph

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]


def evaluate(body: str, signature: str, opset: int = 23, **inputs: Any) -> NDArray[Any]:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({signature}) => (y) {{ {body} }}'
    )
    return evaluate_float64(model, {name: np.asarray(array) for name, array in inputs.items()})["y"]


def test_both_forms_equal_the_module(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto, standard: onnx.ModelProto
) -> None:
    want = module_outputs_float64(attention, case, ["output"])["output"]
    assert relative_l2(evaluate_float64(standard, case)["output"], want) < 1e-15
    assert relative_l2(evaluate_float64(decomposed, case)["output"], want) < 1e-7  # a float32 scale


def test_onnx_runtime_agrees_on_the_widened_graph(case: Arrays, decomposed: onnx.ModelProto) -> None:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(widen(decomposed).SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {"x": case["x"].astype(np.float64), "mask": case["mask"]})
    assert theirs.dtype == np.float64
    assert relative_l2(evaluate_float64(decomposed, case)["output"], theirs) < 1e-14


@settings(deadline=None)
@given(st.floats(-6, 6))
def test_erf_is_exact_to_the_last_places(x: float) -> None:
    got = float(evaluate("y = Erf (x)", "double[1] x", x=[x])[0])
    assert got == pytest.approx(math.erf(x), rel=4e-16, abs=1e-300)


def test_erf_without_scipy_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-3, 3, 31)
    with_scipy = evaluate("y = Erf (x)", "double[n] x", x=x)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    assert np.allclose(evaluate("y = Erf (x)", "double[n] x", x=x), with_scipy, rtol=4e-16, atol=0)


@settings(max_examples=50)
@given(st.data())
def test_gather_elements_takes_indices_smaller_than_the_data(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    sizes = [data.draw(st.integers(0, 5 if number == axis % len(shape) else size)) for number, size in enumerate(shape)]
    rng = np.random.default_rng(0)
    table = rng.normal(size=shape)
    indices = rng.integers(-shape[axis], shape[axis], size=sizes)
    got = evaluate(f"y = GatherElements <axis = {axis}> (x, i)", "double[a] x, int64[b] i", x=table, i=indices)
    assert got.shape == tuple(sizes)
    for place in np.ndindex(*sizes):
        source = list(place)
        source[axis] = int(indices[place])
        assert got[place] == table[tuple(source)]


def test_softmax_before_opset_13_runs_over_all_axes_from_its_axis_on() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    exponentials = np.exp(x)
    old = exponentials / exponentials.sum((1, 2), keepdims=True)
    assert relative_l2(evaluate("y = Softmax (x)", "double[2,3,4] x", opset=11, x=x), old) < 1e-15
    assert relative_l2(evaluate("y = LogSoftmax (x)", "double[2,3,4] x", opset=11, x=x), np.log(old)) < 1e-15
    new = exponentials / exponentials.sum(1, keepdims=True)
    assert relative_l2(evaluate("y = Softmax <axis = 1> (x)", "double[2,3,4] x", x=x), new) < 1e-15
    assert relative_l2(evaluate("y = LogSoftmax <axis = 1> (x)", "double[2,3,4] x", x=x), np.log(new)) < 1e-15


def test_log_softmax_does_not_underflow() -> None:
    assert evaluate("y = LogSoftmax (x)", "double[2] x", x=[0.0, 800.0]).tolist() == [-800.0, 0.0]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3), (0, 2, 3), (2, 0, 3), (5, 4, 2, 3)])
def test_matmul_with_a_matrix_of_weights(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=shape), rng.normal(size=(3, 5))
    got = evaluate("y = MatMul (a, b)", "double[n] a, double[3,5] b", a=a, b=b)
    assert got.shape == (a @ b).shape
    assert relative_l2(got, a @ b) < 1e-15
    assert (
        evaluate("y = MatMul (a, b)", "double[n] a, double[n] b", a=np.zeros((2, 3, 0)), b=np.zeros((0, 5))).sum() == 0
    )


FAMILIES = """
    attention celu elu erf gather gatherelements gathernd gelu groupnormalization hardswish layernormalization leakyrelu
    logsoftmax matmul mish rmsnormalization rotaryembedding selu softmax swish where
"""


def test_standard_cases_of_what_attention_uses() -> None:
    from onnx.backend.test.case import node

    with warnings.catch_warnings():  # numpy's, from onnx making its cases
        warnings.simplefilter("ignore")
        for family in FAMILIES.split():
            import_module(f"{node.__name__}.{family}")
    starts = tuple(f"test{family}" for family in FAMILIES.split())
    made: list[Any] = list(node._NodeTestCases)  # of these families, and of what else was imported in this process
    cases = [case for case in made if case.name.replace("_", "").startswith(starts)]
    assert len(cases) > 250
    tolerances = {onnx.TensorProto.FLOAT16: 1e-2, onnx.TensorProto.BFLOAT16: 5e-2}
    for case in cases:
        inputs, outputs = case.data_sets[0]
        feed = {value.name: np.asarray(array) for value, array in zip(case.model.graph.input, inputs, strict=False)}
        got = evaluate_float64(case.model, feed)
        types = {value.type.tensor_type.elem_type for value in case.model.graph.input}
        tolerance = max((tolerances.get(number, 1e-5) for number in types), default=1e-5)
        for name, want in zip(got, outputs, strict=True):
            wide = np.asarray(want).astype(np.float64)
            assert got[name].dtype == np.float64 or not np.issubdtype(np.asarray(want).dtype, np.floating), case.name
            assert np.allclose(got[name], wide, rtol=tolerance, atol=tolerance, equal_nan=True), case.name


def test_results_are_dropped_after_their_last_use_and_subgraphs_see_what_they_read() -> None:
    body = """
        a = Add (x, x)
        b = Mul (a, x)
        y = If (flag) <then_branch = t () => (double[2] u) { u = Add (a, b) },
                       else_branch = e () => (double[2] v) { v = Sub (a, b) }>
    """
    x = np.array([1.0, 3.0])
    assert evaluate(body, "double[2] x, bool flag", x=x, flag=True).tolist() == [4.0, 24.0]
    assert evaluate(body, "double[2] x, bool flag", x=x, flag=False).tolist() == [0.0, -12.0]


def test_scan_sees_the_values_around_it() -> None:
    body = """
        start, y = Scan <num_scan_inputs = 1, body = step (double s, double e) => (double t, double r) {
            t = Add (s, e)
            r = Mul (t, factor)
        }> (zero, x)
    """
    got = evaluate(body, "double zero, double[n] x, double factor", zero=0.0, x=[1.0, 2.0, 3.0], factor=2.0)
    assert got.tolist() == [2.0, 6.0, 12.0]


def test_extra_inputs_are_left_aside_and_missing_ones_named(case: Arrays, decomposed: onnx.ModelProto) -> None:
    assert evaluate_float64(decomposed, {**case, "unused": case["x"]}).keys() == {"output"}
    with pytest.raises(FormError, match="input 'mask' has no array; given: x"):
        evaluate_float64(decomposed, {"x": case["x"]})


def test_node_that_breaks_is_named(case: Arrays, decomposed: onnx.ModelProto) -> None:
    with pytest.raises(FormError, match=r"^Where node 'masked' cannot be evaluated in float64: "):
        evaluate_float64(decomposed, {**case, "mask": np.ones((3, 3), np.bool_)})


@pytest.mark.parametrize("entry", ops.DEVIATIONS, ids=lambda entry: entry.op)
def test_deviations_are_refused_with_their_reason(entry: ops.Deviation) -> None:
    bodies = {
        "BitCast": ("y = BitCast <to = 6> (x)", "float[2] x", 26),
        "GridSample": ("y = GridSample (x, x)", "float[1,1,2,2] x", 20),
        "Loop": (
            "z, y = Loop <body = b (int64 i, bool c, float p) => (bool d, float q, float r)"
            " { d = Identity (c)  q = Identity (p)  r = Identity (p) }> (n, t, x)",
            "int64 n, bool t, float x",
            18,
        ),
        "TfIdfVectorizer": (
            'y = TfIdfVectorizer <max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF",'
            " ngram_counts = [0], ngram_indexes = [0], pool_int64s = [1]> (x)",
            "int64[2] x",
            18,
        ),
    }
    body, signature, opset = bodies[entry.op]
    with pytest.raises(FormError, match=f"{entry.op} node '[yz]' cannot be evaluated in float64: {entry.reason}"):
        evaluate(body, signature, opset)


def test_contrib_operator_without_a_definition_is_named() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>'
        "g (float[2] x) => (float[2] y) { y = com.microsoft.Inverse (x) }"
    )
    with pytest.raises(FormError, match=r"com\.microsoft::Inverse node 'y' cannot be evaluated in float64"):
        evaluate_float64(model, {"x": np.ones(2)})


def test_importing_it_pulls_in_no_torch() -> None:
    code = (
        "import sys; from crosshead.export.float64 import evaluate_float64, widen, graph_sensitivity, narrowing_casts;"
        "print({'torch', 'onnxruntime', 'scipy'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_constants_are_widened_once_a_run_and_only_when_read(decomposed: onnx.ModelProto, case: Arrays) -> None:
    class Counted(dict[str, NDArray[Any]]):
        def __getitem__(self, name: str) -> NDArray[Any]:
            looked_up.append(name)
            return super().__getitem__(name)

    looked_up: list[str] = []
    graph = Float64Graph.of(decomposed)
    replaced = Counted({name: np.asarray(array) for name, array in graph.constants.items()})
    want = graph.run(case)["output"]
    assert np.array_equal(graph.run(case, replaced)["output"], want)
    assert sorted(looked_up) == sorted(graph.native)
