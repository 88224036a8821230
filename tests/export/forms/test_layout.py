"""The 3-D layout is taken where shapes prove it, and only there."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from crosshead.export.forms import lower

B, L, H, D = 2, 5, 4, 8
Run = Callable[..., dict[str, np.ndarray]]
SPLIT = "r = Reshape(x, s)  t = Transpose<perm = [0,2,1,3]>(r)"
CORE = "y = Attention(t, t, t)"
MERGE = "u = Transpose<perm = [0,2,1,3]>(y)  z = Reshape(u, m)"


def graph(*steps: str, split: str = "B,L,4,8", outputs: str = "float[B,L,32] z") -> ir.Model:
    """Steps from x (B, L, 32), with the shape that the exporter declares for the split r."""
    text = f"""<ir_version: 11, opset_import: ["" : 23]> g (float[B,L,32] x) => ({outputs})
    <int64[4] s = {{0,0,4,8}}, int64[3] m = {{0,0,32}}, float[{split}] r> {{ {" ".join(steps)} }}"""
    return ir.from_proto(parser.parse_model(text))


def count(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph)


def check_equal(run_ort: Run, canonical: ir.Model, model: ir.Model) -> None:
    x = {"x": np.random.default_rng(0).standard_normal((B, L, H * D)).astype(np.float32)}
    want, got = run_ort(canonical, x), run_ort(model, x)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


def test_a_proved_split_and_merge_are_dropped(run_ort: Run) -> None:
    canonical = graph(SPLIT, CORE, MERGE)
    model = lower(canonical, "standard", 23)
    assert [node.op_type for node in model.graph] == ["Attention"]
    node = model.graph[0]
    assert [value.name for value in node.inputs if value is not None] == ["x", "x", "x"]
    assert (node.attributes["q_num_heads"].as_int(), node.attributes["kv_num_heads"].as_int()) == (4, 4)
    check_equal(run_ort, canonical, model)


def test_several_merges_of_one_output_are_all_dropped(run_ort: Run) -> None:
    canonical = graph(SPLIT, CORE, MERGE, "w = Reshape(u, m)", outputs="float[B,L,32] z, float[B,L,32] w")
    model = lower(canonical, "standard", 23)
    assert (count(model, "Transpose"), count(model, "Reshape"), count(model, "Identity")) == (0, 0, 1)
    assert [value.name for value in model.graph.outputs] == ["z", "w"]
    check_equal(run_ort, canonical, model)


UNPROVED = {
    "another symbol for the length": graph(SPLIT, CORE, MERGE, split="B,K,4,8"),
    "an unknown batch": graph(SPLIT, CORE, MERGE, split="?,L,4,8"),
    "heads not fixed": graph(
        "r = Reshape(x, s)  t4 = Transpose<perm = [0,2,1,3]>(r)  t = Identity(t4)", CORE, MERGE, split="B,L,H,8"
    ),
    "a view that trades heads and length": graph(
        "i = Constant<value_ints = [0,4,-1,8]>()  t = Reshape(x, i)", CORE, MERGE
    ),
    "batch and length traded": graph(
        "r = Reshape(x, s)  t = Transpose<perm = [1,2,0,3]>(r)",
        CORE,
        "u = Transpose<perm = [2,0,1,3]>(y)  z = Reshape(u, m)",
    ),
    "queries and keys changed after the split": graph(SPLIT, "n = Neg(t)  y = Attention(n, n, t)", MERGE),
    "the output is a graph output": graph(SPLIT, CORE, MERGE, outputs="float[B,L,32] z, float[B,4,L,8] y"),
    "another operator reads the output": graph(
        SPLIT, CORE, MERGE, "w = Neg(y)", outputs="float[B,L,32] z, float[B,4,L,8] w"
    ),
    "another operator reads the transposed output": graph(
        SPLIT, CORE, MERGE, "w = Neg(u)", outputs="float[B,L,32] z, float[B,L,4,8] w"
    ),
    "the transposed output is a graph output": graph(SPLIT, CORE, MERGE, outputs="float[B,L,32] z, float[B,L,4,8] u"),
    "the output is reshaped, but not to the packed width": graph(
        SPLIT,
        CORE,
        "u = Transpose<perm = [0,2,1,3]>(y)  i = Constant<value_ints = [0,-1,16]>()  z = Reshape(u, i)",
        outputs="float[B,K,16] z",
    ),
}


@pytest.mark.parametrize("why", UNPROVED)
def test_what_is_not_proved_keeps_4d(run_ort: Run, why: str) -> None:
    canonical = UNPROVED[why]
    model = lower(canonical, "standard", 23)
    attention = next(node for node in model.graph if node.op_type == "Attention")
    assert "q_num_heads" not in attention.attributes
    assert count(model, "Transpose") == count(canonical, "Transpose")
    check_equal(run_ort, canonical, model)
