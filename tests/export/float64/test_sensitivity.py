"""Sensitivity: exact where it can be worked out, seeded, and without a trace on the module."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from crosshead.export.artifact import UNIT_ROUNDOFFS, Precision
from crosshead.export.error import relative_l2
from crosshead.export.float64 import (
    evaluate_float64,
    graph_sensitivity,
    module_outputs_float64,
    module_sensitivity,
)

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]


class Each(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def of_module(module: nn.Module, case: Arrays, precision: Precision = "fp32", count: int = 1) -> Any:
    expected = module_outputs_float64(module, case, [f"y{number}" for number in range(count)])
    return module_sensitivity(module, case, expected, precision)


def test_unit_roundoff_is_half_the_spacing_at_one() -> None:
    assert UNIT_ROUNDOFFS["fp32"] == np.finfo(np.float32).eps / 2
    assert UNIT_ROUNDOFFS["fp16"] == np.finfo(np.float16).eps / 2
    assert UNIT_ROUNDOFFS["bf16"] == torch.finfo(torch.bfloat16).eps / 2


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_identity_moves_by_one_unit_roundoff(precision: Precision) -> None:
    case = {"x": np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)}
    whole, row = of_module(Each(lambda x: x), case, precision)["y0"]
    assert whole == pytest.approx(UNIT_ROUNDOFFS[precision], rel=1e-6)
    assert UNIT_ROUNDOFFS[precision] <= row * 1.000001


def test_a_product_moves_with_inputs_and_weights_and_the_module_stays() -> None:
    module = nn.Linear(1, 1, bias=False)
    before = module.weight.detach().clone()
    moved = of_module(module, {"input": np.array([[3.3]], np.float32)})["y0"]
    assert moved[0] == pytest.approx(2 * 2.0**-24, rel=1e-6)  # both up in one of the eight draws, or both down
    assert torch.equal(module.weight, before)


def test_cancellation_is_seen() -> None:
    case = {"x": np.array([[1000.3, -1000.2]], np.float32)}
    whole, _ = of_module(Each(lambda x: x.sum(-1)), case)["y0"]
    assert whole > 5000 * UNIT_ROUNDOFFS["fp32"]


def test_the_worst_row_is_at_least_the_whole() -> None:
    rows = np.array([[1.5, 1.5], [1000.3, -1000.2]], np.float32)
    whole, row = of_module(Each(lambda x: torch.stack([x, x.sum(-1, keepdim=True) * torch.ones(2)])), {"x": rows})["y0"]
    assert row > whole > 0


def test_draws_are_seeded(attention: nn.Module, case: Arrays) -> None:
    assert of_module(attention, case) == of_module(attention, case)


def test_it_is_the_scale_of_the_native_error(attention: nn.Module, case: Arrays) -> None:
    with torch.no_grad():
        native = attention(torch.from_numpy(case["x"]), torch.from_numpy(case["mask"])).numpy()
    error = relative_l2(native, module_outputs_float64(attention, case, ["y"])["y"])
    whole, row = of_module(attention, case)["y0"]
    assert whole / 20 < error < 5 * whole
    assert row >= whole / 2


FIXED = {
    "infinities": np.array([[1.5, -np.inf]], np.float32),
    "nan": np.array([[1.5, np.nan]], np.float32),
    "lowest float32": np.array([[1.5, np.finfo(np.float32).min]], np.float32),
    "lowest float16": np.array([[1.5, np.finfo(np.float16).min]], np.float32),
}


@pytest.mark.parametrize("name", FIXED)
def test_infinities_nan_and_ends_of_a_range_stay(name: str) -> None:
    case = {"x": FIXED[name]}
    expected = module_outputs_float64(Each(lambda x: x), case, ["y"])
    seen: list[NDArray[Any]] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.numpy().copy())
        return x

    module_sensitivity(Each(look), case, expected, "fp32")
    assert len(seen) == 8
    for x in seen:
        assert x[0, 0] != 1.5
        assert np.array_equal(x[0, 1], case["x"][0, 1], equal_nan=True)


def test_integers_booleans_and_a_mask_of_whole_numbers_stay() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            scores = x[:, ids] + (1 - mask) * torch.finfo(x.dtype).min
            return scores.masked_fill(~keep, -torch.inf).softmax(-1)

    case = {
        "x": np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32),
        "mask": np.array([1, 1, 0], np.float32),
        "ids": np.array([2, 0, 1]),
        "keep": np.array([True, False, True]),
    }
    whole, _ = of_module(Masked(), case)["y0"]
    assert whole < 1e-6


def test_buffers_and_plain_tensors_move_too() -> None:
    class Tables(nn.Module):
        table: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.tensor([1.25]))
            self.plain = torch.tensor([1.75])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.table * x.size(0), self.plain * x.size(0)

    moved = of_module(Tables(), {"x": np.zeros(3, np.int64)}, count=2)
    assert moved["y0"][0] == pytest.approx(2.0**-24, rel=1e-6)
    assert moved["y1"][0] == pytest.approx(2.0**-24, rel=1e-6)


def test_only_float_outputs_have_a_sensitivity_and_empty_ones_have_none() -> None:
    module = Each(lambda x: (x, x.argmax(), x > 0, x[:0], x.sum()))
    moved = of_module(module, {"x": np.array([1.5, 2.5], np.float32)}, count=5)
    assert list(moved) == ["y0", "y3", "y4"]
    assert moved["y3"] == (0.0, 0.0)
    assert moved["y4"][0] > 0


def test_graph_and_module_agree(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto, standard: onnx.ModelProto
) -> None:
    want = of_module(attention, case)["y0"]
    for model in (decomposed, standard):
        got = graph_sensitivity(model, case, evaluate_float64(model, case), "fp32")["output"]
        assert got[0] == pytest.approx(want[0], rel=0.5)
        assert got[1] == pytest.approx(want[1], rel=0.5)


def test_of_a_graph_weights_move_and_exponents_and_sizes_do_not(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    powers (float[1, 1, 3] x) => (float[1, 1, m] y) {
        square = Pow (x, two)
        larger = Resize <mode = "nearest"> (square, , scales)
        y = Mul (larger, weight)
    }"""
    constants = {
        "two": np.float32(2),
        "scales": np.array([1, 1, 2.3333334], np.float32),
        "weight": np.array([0.3], np.float32),
    }
    case = {"x": np.array([[[-1.5, 2.5, 3.5]]], np.float32)}  # a negative base with another exponent is NaN
    model = build(text, constants=constants)
    whole, _ = graph_sensitivity(model, case, evaluate_float64(model, case), "fp32")["y"]
    assert 2.0**-24 < whole < 4 * 2.0**-24
