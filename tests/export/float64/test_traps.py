"""The traps of a float64 verdict: each is sprung the plain way, off by more than 1e-10, and then avoided.

Where a trap has no plain way that can be run, its test lies with what avoids it: literals (test_literals.py), code that
computes in single precision and the encoder's fast path (test_oracle.py), what is widened and the casts that narrow
(test_widening.py), weights changed in their last place (test_graph_check.py, test_parameters.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

from crosshead.export.error import relative_l2
from crosshead.export.float64 import evaluate_float64, module_outputs_float64, widen
from crosshead.export.float64._bodies import PLAIN, open_bodies
from crosshead.export.float64._graph import Float64Graph

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]
EXACT, SPRUNG = 1e-15, 1e-10


def as_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model widened where it is easy: inputs, outputs and initializers; bodies stay closed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return copy


def doubles(inputs: Arrays) -> Arrays:
    return {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()}


@pytest.fixture
def want(attention: nn.Module, case: Arrays) -> NDArray[Any]:
    """The module in float64 by formula, its scale 1/sqrt(3) of full precision."""
    weights = {name: tensor.detach().double().numpy() for name, tensor in attention.named_parameters()}
    x = case["x"].astype(np.float64)
    query, key, value = (
        (x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]).reshape(2, 5, 2, 3).swapaxes(1, 2)
        for name in ("query", "key", "value")
    )
    scores = np.where(case["mask"], query @ key.swapaxes(-1, -2) / np.sqrt(3), -np.inf)
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    context = (chances / chances.sum(-1, keepdims=True) @ value).swapaxes(1, 2).reshape(2, 5, 6)
    return np.asarray(context @ weights["out.weight"].T + weights["out.bias"])


def test_bodies_opened_after_widening_compute_their_scale_in_float32(
    standard: onnx.ModelProto, case: Arrays, want: NDArray[Any]
) -> None:
    late = ReferenceEvaluator(open_bodies(as_double(standard), PLAIN)).run(None, doubles(case))
    assert relative_l2(np.asarray(late[0]), want) > SPRUNG  # type: ignore[index]  # a list, whatever the stub says
    assert relative_l2(Float64Graph.of(standard, PLAIN).run(case)["output"], want) < EXACT
    assert relative_l2(evaluate_float64(standard, case)["output"], want) < EXACT


def test_onnx_runtime_scales_in_float32_inside_its_attention(
    standard: onnx.ModelProto, case: Arrays, want: NDArray[Any]
) -> None:
    ort = pytest.importorskip("onnxruntime")

    def run(model: onnx.ModelProto) -> NDArray[Any]:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        output: NDArray[Any] = session.run(None, doubles(case))[0]
        assert output.dtype == np.float64
        return output

    assert relative_l2(run(as_double(standard)), want) > SPRUNG
    assert relative_l2(run(widen(standard)), want) < EXACT  # what is widened has no Attention left to send there


PLAIN_OPS: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "erf is rounded to float32": ("y = Erf (x)", lambda x: _erf(x)),
    "gelu divides by a float32 root": ("y = Gelu (x)", lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2),
    "softmax in single precision": ("y = Attention <softmax_precision = 1> (x, x, x)", lambda x: _attend(x)),
    "softmax in half precision": ("y = Attention <softmax_precision = 10> (x, x, x)", lambda x: _attend(x)),
}


def _erf(x: NDArray[Any]) -> NDArray[Any]:
    from scipy.special import erf

    return np.asarray(erf(x))


def _attend(x: NDArray[Any]) -> NDArray[Any]:
    scores = x @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1])
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(chances / chances.sum(-1, keepdims=True) @ x)


@pytest.mark.parametrize("trap", PLAIN_OPS)
def test_operators_that_the_reference_computes_in_less(trap: str) -> None:
    body, formula = PLAIN_OPS[trap]
    text = f'<ir_version: 10, opset_import: ["" : 23]> g (TYPE[1, 2, 3, 5] x) => (TYPE[1, 2, 3, 5] y) {{ {body} }}'
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 5)).astype(np.float32)
    wide = formula(x.astype(np.float64))
    (theirs,) = ReferenceEvaluator(onnx.parser.parse_model(text.replace("TYPE", "double"))).run(None, doubles({"x": x}))
    assert relative_l2(np.asarray(theirs), wide) > SPRUNG
    model = onnx.parser.parse_model(text.replace("TYPE", "float"))
    assert relative_l2(evaluate_float64(model, {"x": x})["y"], wide) < EXACT
    assert relative_l2(Float64Graph.of(model, PLAIN).run({"x": x})["y"], wide) < EXACT


def test_gather_elements_of_a_part_which_the_reference_refuses() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18]> g (double[3, 4] x, int64[2, 4] i) => (double[2, 4] y)'
        " { y = GatherElements <axis = 1> (x, i) }"
    )
    model, x, index = onnx.parser.parse_model(text), np.arange(12.0).reshape(3, 4), np.zeros((2, 4), np.int64)
    inputs: Arrays = {"x": x, "i": index}
    with pytest.raises(Exception, match="all dimensions of index and self should be the same"):
        ReferenceEvaluator(model).run(None, inputs)
    assert np.array_equal(evaluate_float64(model, inputs)["y"], np.repeat(x[:2, :1], 4, axis=1))


class SinglePrecision(nn.Module):
    """What attention code does to be safe in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.mT / 3).float()
        weights = scores.softmax(-1, dtype=torch.float32).to(torch.float32)
        output: torch.Tensor = self.norm(weights.type_as(x) @ x * 1e-3)
        return output


def test_module_in_double_computes_in_single_where_it_says_so(case: Arrays) -> None:
    module = SinglePrecision().eval()
    x = case["x"].astype(np.float64)
    scores = x @ x.swapaxes(-1, -2) / 3
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    context = chances / chances.sum(-1, keepdims=True) @ x * 1e-3
    wide = context / np.sqrt((context**2).mean(-1, keepdims=True) + np.finfo(np.float32).eps)
    with torch.no_grad():
        plain = SinglePrecision().double()(torch.from_numpy(x)).numpy()
    assert relative_l2(plain, wide) > SPRUNG
    assert relative_l2(module_outputs_float64(module, {"x": case["x"]}, ["y"])["y"], wide) < EXACT
