"""The graph verdict on healthy graphs, and on each fault it is there to find."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

from crosshead.export.artifact import GraphVerdict
from crosshead.export.float64 import check_graph, module_outputs_float64
from crosshead.export.float64.graph_check import MOST_CASES

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]


def check(model: onnx.ModelProto, module: nn.Module, *cases: Arrays) -> GraphVerdict:
    names = [value.name for value in model.graph.output]
    named = {f"case{number}": case for number, case in enumerate(cases)}
    expected = {name: module_outputs_float64(module, case, names) for name, case in named.items()}
    return check_graph(model, module, named, expected)


def edited(model: onnx.ModelProto, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> onnx.ModelProto:
    """Return the model with one initializer changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
            return copy
    raise KeyError(name)


def test_standard_graph_is_exact(attention: nn.Module, case: Arrays, standard: onnx.ModelProto) -> None:
    verdict = check(standard, attention, case)
    assert verdict.verdict == "pass"
    assert verdict.rel_l2 is not None
    assert verdict.rel_l2 < 1e-15
    assert verdict.literal_sensitivity == 0.0
    assert verdict.parameters_equal is True
    assert verdict.detail == ""


def test_float32_scale_is_within_its_literal_sensitivity(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto
) -> None:
    verdict = check(decomposed, attention, case)
    assert verdict.verdict == "pass"
    assert verdict.rel_l2 is not None
    assert verdict.literal_sensitivity is not None
    assert 1e-10 < verdict.rel_l2 < 1.5 * verdict.literal_sensitivity < 1e-7


FAULTS = {
    "scale dropped": ("scores = Mul (raw, scale)", "scores = Identity (raw)"),
    "mask inverted": ("Where (mask, scores, fill)", "Where (mask, fill, scores)"),
    "mask dropped": ("masked = Where (mask, scores, fill)", "masked = Identity (scores)"),
    "bias dropped": ("output = Add (product, out_bias)", "output = Identity (product)"),
    "wrong softmax axis": ("Softmax <axis = -1>", "Softmax <axis = -2>"),
    "key and value swapped": ("key_product = MatMul (x, key_weight)", "key_product = MatMul (x, value_weight)"),
    "heads swapped": (
        "context = MatMul (weights, value)",
        "order = Constant <value_ints = [1, 0]> ()\n swapped = Gather <axis = 1> (value, order)\n"
        "context = MatMul (weights, swapped)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_arithmetic_fails(
    fault: str, attention: nn.Module, case: Arrays, build: Build, decomposed_text: str
) -> None:
    broken = decomposed_text.replace(*FAULTS[fault])
    assert broken != decomposed_text
    verdict = check(build(broken, attention), attention, case)
    assert verdict.verdict == "fail"
    assert verdict.rel_l2 is not None
    assert verdict.rel_l2 > 1e-3
    assert "output 'output' of case 'case0' is off by" in verdict.detail


@pytest.mark.parametrize("relative", [1e-3, 1e-6, 1e-7 * 4])
def test_slightly_wrong_scale_fails(
    relative: float, attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto
) -> None:
    model = edited(decomposed, "scale", lambda scale: np.asarray(scale * np.float32(1 + relative)))
    assert check(model, attention, case).verdict == "fail"


def test_weight_changed_in_its_last_place_is_named(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto, standard: onnx.ModelProto
) -> None:
    def nudge(weight: NDArray[Any]) -> NDArray[Any]:
        weight[2, 4] = np.nextafter(weight[2, 4], np.float32(9))
        return weight

    for model in (decomposed, standard):
        verdict = check(edited(model, "value_weight", nudge), attention, case)
        assert verdict.verdict == "fail"
        assert verdict.parameters_equal is False
        assert "value.weight differs from the graph's in 1 of 36 elements, first at [4, 2]" in verdict.detail
        assert verdict.rel_l2 is not None
        assert verdict.rel_l2 < 1e-7  # which is why no comparison of outputs would find it


def test_output_differing_in_the_graph_is_named(
    attention: nn.Module, case: Arrays, build: Build, decomposed_text: str
) -> None:
    other = decomposed_text.replace("output = Add", "sum = Add").replace(
        "out_bias)\n", "out_bias)\n last = Constant <value_ints = [0]> ()\n output = Gather <axis = 1> (sum, last)\n"
    )
    assert "has shape (2, 1, 6) in the graph and (2, 5, 6)" in check(build(other, attention), attention, case).detail


def test_size_baked_into_the_graph_fails_on_a_case_of_another(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto
) -> None:
    baked = edited(decomposed, "merge", lambda _: np.array([2, 5, 6]))
    longer = {"x": np.concatenate([case["x"], case["x"]], 1), "mask": np.tri(10, dtype=np.bool_)}
    assert check(baked, attention, case).verdict == "pass"
    verdict = check(baked, attention, case, longer)
    assert verdict.verdict == "fail"
    assert "case 'case1': Reshape node 'merged' cannot be evaluated" in verdict.detail


def test_fully_masked_row_is_right_in_the_standard_graph_and_nan_in_a_plain_one(
    attention: nn.Module, case: Arrays, decomposed: onnx.ModelProto, standard: onnx.ModelProto
) -> None:
    case["mask"] = np.array(case["mask"])
    case["mask"][3] = False
    assert check(standard, attention, case).verdict == "pass"
    verdict = check(decomposed, attention, case)
    assert verdict.verdict == "fail"
    assert verdict.rel_l2 == np.inf


def test_without_cases_only_the_weights_are_judged(attention: nn.Module, standard: onnx.ModelProto) -> None:
    verdict = check_graph(standard, attention, {}, {})
    assert (verdict.verdict, verdict.parameters_equal) == ("not-asked", True)
    assert (verdict.rel_l2, verdict.literal_sensitivity) == (None, None)
    assert "no case" in verdict.detail
    changed = edited(standard, "out_bias", lambda bias: np.nextafter(bias, np.float32(9)))
    assert check_graph(changed, attention, {}, {}).verdict == "fail"


def test_many_cases_are_cut_and_the_detail_says_so(
    attention: nn.Module, case: Arrays, standard: onnx.ModelProto
) -> None:
    verdict = check(standard, attention, *[case] * (MOST_CASES + 3))
    assert verdict.verdict == "pass"
    assert verdict.detail == f"{MOST_CASES} of {MOST_CASES + 3} cases were evaluated"


def test_random_graph_is_not_asked(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    random (float[n] x) => (float[n] y) {
        ratio = Constant <value_float = 0.5> ()
        training = Constant <value = bool {1}> ()
        y = Dropout (x, ratio, training)
    }"""
    module = nn.Dropout(0.5)
    verdict = check(build(text), module, {"x": np.ones(4, np.float32)})
    assert verdict.verdict == "not-asked"
    assert "Dropout node 'y' draws random numbers" in verdict.detail


def test_graph_without_float64_evaluation_is_weak(build: Build) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    sampled (float[1, 1, 3, 3] x, float[1, 2, 2, 2] grid) => (float[1, 1, 2, 2] y) { y = GridSample (x, grid) }"""

    class Sampled(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return nn.functional.grid_sample(x, grid, align_corners=False)

    case = {"x": np.ones((1, 1, 3, 3), np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)}
    verdict = check(build(text), Sampled(), case)
    assert verdict.verdict == "weak"
    assert "GridSample node 'y'" in verdict.detail


def test_coarse_literals_make_the_verdict_weak(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    wrapped (float[n] x) => (float[n] y) { turned = Mul (x, rate)\n y = Cos (turned) }"""

    class Wrapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cos(x * 12345.678)

    case = {"x": np.linspace(1, 2, 7, dtype=np.float32)}
    verdict = check(build(text, constants={"rate": np.float32(12345.678)}), Wrapped(), case)
    assert verdict.verdict == "weak"
    assert verdict.literal_sensitivity is not None
    assert verdict.literal_sensitivity > 1e-6


class Rotary(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = 10000.0 ** (-torch.arange(0, 8, 2).float() / 8)
        angle = torch.outer(torch.arange(x.shape[0]).float(), rates)
        return torch.cat((x[:, :4] * angle.cos(), x[:, 4:] * angle.sin()), -1)


ROTARY = """
<ir_version: 8, opset_import: ["" : 18]>
rotary (float[n, 8] x) => (float[n, 8] y) {
    low, high = Split <axis = 1, num_outputs = 2> (x)
    low_turned = Mul (low, cos)
    high_turned = Mul (high, sin)
    y = Concat <axis = 1> (low_turned, high_turned)
}"""


def rotary_tables(length: int, base: float = 10000.0) -> Arrays:
    """As an exporter folds them: in float32 all the way."""
    rates = np.float32(base) ** (-np.arange(0, 8, 2, dtype=np.float32) / np.float32(8))
    angle = np.outer(np.arange(length, dtype=np.float32), rates)
    return {"cos": np.cos(angle), "sin": np.sin(angle)}


@pytest.mark.parametrize("length", [3, 100])
def test_rotary_tables_folded_in_float32_pass(length: int, build: Build) -> None:
    case = {"x": np.random.default_rng(0).normal(size=(length, 8)).astype(np.float32)}
    verdict = check(build(ROTARY, constants=rotary_tables(length)), Rotary(), case)
    assert verdict.verdict == "pass"
    assert verdict.rel_l2 is not None
    assert verdict.rel_l2 > 1e-10


@pytest.mark.parametrize("base", [9999.0, 10000.01, 500000.0])
def test_rotary_tables_of_another_base_fail(base: float, build: Build) -> None:
    case = {"x": np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)}
    assert check(build(ROTARY, constants=rotary_tables(100, base)), Rotary(), case).verdict == "fail"


def test_integer_and_boolean_outputs_must_be_equal(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    pick (float[n] x) => (int64 best, bool[n] positive) {
        best = ArgMax <axis = 0, keepdims = 0> (x)
        positive = Greater (x, zero)
    }"""

    class Pick(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.argmax(), x > 0

    case = {"x": np.array([-1.0, 3.0, 0.0, 2.0], np.float32)}
    sound = check(build(text, constants={"zero": np.float32(0)}), Pick(), case)
    assert (sound.verdict, sound.rel_l2, sound.literal_sensitivity) == ("pass", None, None)
    wrong = check(build(text.replace("ArgMax", "ArgMin"), constants={"zero": np.float32(0)}), Pick(), case)
    assert wrong.verdict == "fail"
    assert "output 'best' of case 'case0' differs in 1 of 1 elements, and is int64" in wrong.detail


def test_scalars_empty_axes_and_nan_are_compared(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    root (float[n, m] x) => (float[n, m] y, float total) {
        y = Sqrt (x)
        total = ReduceSum <keepdims = 0> (y)
    }"""

    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sqrt(), x.sqrt().sum()

    cases: list[Arrays] = [
        {"x": np.array([[4.0, 2.0]], np.float32)},
        {"x": np.zeros((0, 3), np.float32)},
        {"x": np.array([[-1.0, 2.0]], np.float32)},  # NaN on both sides
    ]
    verdict = check(build(text), Root(), *cases)
    assert verdict.verdict == "pass"
    assert verdict.rel_l2 is not None
    assert verdict.rel_l2 < 1e-15
    wrong = text.replace("y = Sqrt (x)", "abs = Abs (x)\n y = Sqrt (abs)")
    assert check(build(wrong), Root(), cases[2]).verdict == "fail"


def test_output_lost_from_the_graph_fails(attention: nn.Module, case: Arrays, standard: onnx.ModelProto) -> None:
    expected: Mapping[str, Arrays] = {"one": {**module_outputs_float64(attention, case, ["gone"])}}
    verdict = check_graph(standard, attention, {"one": case}, expected)
    assert verdict.verdict == "fail"
    assert "output 'gone' of case 'one' is not in the graph" in verdict.detail


def test_order_of_the_expected_outputs_does_not_matter(build: Build) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    two (float[n, 8] x) => (float[n, 8] z, float[n, 8] a) { z = Mul (x, table)\n a = Identity (x) }"""

    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * (torch.arange(8).float() * 100.1).cos(), x

    table = np.cos(np.arange(8, dtype=np.float32) * np.float32(100.1))  # folded: off by more than its own rounding
    model = build(text, constants={"table": table})
    case = {"x": np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)}
    expected = module_outputs_float64(Two(), case, ["z", "a"])
    straight = check_graph(model, Two(), {"one": case}, {"one": expected})
    assert straight.verdict == "weak"
    assert "tables folded" in straight.detail
    assert check_graph(model, Two(), {"one": case}, {"one": {name: expected[name] for name in "az"}}) == straight
