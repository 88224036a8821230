"""Operators on their way from opset 23 to another: what changes, what is written out, what is refused."""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from crosshead.export.artifact import FormError
from crosshead.export.forms import FORM_OPSETS, lower
from crosshead.export.forms._adapters import ADAPTERS, REDEFINED

Run = Callable[..., dict[str, np.ndarray]]
FIRST = FORM_OPSETS["decomposed"][0]


def graph(signature: str, steps: str, values: str = "") -> ir.Model:
    text = f'<ir_version: 11, opset_import: ["" : 23]> g {signature} {f"<{values}>" if values else ""} {{ {steps} }}'
    return ir.from_proto(parser.parse_model(text))


X = "(float[B,L,8] x) => (float[B,L,8] y)"
HEADS = "float[B,4,L,8] x"
CONVERTED = {
    "ReduceMean": graph("(float[B,L,8] x) => (float[B,L,1] y)", "y = ReduceMean(x, a)", "int64[1] a = {-1}"),
    "ReduceMean of all": graph("(float[B,L,8] x) => (float[A,C,E] y)", "y = ReduceMean(x)"),
    "ReduceMean of nothing": graph(X, "y = ReduceMean<noop_with_empty_axes = 1>(x)"),
    "ReduceMean of no axes": graph(X, "y = ReduceMean<noop_with_empty_axes = 1>(x, a)", "int64[0] a = {}"),
    "ReduceMax without axes kept": graph(
        "(float[B,L,8] x) => (float[B,L] y)",
        "y = ReduceMax<keepdims = 0, noop_with_empty_axes = 0>(x, a)",
        "int64[1] a = {2}",
    ),
    "ReduceL2": graph("(float[B,L,8] x) => (float[B,L,1] y)", "y = ReduceL2(x, a)", "int64[1] a = {-1}"),
    "ReduceMax of booleans": graph(
        "(float[B,L,8] x) => (bool[B,L,1] y)",
        "b = Greater(x, z)  y = ReduceMax(b, a)",
        "int64[1] a = {-1}, float z = {1.0}",
    ),
    "ReduceMin of booleans": graph(
        "(float[B,L,8] x) => (bool[B,1,8] y)",
        "b = Greater(x, z)  y = ReduceMin(b, a)",
        "int64[1] a = {1}, float z = {-1.0}",
    ),
    "Split in equal parts": graph(
        "(float[B,L,8] x) => (float[B,L,4] y, float[B,L,4] z)", "y, z = Split<axis = -1, num_outputs = 2>(x)"
    ),
    "Split, the last part smaller": graph(
        "(float[B,L,8] x) => (float[B,L,3] y, float[B,L,3] z, float[B,L,2] w)",
        "y, z, w = Split<axis = 2, num_outputs = 3>(x)",
    ),
    "Split of a dynamic axis": graph(
        "(float[B,L,8] x) => (float[B,M,8] y, float[B,N,8] z)", "y, z = Split<axis = 1, num_outputs = 2>(x)"
    ),
    "Split by sizes": graph(
        "(float[B,L,8] x) => (float[B,L,3] y, float[B,L,5] z)", "y, z = Split<axis = 2>(x, s)", "int64[2] s = {3,5}"
    ),
    "Pad of some axes": graph(
        "(float[B,L,8] x) => (float[B,M,N] y)",
        "y = Pad(x, p, v, a)",
        "int64[4] p = {1,2,3,4}, float v = {9.0}, int64[2] a = {-1,1}",
    ),
    "Pad by what the graph computes": graph(
        "(float[B,L,8] x) => (float[B,M,8] y)",
        "n = Shape<start = 1, end = 2>(x)  p = Concat<axis = 0>(o, n)  y = Pad(x, p, , a)",
        "int64[1] o = {1}, int64[1] a = {1}",
    ),
    "Pad of all axes": graph("(float[B,L,8] x) => (float[B,M,8] y)", "y = Pad(x, p)", "int64[6] p = {0,1,0,0,2,0}"),
    "Cast": graph("(float[B,L,8] x) => (int64[B,L,8] y)", "y = Cast<to = 7, saturate = 1>(x)"),
    "ConstantOfShape": graph(
        "(float[B,L,8] x) => (float[B,L,8] y)", "s = Shape(x)  y = ConstantOfShape<value = float[1] {2.0}>(s)"
    ),
    "shapes and views": graph(
        "(float[B,L,8] x) => (float[B,8,L] y)",
        "u = Unsqueeze(x, a)  f = Flatten<axis = 2>(u)  s = Shape(x)  r = Reshape<allowzero = 1>(f, s)"
        "  t = Transpose<perm = [0,2,1]>(r)  i = Identity(t)  q = Unsqueeze(i, a)  y = Squeeze(q, a)",
        "int64[1] a = {1}",
    ),
    "TopK": graph("(float[B,L,8] x) => (float[B,L,3] y, int64[B,L,3] z)", "y, z = TopK(x, k)", "int64[1] k = {3}"),
    "LayerNormalization": graph(
        "(float[B,L,8] x) => (float[B,L,8] y)",
        "y = LayerNormalization(x, s)",
        "float[8] s = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0}",
    ),
    "AveragePool": graph(
        "(float[B,L,8] x) => (float[B,L,4] y)", "y = AveragePool<kernel_shape = [2], strides = [2], dilations = [1]>(x)"
    ),
    "Resize": graph(
        "(float[B,L,8] x) => (float[B,L,16] y)",
        'y = Resize<mode = "nearest", antialias = 0>(x, , s)',
        "float[3] s = {1.0,1.0,2.0}",
    ),
    "GridSample": graph(
        "(float[B,L,8] x) => (float[B,1,1,3] y)",
        'q = Unsqueeze(x, a)  g = Slice(x, i, j, b)  h = Unsqueeze(g, a)  y = GridSample<mode = "linear">(q, h)',
        "int64[1] a = {1}, int64[2] i = {0,0}, int64[2] j = {3,2}, int64[2] b = {1,2}",
    ),
    "operators of a subgraph": graph(
        "(float[B,L,8] x) => (float[B,L,1] y)",
        "s = ReduceMax<keepdims = 0>(x)  c = Greater(s, z)  y = If(c) <"
        "then_branch = yes () => (float[B,L,1] p) { p = ReduceMean(x, a) },"
        "else_branch = no () => (float[B,L,1] q) { q = ReduceProd(x, a) }>",
        "int64[1] a = {-1}, float z = {1.0}",
    ),
    "Gelu": graph(X, "y = Gelu(x)"),
    "Gelu by tanh": graph(X, 'y = Gelu<approximate = "tanh">(x)'),
    "Mish": graph(X, "y = Mish(x)"),
    "GroupNormalization": graph(
        "(float[B,4,L] x) => (float[B,4,L] y)",
        "y = GroupNormalization<num_groups = 2>(x, s, b)",
        "float[4] s = {1.0,2.0,3.0,4.0}, float[4] b = {0.0,0.5,1.0,1.5}",
    ),
    "RMSNormalization": graph(X, "y = RMSNormalization(x, s)", "float[8] s = {1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0}"),
    "RMSNormalization of two axes": graph(
        "(float[B,2,3] x) => (float[B,2,3] y)",
        "y = RMSNormalization<axis = 1, epsilon = 0.1>(x, s)",
        "float[2,3] s = {1.0,2.0,3.0,4.0,5.0,6.0}",
    ),
    "RotaryEmbedding": graph(
        f"({HEADS}, float[B,L,4] c, float[B,L,4] s) => (float[B,4,L,8] y)", "y = RotaryEmbedding(x, c, s)"
    ),
    "RotaryEmbedding with one cache for the batch": graph(
        f"({HEADS}, float[1,L,4] c, float[1,L,4] s) => (float[B,4,L,8] y)", "y = RotaryEmbedding(x, c, s)"
    ),
    "RotaryEmbedding, interleaved": graph(
        f"({HEADS}, float[B,L,4] c, float[B,L,4] s) => (float[B,4,L,8] y)",
        "y = RotaryEmbedding<interleaved = 1>(x, c, s)",
    ),
    "RotaryEmbedding of a part": graph(
        f"({HEADS}, float[B,L,3] c, float[B,L,3] s) => (float[B,4,L,8] y)",
        "y = RotaryEmbedding<rotary_embedding_dim = 6>(x, c, s)",
    ),
    "RotaryEmbedding of a part, interleaved": graph(
        f"({HEADS}, float[B,L,2] c, float[B,L,2] s) => (float[B,4,L,8] y)",
        "y = RotaryEmbedding<rotary_embedding_dim = 4, interleaved = 1>(x, c, s)",
    ),
    "RotaryEmbedding at positions": graph(
        f"({HEADS}, float[16,4] c, float[16,4] s, int64[B,L] p) => (float[B,4,L,8] y)",
        "y = RotaryEmbedding(x, c, s, p)",
    ),
    "RotaryEmbedding, packed": graph(
        "(float[B,L,32] x, float[B,L,4] c, float[B,L,4] s) => (float[B,L,32] y)",
        "y = RotaryEmbedding<num_heads = 4>(x, c, s)",
    ),
}
SIZES = {"B": 2, "L": 5}
OPSETS_OF_CHANGES = [17, 18, 19, 20, 21, 22, 24, 25]


def draw(model: ir.Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for value in model.graph.inputs:
        assert value.shape is not None
        assert value.name is not None
        shape = [size if isinstance(size, int) else SIZES[str(size)] for size in value.shape]
        if value.dtype == ir.DataType.INT64:
            made[value.name] = rng.integers(0, 16, shape)
        else:
            made[value.name] = rng.standard_normal(shape).astype(np.float32)
    return made


@pytest.mark.parametrize("opset", OPSETS_OF_CHANGES)
@pytest.mark.parametrize("name", CONVERTED)
def test_the_meaning_is_kept(run_ort: Run, evaluate: Run, name: str, opset: int) -> None:
    """Against onnx's evaluator at opset 23; run by ONNX Runtime at the opset asked."""
    canonical = CONVERTED[name]
    inputs = draw(canonical)
    model = lower(canonical, "decomposed", opset)
    assert model.opset_imports[""] == opset
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        assert onnx.defs.has(node.op_type, opset, ""), node.op_type
    want, got = evaluate(canonical, inputs), run_ort(model, inputs)
    assert want.keys() == got.keys()
    for output, array in want.items():
        np.testing.assert_allclose(got[output], array, rtol=1e-5, atol=2e-6, err_msg=output)


@pytest.mark.parametrize("name", ["RMSNormalization", "RotaryEmbedding of a part", "Gelu by tanh"])
def test_bodies_of_our_own_compute_in_the_type_they_are_given(evaluate: Run, name: str) -> None:
    def as_double(model: ir.Model) -> ir.Model:
        proto = onnx.printer.to_text(ir.to_proto(model)).replace("float", "double")
        return ir.from_proto(parser.parse_model(proto))

    canonical = as_double(CONVERTED[name])
    inputs = {key: array.astype(np.float64) for key, array in draw(CONVERTED[name]).items()}
    got = evaluate(lower(canonical, "decomposed", 17), inputs)["y"]
    assert got.dtype == np.float64
    x = inputs["x"]
    if name == "RMSNormalization":
        # The standard's own body narrows to float32 here (stash_type).
        want = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * np.arange(1, 9)
    elif name == "Gelu by tanh":
        cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        want = x * 0.5 * (1 + np.tanh(cubic))
    else:
        cos, sin = inputs["c"][:, None], inputs["s"][:, None]
        a, b = x[..., :3], x[..., 3:6]
        want = np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 6:]], -1)
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-15)


REFUSED = {
    ("y = ReduceMean(x, a)", "float[B,L,8] x, int64[1] a", "float[B,L,M] y", 17): "its axes are computed by the graph",
    ("y = BitwiseAnd(x, x)", "int32[B] x", "int32[B] y", 17): "it came with a later opset and has no body",
    ('y = Pad<mode = "wrap">(x, p)', "float[B] x, int64[2] p", "float[C] y", 18): "mode 'wrap' came with opset 19",
    (
        'y = ScatterND<reduction = "max">(x, i, u)',
        "float[B] x, int64[N,1] i, float[N] u",
        "float[B] y",
        17,
    ): "reduction 'max' came with opset 18",
    (
        "y = AveragePool<kernel_shape = [2], dilations = [2]>(x)",
        "float[B,C,L] x",
        "float[B,C,M] y",
        18,
    ): "its dilations are not 1",
    (
        "y = Resize<axes = [2]>(x, , s)",
        "float[B,C,L] x, float[1] s",
        "float[B,C,M] y",
        17,
    ): r"attribute axes=\(2,\) is not there",
    ("y = Cos(x)", "bfloat16[B] x", "bfloat16[B] y", 20): "input input cannot be BFLOAT16 there",
    ("y = DFT(x)", "float[B,L,1] x", "float[B,L,2] y", 18): "its axis is an input from opset 20 on",
    (
        "y = GridSample(x, g)",
        "float[B,C,D,H,W] x, float[B,E,F,G,3] g",
        "float[B,C,E,F,G] y",
        18,
    ): "not proved to be 4-D",
}


@pytest.mark.parametrize(("case", "reason"), REFUSED.items())
def test_what_cannot_go_down_is_refused_by_name(case: tuple[str, str, str, int], reason: str) -> None:
    steps, inputs, outputs, opset = case
    operator = steps.split(" = ", 1)[1].split("(")[0].split("<")[0]
    with pytest.raises(FormError, match=f"^{operator} .*cannot go from opset 23 to opset {opset}: .*{reason}"):
        lower(graph(f"({inputs}) => ({outputs})", steps), "decomposed", opset)


def test_every_operator_that_changed_beyond_its_types_has_an_adapter() -> None:
    """Read off the schemas, so that a new onnx in which one more changed shows here."""
    adapted = {(op_type, below) for below, op_type, _ in ADAPTERS} | set(REDEFINED.items())
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    last = FORM_OPSETS["decomposed"][-1]
    changed = set()
    for schema in schemas:
        before = [s for s in schemas if s.name == schema.name and s.since_version < schema.since_version]
        if not before or not FIRST < schema.since_version <= last:
            continue
        older = max(before, key=lambda s: s.since_version)
        same_operands = [i.name for i in older.inputs] == [i.name for i in schema.inputs]
        # A new attribute that says its default is dropped, and any other value of it is refused, for every operator.
        gone = older.attributes.keys() - schema.attributes.keys()
        undroppable = {
            name
            for name in schema.attributes.keys() - older.attributes.keys()
            if not schema.attributes[name].default_value.name
        }
        defaults = {
            name
            for name in schema.attributes.keys() & older.attributes.keys()
            if schema.attributes[name].default_value != older.attributes[name].default_value
        }
        if not same_operands or gone or undroppable or defaults:
            changed.add((schema.name, schema.since_version))
    # Attention is lowered before, or stays above; Resize with `axes` is refused by the check of attributes.
    assert changed - adapted == {("Attention", 24), ("Resize", 18)}
