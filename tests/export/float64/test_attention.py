"""Attention in float64 against the body in the standard's schema, and where that and the reference are wrong."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from crosshead.export.artifact import FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import evaluate_float64
from crosshead.export.float64._bodies import PLAIN
from crosshead.export.float64._formats import to_bits
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64.emulation import emulate

Arrays = dict[str, NDArray[Any]]


def attention(inputs: Arrays, opset: int = 25, outputs: str = "y", **attributes: Any) -> onnx.ModelProto:
    """Return one Attention node; `inputs` in the order of the operator, missing ones named and left out."""
    names = ["q", "k", "v", "mask", "past_key", "past_value", "nonpad"]
    fed = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    given = [name if name in inputs else "" for name in names]
    node = onnx.helper.make_node("Attention", given, outputs.split(), **attributes)
    made = [
        onnx.helper.make_tensor_value_info(name, fed[0].type.tensor_type.elem_type, None) for name in outputs.split()
    ]
    graph = onnx.helper.make_graph([node], "attention", fed, made)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def draw(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.normal(size=shape).astype(np.float32)


@st.composite
def calls(draws: st.DrawFn) -> tuple[Arrays, dict[str, Any]]:
    """Draw what an Attention node may be given."""
    rng = np.random.default_rng(draws(st.integers(0, 1000)))
    batch, groups, repeats, queries, new, past = (draws(st.integers(1, high)) for high in (2, 2, 3, 4, 4, 3))
    heads, size, value_size = groups * repeats, draws(st.integers(1, 4)), draws(st.integers(1, 4))
    shapes: list[tuple[int, ...]] = [
        (batch, heads, queries, size),
        (batch, groups, new, size),
        (batch, groups, new, value_size),
    ]
    attributes: dict[str, Any] = {"qk_matmul_output_mode": draws(st.integers(0, 3))}
    if draws(st.booleans()):
        shapes = [(batch, length, axis * d) for _, axis, length, d in shapes]
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    inputs: Arrays = {name: draw(rng, *shape) for name, shape in zip("qkv", shapes, strict=True)}
    cache = draws(st.sampled_from(["none", "past", "nonpad"]))
    keys = new
    if cache == "past":
        keys += past
        inputs["past_key"] = draw(rng, batch, groups, past, size)
        inputs["past_value"] = draw(rng, batch, groups, past, value_size)
    elif cache == "nonpad":
        inputs["nonpad"] = rng.integers(0, new + 1, size=batch)
    mask = draws(st.sampled_from(["none", "bool", "float"]))
    if mask != "none":
        shape = [axis if draws(st.booleans()) else 1 for axis in (batch, heads, queries)][draws(st.integers(0, 2)) :]
        drawn = rng.integers(0, 3, size=(*shape, keys)) > 0
        inputs["mask"] = drawn if mask == "bool" else np.where(drawn, draw(rng, *drawn.shape), np.float32(-np.inf))
    attributes["is_causal"] = draws(st.integers(0, 1))
    if draws(st.booleans()):
        attributes["softcap"] = 1.5
    if draws(st.booleans()):
        attributes["scale"] = 0.25
    if draws(st.booleans()):
        attributes |= {"left_window_size": draws(st.integers(-1, 3)), "right_window_size": draws(st.integers(-1, 3))}
    return inputs, attributes


@settings(max_examples=150, deadline=None)
@given(call=calls())
def test_equals_the_body_in_the_schema(call: tuple[Arrays, dict[str, Any]]) -> None:
    inputs, attributes = call
    if "mask" in inputs and inputs["mask"].shape[-1] == 1 < inputs["k"].shape[-2] + ("past_key" in inputs):
        return  # tested below
    outputs = "y present_key present_value qk" if "nonpad" not in inputs else "y"
    model = attention(inputs, outputs=outputs, **attributes)
    ours = evaluate_float64(model, inputs)
    opened = Float64Graph.of(model, PLAIN)
    assert all(node.op_type != "Attention" for node in opened.model.graph.node)
    body = opened.run(inputs)
    for name, want in body.items():
        assert ours[name].shape == want.shape, name
        assert relative_l2(ours[name], want) < 1e-14, name


def test_mask_of_one_key_is_broadcast_over_the_keys() -> None:
    """torch takes (L, 1) so; the reference evaluator and the body pad it with -inf."""
    rng = np.random.default_rng(0)
    query, key = draw(rng, 2, 2, 3, 4), draw(rng, 2, 2, 5, 4)
    for mask in (np.array([[True], [False], [True]]), np.array([[0.5], [-np.inf], [2.0]], np.float32)):
        inputs: Arrays = {"q": query, "k": key, "v": key, "mask": mask}
        added = torch.from_numpy(mask) if mask.dtype == np.bool_ else torch.from_numpy(mask).double()
        q, k = (torch.from_numpy(x).double() for x in (query, key))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=added).numpy()
        model = attention(inputs)
        assert relative_l2(evaluate_float64(model, inputs)["y"], want) < 1e-14
        (theirs,) = ReferenceEvaluator(model).run(None, inputs)
        assert relative_l2(np.asarray(theirs), want) > 0.1  # a release may put it right


def test_mode_0_gives_the_scores_before_the_cap() -> None:
    """The reference evaluator gives the capped ones (onnxruntime#26813)."""
    rng = np.random.default_rng(0)
    inputs = {name: draw(rng, 1, 2, 3, 4) * 3 for name in "qkv"}
    model = attention(inputs, outputs="y pk pv qk", softcap=0.5, qk_matmul_output_mode=0)
    scores = inputs["q"].astype(np.float64) @ inputs["k"].astype(np.float64).swapaxes(-1, -2) / 2
    assert relative_l2(evaluate_float64(model, inputs)["qk"], scores) < 1e-15
    *_, theirs = ReferenceEvaluator(model).run(None, inputs)
    assert relative_l2(np.asarray(theirs), scores) > 0.1


def test_mask_shorter_than_the_keys_masks_the_rest() -> None:
    rng = np.random.default_rng(0)
    inputs = {name: draw(rng, 1, 2, 5, 4) for name in "qkv"}
    long = np.ones((5, 5), np.bool_)
    long[:, 3:] = False
    want = evaluate_float64(attention({**inputs, "mask": long}), {**inputs, "mask": long})["y"]
    short = {**inputs, "mask": long[:, :3]}
    assert np.array_equal(evaluate_float64(attention(short), short)["y"], want)


def test_fully_masked_rows_are_zero_and_leak_no_nan() -> None:
    rng = np.random.default_rng(0)
    inputs = {name: draw(rng, 1, 2, 3, 4) for name in "qkv"}
    inputs["q"][:, :, 1] = np.inf
    inputs["mask"] = np.array([[True, True, True], [False, False, False], [True, False, True]])
    got = evaluate_float64(attention(inputs), inputs)["y"]
    assert np.all(got[:, :, 1] == 0)
    assert np.all(np.isfinite(got))
    assert np.all(got[:, :, 0] != 0)


def test_no_keys_at_all_give_zero() -> None:
    rng = np.random.default_rng(0)
    inputs = {"q": draw(rng, 1, 2, 3, 4), "k": draw(rng, 1, 2, 0, 4), "v": draw(rng, 1, 2, 0, 5)}
    got = evaluate_float64(attention(inputs), inputs)["y"]
    assert got.shape == (1, 2, 3, 5)
    assert np.all(got == 0)


def test_products_inside_are_rounded_before_they_are_scaled() -> None:
    rng = np.random.default_rng(0)
    inputs = {name: draw(rng, 1, 2, 6, 8) for name in "qkv"}

    def tf32(x: Any) -> NDArray[np.float64]:
        return to_bits(np.asarray(x, np.float64), 10)

    scores = tf32(inputs["q"]) @ tf32(inputs["k"]).swapaxes(-1, -2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = tf32(weights / weights.sum(-1, keepdims=True)) @ tf32(inputs["v"])
    assert relative_l2(emulate(attention(inputs), inputs, "tf32")["y"], want) < 1e-12


def test_3d_inputs_without_numbers_of_heads_are_one_line() -> None:
    inputs: Arrays = {name: np.ones((1, 2, 4), np.float32) for name in "qkv"}
    with pytest.raises(FormError, match=r"Attention node 'y' cannot be .*: 3-D inputs need q_num_heads and kv"):
        evaluate_float64(attention(inputs), inputs)
