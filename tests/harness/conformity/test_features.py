from typing import Any

import pytest
from onnx import TensorProto, helper
from tests.harness.conformity.graphs import Graph

from crosshead.harness.conformity import read_features
from crosshead.results import FeatureRecord


def attention(
    shapes: dict[str, list[int | str]],
    inputs: list[str],
    outputs: list[str],
    *,
    kinds: dict[str, int] | None = None,
    **attributes: Any,
) -> FeatureRecord:
    kinds = kinds or {}
    values = [
        helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT16), shape)
        for name, shape in shapes.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in outputs if name]
    node = helper.make_node("Attention", inputs, outputs, **attributes)
    graph = helper.make_graph([node], "graph", values, results)
    (found,) = read_features(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11))
    return found


def test_a_plain_node_in_four_axes() -> None:
    shape: list[int | str] = ["batch", 4, "seq", 8]
    found = attention({"q": shape, "k": shape, "v": shape}, ["q", "k", "v"], ["y"])
    assert found == FeatureRecord(op="ai.onnx::Attention", opset=24, dtype="float16", layout="4-D")


def test_a_decoding_step_in_three_axes_with_all_that_can_be_asked() -> None:
    found = attention(
        {
            "q": [2, 1, 64],
            "k": [2, 1, 16],
            "v": [2, 1, 32],
            "mask": [8, 1, 7],
            "past_key": [2, 2, 6, 8],
            "past_value": [2, 2, 6, 16],
        },
        ["q", "k", "v", "mask", "past_key", "past_value"],
        ["y", "present_key", "present_value", "scores"],
        kinds={"mask": TensorProto.BOOL},
        q_num_heads=8,
        kv_num_heads=2,
        is_causal=1,
        softcap=2.0,
        scale=0.1,
        qk_matmul_output_mode=3,
        softmax_precision=TensorProto.FLOAT,
    )
    assert found == FeatureRecord(
        op="ai.onnx::Attention",
        opset=24,
        dtype="float16",
        layout="3-D",
        heads="grouped",
        mask="bool",
        mask_rank=3,
        mask_broadcast=["batch"],
        causal=True,
        past=True,
        present=True,
        softcap=True,
        scale=True,
        value_size=True,
        qk_output=3,
        softmax_precision="float32",
    )


@pytest.mark.parametrize(
    ("mask", "repeated"),
    [
        ([4, 6], ["batch", "heads"]),
        ([4, 1], ["batch", "heads", "keys"]),
        ([1, 6], ["batch", "heads", "queries"]),
        ([6], ["batch", "heads", "queries"]),
        ([2, 1, 4, 6], ["heads"]),
        ([2, 3, 4, 6], []),
        ([2, 3, 4, 5], []),  # shorter than the keys: padded, not repeated
    ],
)
def test_the_axes_that_a_mask_is_repeated_along(mask: list[int | str], repeated: list[str]) -> None:
    found = attention(
        {"q": [2, 3, 4, 8], "k": [2, 3, 6, 8], "v": [2, 3, 6, 8], "mask": mask}, ["q", "k", "v", "mask"], ["y"]
    )
    assert (found.mask, found.mask_rank, found.mask_broadcast) == ("additive", len(mask), repeated)


def test_valid_keys_windows_and_a_single_key_head() -> None:
    shapes: dict[str, list[int | str]] = {"q": [2, 4, 3, 8], "k": [2, 1, 6, 8], "v": [2, 1, 6, 8], "valid": [2]}
    inputs = ["q", "k", "v", "", "", "", "valid"]
    found = attention(shapes, inputs, ["y"], kinds={"valid": TensorProto.INT64})
    assert (found.padded_kv, found.past, found.mask, found.heads) == (True, False, "none", "single")
    assert not found.window
    assert attention(shapes, inputs, ["y"], kinds={"valid": TensorProto.INT64}, left_window_size=2).window


def test_a_mode_without_the_output_asks_for_nothing() -> None:
    shape: list[int | str] = [2, 3, 4, 8]
    found = attention({"q": shape, "k": shape, "v": shape}, ["q", "k", "v"], ["y"], qk_matmul_output_mode=2)
    assert found.qk_output is None


def test_a_graph_without_attention_has_no_features_and_inner_values_are_inferred() -> None:
    assert read_features(Graph().expanded()) == []
    model = Graph(mask="LT", mode=2).model()
    model.graph.node.insert(0, helper.make_node("Identity", ["mask"], ["inner"]))
    model.graph.node[1].input[3] = "inner"
    (found,) = read_features(model)
    assert (found.mask_rank, found.qk_output) == (2, 2)
