"""Operators of ONNX Runtime's own domain in float64, held against its fp32 kernels on every variant that they take."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from crosshead.export.artifact import FormError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import evaluate_float64
from crosshead.export.float64._formats import to_bits
from crosshead.export.float64.emulation import emulate

ort = pytest.importorskip("onnxruntime")

Array = NDArray[Any]
Inputs = dict[str, Array | None]
U = 2.0**-24
FEW = 12 * U  # relative L2 that a kernel of a few operations in fp32 stays under

BATCH, HEADS, GROUPS, LENGTH, SIZE = 2, 4, 2, 5, 16
WIDTH, GROUPED = HEADS * SIZE, GROUPS * SIZE
RNG = np.random.default_rng(0)


def draw(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def whole(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


def model_of(op: str, inputs: Inputs, outputs: str, domain: str, opset: int, attributes: dict[str, Any]) -> Any:
    """Return a model of one node: inputs in its order, None for those left out, and "-" for outputs left out."""
    fed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
        if array is not None
    ]
    names = ["" if name == "-" else name for name in outputs.split()]
    given = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(op, given, names, domain=domain, **attributes)
    types = {"kept": onnx.TensorProto.INT32}
    made = [
        helper.make_tensor_value_info(name, types.get(name, onnx.TensorProto.FLOAT), None) for name in names if name
    ]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "one", fed, made), opset_imports=opsets, ir_version=8)


def both(
    op: str, inputs: Inputs, outputs: str = "y", *, domain: str = "com.microsoft", opset: int = 18, **attributes: Any
) -> list[tuple[Array, Array]]:
    """Return each output in float64, and as ONNX Runtime's kernel has it in fp32."""
    model = model_of(op, inputs, outputs, domain, opset, attributes)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {name: array for name, array in inputs.items() if array is not None}
    ours = evaluate_float64(model, feed)
    theirs = dict(zip((value.name for value in session.get_outputs()), session.run(None, feed), strict=True))
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        assert array.dtype == (np.float64 if theirs[name].dtype == np.float32 else theirs[name].dtype), name
    return [(ours[name], theirs[name]) for name in ours]


def check(op: str, inputs: Inputs, outputs: str = "y", limit: float = FEW, **attributes: Any) -> None:
    for ours, theirs in both(op, inputs, outputs, **attributes):
        assert relative_l2(theirs, ours) <= limit


Q, K, V = draw(BATCH, LENGTH, WIDTH), draw(BATCH, LENGTH, WIDTH), draw(BATCH, LENGTH, WIDTH)
PACKED_BIAS = draw(3 * WIDTH)
KEEP = whole(1, 1, 0, 1, 1, 1, 0, 0, 1, 1).reshape(BATCH, LENGTH)
KEEP_BY_QUERY = np.maximum(np.eye(LENGTH, dtype=np.int32), KEEP[:, np.newaxis])
NONE = np.zeros((BATCH, LENGTH), np.int32)
SCORES = draw(BATCH, HEADS, LENGTH, LENGTH)
PAST = draw(2, BATCH, HEADS, 3, SIZE)
NO_BIAS: Inputs = {"q": Q, "k": K, "v": V, "bias": None}
CACHED: Inputs = {**NO_BIAS, "mask": None, "added": None, "past_key": PAST[0], "past_value": PAST[1]}


def in_heads(x: Array, heads: int = HEADS) -> Array:
    return np.ascontiguousarray(x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2))


MULTI_HEAD: dict[str, tuple[Inputs, str, dict[str, Any]]] = {
    "plain": (NO_BIAS, "y", {}),
    "bias": ({**NO_BIAS, "bias": PACKED_BIAS}, "y", {}),
    "scale": (NO_BIAS, "y", {"scale": 0.3}),
    "scale 0": (NO_BIAS, "y", {"scale": 0.0}),
    "causal": (NO_BIAS, "y", {"unidirectional": 1}),
    "causal, with a fill that is not applied": (NO_BIAS, "y", {"unidirectional": 1, "mask_filter_value": -3.0}),
    "padding": ({**NO_BIAS, "mask": KEEP}, "y", {}),
    "padding that leaks": ({**NO_BIAS, "mask": KEEP}, "y", {"mask_filter_value": -3.0}),
    "padding by query": ({**NO_BIAS, "mask": KEEP_BY_QUERY}, "y", {}),
    "padding by lengths": ({**NO_BIAS, "mask": whole(2, 4)}, "y", {}),
    "all padded": ({**NO_BIAS, "mask": NONE}, "y", {"mask_filter_value": -3.0}),
    "padding, causal": ({**NO_BIAS, "mask": KEEP}, "y", {"unidirectional": 1, "mask_filter_value": -3.0}),
    "attention bias": ({**NO_BIAS, "mask": None, "added": SCORES}, "y", {}),
    "attention bias of one head": ({**NO_BIAS, "mask": None, "added": SCORES[:1, :1]}, "y", {}),
    "attention bias, padding": ({**NO_BIAS, "mask": KEEP, "added": SCORES}, "y", {"mask_filter_value": -3.0}),
    "scores": ({**NO_BIAS, "mask": None, "added": SCORES}, "y - - scores", {}),
    "present": (NO_BIAS, "y present_key present_value", {}),
    "keys in heads": ({"q": Q, "k": in_heads(K), "v": in_heads(V)}, "y", {}),
    "other keys": ({"q": Q, "k": draw(BATCH, 7, WIDTH), "v": draw(BATCH, 7, 2 * WIDTH)}, "y", {}),
    "past": (CACHED, "y present_key present_value", {}),
    "past, causal": (CACHED, "y present_key present_value", {"unidirectional": 1}),
    "past, padding": (
        {**CACHED, "mask": np.concatenate((KEEP[:, :3], KEEP), axis=1)},
        "y present_key present_value",
        {"mask_filter_value": -3.0},
    ),
}


@pytest.mark.parametrize("variant", MULTI_HEAD)
def test_multi_head_attention(variant: str) -> None:
    inputs, outputs, attributes = MULTI_HEAD[variant]
    check("MultiHeadAttention", inputs, outputs, num_heads=HEADS, **attributes)


def test_packed_queries_keys_and_values_which_only_gpu_kernels_take() -> None:
    want = one("MultiHeadAttention", NO_BIAS, num_heads=HEADS)
    split = [x.reshape(BATCH, LENGTH, HEADS, SIZE) for x in (Q, K, V)]
    assert np.array_equal(one("MultiHeadAttention", {"q": np.stack(split, 3)}, num_heads=HEADS), want)
    assert np.array_equal(one("MultiHeadAttention", {"q": Q, "k": np.stack(split[1:], 3)}, num_heads=HEADS), want)


def one(op: str, inputs: Inputs, **attributes: Any) -> Array:
    """Return the first output in float64."""
    model = model_of(op, inputs, "y", "com.microsoft", 18, attributes)
    return evaluate_float64(model, {name: array for name, array in inputs.items() if array is not None})["y"]


HIDDEN, PROJECTION = draw(BATCH, LENGTH, 24), draw(24, 3 * WIDTH)
PLAIN: Inputs = {"x": HIDDEN, "w": PROJECTION, "bias": PACKED_BIAS}
ATTENTION: dict[str, tuple[Inputs, str, dict[str, Any]]] = {
    "plain": (PLAIN, "y", {}),
    "no bias": ({**PLAIN, "bias": None}, "y", {}),
    "scale": (PLAIN, "y", {"scale": 0.01}),
    "padding": ({**PLAIN, "mask": KEEP}, "y", {}),
    "padding that leaks": ({**PLAIN, "mask": KEEP}, "y", {"mask_filter_value": -3.0}),
    "padding on the right": ({**PLAIN, "mask": whole(2, 5)}, "y", {}),
    "padding on both sides": ({**PLAIN, "mask": whole(4, 5, 1, 2)}, "y", {}),
    "padding by query": ({**PLAIN, "mask": KEEP_BY_QUERY}, "y", {}),
    "a mask of one column": ({**PLAIN, "mask": NONE[:, :1]}, "y", {}),
    "causal": (PLAIN, "y", {"unidirectional": 1}),
    "causal, padding": ({**PLAIN, "mask": KEEP}, "y", {"unidirectional": 1, "mask_filter_value": -3.0}),
    "past": ({**PLAIN, "mask": None, "past": PAST}, "y present", {}),
    "past, causal": ({**PLAIN, "mask": None, "past": PAST}, "y present", {"unidirectional": 1}),
    "present": (PLAIN, "y present", {}),
    "attention bias": ({**PLAIN, "mask": None, "past": None, "added": SCORES}, "y", {}),
    "other size of values": (
        {"x": HIDDEN, "w": PROJECTION[:, : 5 * WIDTH // 2], "bias": PACKED_BIAS[: 5 * WIDTH // 2]},
        "y",
        {"qkv_hidden_sizes": [WIDTH, WIDTH, WIDTH // 2]},
    ),
}


@pytest.mark.parametrize("variant", ATTENTION)
def test_attention(variant: str) -> None:
    inputs, outputs, attributes = ATTENTION[variant]
    check("Attention", inputs, outputs, num_heads=HEADS, limit=2 * FEW, **attributes)  # a product more


PLACES = np.arange(16)[:, np.newaxis] * 10000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
COS, SIN = np.cos(PLACES).astype(np.float32), np.sin(PLACES).astype(np.float32)
GQ, GK, GV = draw(BATCH, LENGTH, WIDTH), draw(BATCH, LENGTH, GROUPED), draw(BATCH, LENGTH, GROUPED)
PROMPT: Inputs = {
    "q": GQ,
    "k": GK,
    "v": GV,
    "past_key": None,
    "past_value": None,
    "lengths": whole(LENGTH - 1, LENGTH - 1),
    "total": whole(LENGTH),
}
ROTARY: Inputs = {"cos": COS, "sin": SIN}
NO_ROTARY: Inputs = {"cos": None, "sin": None}
CACHE = draw(2, BATCH, GROUPS, 6, SIZE)
STEP: Inputs = {
    "q": GQ[:, :1],
    "k": GK[:, :1],
    "v": GV[:, :1],
    "past_key": CACHE[0],
    "past_value": CACHE[1],
    "lengths": whole(6, 3),
    "total": whole(7),
}
CHUNK: Inputs = {
    "q": GQ[:1, :3],
    "k": GK[:1, :3],
    "v": GV[:1, :3],
    "past_key": CACHE[0, :1],
    "past_value": CACHE[1, :1],
    "lengths": whole(8),
    "total": whole(9),
}
PACKED: Inputs = {**PROMPT, "q": np.concatenate((GQ, GK, GV), -1), "k": None, "v": None}
BIAS = {**NO_ROTARY, "places": None, "added": SCORES}
GROUP_QUERY: dict[str, tuple[Inputs, dict[str, Any]]] = {
    "prompt": (PROMPT, {}),
    "scale": (PROMPT, {"scale": 0.3}),
    "not causal": (PROMPT, {"causal": 0}),
    "softcap": (PROMPT, {"softcap": 1.5}),
    "window of 1": (PROMPT, {"local_window_size": 1}),
    "window of 3": (PROMPT, {"local_window_size": 3}),
    "smooth softmax": (PROMPT, {"smooth_softmax": 1}),
    "sinks": ({**PROMPT, **BIAS, "added": None, "sink": draw(HEADS)}, {}),
    "attention bias": ({**PROMPT, **BIAS}, {}),
    "attention bias, softcap": ({**PROMPT, **BIAS}, {"softcap": 1.5}),
    "packed": (PACKED, {}),
    "rotary": ({**PROMPT, **ROTARY}, {"do_rotary": 1}),
    "rotary of neighbours": ({**PROMPT, **ROTARY}, {"do_rotary": 1, "rotary_interleaved": 1}),
    "rotary from a place": (
        {**PROMPT, **ROTARY, "places": np.array([[3, 4, 5, 6, 7], [0, 2, 4, 6, 8]])},
        {"do_rotary": 1},
    ),
    "step, rotary at places": ({**STEP, **ROTARY, "places": np.array([[2], [4]])}, {"do_rotary": 1}),
    "chunk, rotary at places": ({**CHUNK, **ROTARY, "places": np.array([[9, 3, 1]])}, {"do_rotary": 1}),
    "rotary, packed": ({**PACKED, **ROTARY}, {"do_rotary": 1}),
    "step": (STEP, {}),
    "step, window": (STEP, {"local_window_size": 3}),
    "step, rotary": ({**STEP, **ROTARY}, {"do_rotary": 1}),
    "step into a buffer": ({**STEP, "lengths": whole(5, 2), "total": whole(6)}, {}),
    "chunk": (CHUNK, {}),
    "chunk, rotary, window": ({**CHUNK, **ROTARY}, {"do_rotary": 1, "local_window_size": 4}),
}


@pytest.mark.parametrize("variant", GROUP_QUERY)
def test_group_query_attention(variant: str) -> None:
    inputs, attributes = GROUP_QUERY[variant]
    outputs = "y present_key present_value"
    check("GroupQueryAttention", inputs, outputs, num_heads=HEADS, kv_num_heads=GROUPS, **attributes)


def test_group_query_attention_of_sequences_padded_on_the_right() -> None:
    inputs = {**PROMPT, "lengths": whole(4, 2)}
    ((ours, theirs),) = both("GroupQueryAttention", inputs, "y - -", num_heads=HEADS, kv_num_heads=GROUPS)
    assert relative_l2(theirs[0], ours[0]) < FEW
    assert relative_l2(theirs[1, :3], ours[1, :3]) < FEW  # the rest is padding


@pytest.mark.parametrize("kind", [1, 2])
def test_scores_of_group_query_attention_where_a_key_is_seen(kind: int) -> None:
    seen = np.tri(LENGTH, dtype=np.bool_)
    for inputs in (PROMPT, {**PROMPT, **BIAS}):
        *_, (ours, theirs) = both(
            "GroupQueryAttention",
            inputs,
            "y present_key present_value scores",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
            qk_output=kind,
            softcap=1.5,
        )
        assert relative_l2(theirs[..., seen], ours[..., seen]) < FEW


X, SKIP, GAIN, SHIFT = draw(BATCH, LENGTH, WIDTH), draw(BATCH, LENGTH, WIDTH), draw(WIDTH), draw(WIDTH)
SKIPPED: Inputs = {"x": X, "skip": SKIP, "gain": GAIN}
IDS = RNG.integers(0, 7, size=(BATCH, LENGTH)).astype(np.int32)
EMBEDDED: Inputs = {
    "ids": IDS,
    "segments": IDS % 2,
    "words": draw(7, WIDTH),
    "places": draw(8, WIDTH),
    "segment_table": draw(2, WIDTH),
    "gain": GAIN,
    "shift": SHIFT,
}
CASES: dict[str, tuple[str, Inputs, str, dict[str, Any]]] = {
    "Gelu": ("Gelu", {"x": X}, "y", {}),
    "BiasGelu": ("BiasGelu", {"x": X, "b": GAIN}, "y", {}),
    "FastGelu": ("FastGelu", {"x": X}, "y", {}),
    "FastGelu with a bias": ("FastGelu", {"x": X, "b": GAIN}, "y", {}),
    "QuickGelu": ("QuickGelu", {"x": X}, "y", {}),
    "QuickGelu with alpha": ("QuickGelu", {"x": X, }, "y", {"alpha": 1.3}),
    "SkipLayerNormalization": ("SkipLayerNormalization", {**SKIPPED, "shift": SHIFT}, "y", {"epsilon": 1e-5}),
    "SkipLayerNormalization by default": ("SkipLayerNormalization", SKIPPED, "y", {}),
    "SkipLayerNormalization with all": (
        "SkipLayerNormalization",
        {**SKIPPED, "shift": SHIFT, "bias": SHIFT[::-1].copy()},
        "y - - total",
        {"epsilon": 0.1},
    ),
    "SkipLayerNormalization, one skip for all": ("SkipLayerNormalization", {**SKIPPED, "skip": SKIP[:1]}, "y", {}),
    "SkipSimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", SKIPPED, "y", {"epsilon": 0.1}),
    "SkipSimplifiedLayerNormalization with all": (
        "SkipSimplifiedLayerNormalization",
        {**SKIPPED, "bias": SHIFT},
        "y - - total",
        {},
    ),
    "EmbedLayerNormalization": ("EmbedLayerNormalization", EMBEDDED, "y kept total", {"epsilon": 0.1}),
    "EmbedLayerNormalization without segments": (
        "EmbedLayerNormalization",
        {**EMBEDDED, "segments": None, "segment_table": None},
        "y kept",
        {},
    ),
    "EmbedLayerNormalization with all": (
        "EmbedLayerNormalization",
        {**EMBEDDED, "mask": KEEP, "place_ids": (IDS + 1)[:, ::-1].copy()},
        "y kept",
        {},
    ),
    "RotaryEmbedding": ("RotaryEmbedding", {"x": X, "p": np.array([2]), "cos": COS, "sin": SIN}, "y", {}),
    "RotaryEmbedding at places": (
        "RotaryEmbedding",
        {"x": in_heads(X), "p": IDS.astype(np.int64), "cos": COS, "sin": SIN},
        "y",
        {"interleaved": 1},
    ),
    "RotaryEmbedding of a part": (
        "RotaryEmbedding",
        {"x": X, "p": IDS.astype(np.int64), "cos": COS[:, :4].copy(), "sin": SIN[:, :4].copy()},
        "y",
        {"rotary_embedding_dim": 8, "num_heads": HEADS},
    ),
    "FusedMatMul": ("FusedMatMul", {"a": X, "b": draw(WIDTH, 3)}, "y", {"alpha": 0.3}),
    "FusedMatMul turned": ("FusedMatMul", {"a": draw(2, 5, 3), "b": draw(2, 4, 5)}, "y", {"transA": 1, "transB": 1}),
    "FusedMatMul, batches turned": (
        "FusedMatMul",
        {"a": draw(5, 2, 3, 4), "b": draw(4, 2, 3, 6)},
        "y",
        {"transBatchA": 1, "transBatchB": 1},
    ),
    "FusedMatMul, all turned": (
        "FusedMatMul",
        {"a": draw(4, 2, 3, 5), "b": draw(6, 2, 3, 4)},
        "y",
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_plain_operators(case: str) -> None:
    op, inputs, outputs, attributes = CASES[case]
    check(op, inputs, outputs, **attributes)


@pytest.mark.parametrize("axis", [-1, 1, 2])
def test_norms_that_are_written_into_the_standards_domain(axis: int) -> None:
    shape = X.shape[axis:]
    gain, shift = draw(*shape), draw(*shape)
    rms: Inputs = {"x": X, "gain": gain}
    check("SimplifiedLayerNormalization", rms, domain="", axis=axis, epsilon=0.1)
    for opset in (13, 18):  # the standard has it from 17 on
        check("LayerNormalization", {**rms, "shift": shift}, "y mean factor", domain="", opset=opset, axis=axis)


def test_their_products_follow_a_math_mode() -> None:
    def tf32(x: Any) -> NDArray[np.float64]:
        return to_bits(np.asarray(x, np.float64), 10)

    model = model_of("FusedMatMul", {"a": X, "b": X}, "y", "com.microsoft", 18, {"alpha": 0.3, "transB": 1})
    want = float(np.float32(0.3)) * (tf32(X) @ tf32(X).swapaxes(-1, -2))
    assert relative_l2(emulate(model, {"a": X, "b": X}, "tf32")["y"], want) < 1e-14
    q, k, v = (in_heads(x) for x in (Q, K, V))
    scores = tf32(q) @ tf32(k).swapaxes(-1, -2) / np.sqrt(SIZE)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = tf32(weights / weights.sum(-1, keepdims=True)) @ tf32(v)
    model = model_of("MultiHeadAttention", NO_BIAS, "y", "com.microsoft", 18, {"num_heads": HEADS})
    got = emulate(model, {"q": Q, "k": K, "v": V}, "tf32")["y"]
    assert relative_l2(in_heads(got), context) < 1e-12


UNDEFINED: dict[str, tuple[str, Inputs, dict[str, Any], str]] = {
    "more keys than queries when causal": (
        "MultiHeadAttention",
        {"q": Q[:, :3], "k": K, "v": V},
        {"num_heads": HEADS, "unidirectional": 1},
        "unidirectional is not defined for 3 queries and 5 new keys",
    ),
    "rotary in packed attention": (
        "Attention",
        PLAIN,
        {"num_heads": HEADS, "do_rotary": 1},
        "do_rotary .* not defined",
    ),
    "quantized cache": (
        "GroupQueryAttention",
        PROMPT,
        {"num_heads": HEADS, "kv_num_heads": GROUPS, "k_quant_type": "PER_TENSOR"},
        "a quantized cache, .* not defined",
    ),
    "no keys": ("MultiHeadAttention", {"q": Q}, {"num_heads": HEADS}, "key and value are missing"),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_what_is_not_defined_is_one_line(case: str) -> None:
    op, inputs, attributes, message = UNDEFINED[case]
    with pytest.raises(FormError, match=rf"com\.microsoft::{op} node 'y' cannot be evaluated in float64: {message}"):
        one(op, inputs, **attributes)


def test_blocks_of_channels_are_refused_in_one_line() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft.nchwc" : 1]>'
        "g (float[1, 8, 2, 2] x) => (float[1, 8, 2, 2] y) { y = com.microsoft.nchwc.ReorderInput (x) }"
    )
    with pytest.raises(FormError, match=r"ReorderInput node 'y' .*: .* in blocks of channels .* below 'all'"):
        evaluate_float64(model, {"x": np.ones((1, 8, 2, 2))})


FOLLOWING = {
    "Gelu": "y = Gelu (h)",
    "Gelu by tanh": 'y = Gelu <approximate = "tanh"> (h)',
    "LayerNormalization": "y = LayerNormalization (h, gain, gain)",
    "RMSNormalization": "y = RMSNormalization <epsilon = 0.1> (h, gain)",
    "Attention": "y = Attention <q_num_heads = 2, kv_num_heads = 2, softcap = 0.7> (h, h, h)",
    "RotaryEmbedding": "y = RotaryEmbedding <num_heads = 2> (h, table, table)",
    "Elu": "y = Elu <alpha = 0.3> (h)",
    "Celu": "y = Celu <alpha = 0.3> (h)",
    "Selu": "y = Selu (h)",
    "HardSwish": "y = HardSwish (h)",
    "Mish": "y = Mish (h)",
    "Swish": "y = Swish <alpha = 0.3> (h)",
    "Softplus": "y = Softplus (h)",
    "Softmax": "y = Softmax (h)",
    "LogSoftmax": "y = LogSoftmax (h)",
    "ReduceLogSumExp": "y = ReduceLogSumExp (h)",
    "MeanVarianceNormalization": "y = MeanVarianceNormalization <axes = [0, 1]> (h)",
    "Clip": "y = Clip (h, low, high)",
}


@pytest.mark.parametrize("op", FOLLOWING)
def test_bodies_behind_them_are_as_exact(op: str) -> None:
    """onnx knows no type of what an operator of another domain gives, and so opens no body after it."""
    constants = {
        "w": draw(8, 8),
        "gain": draw(8),
        "table": draw(1, 3, 2),
        "low": np.float32(-0.3),
        "high": np.float32(0.3),
    }
    results = []
    for product in ("MatMul", "com.microsoft.FusedMatMul"):
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 24, "com.microsoft" : 1]>'
            f"g (float[1, 3, 8] x) => (float y) {{ h = {product} (x, w) {FOLLOWING[op]} }}"
        )
        model.graph.output[0].type.tensor_type.ClearField("shape")
        used = {name for node in model.graph.node for name in node.input}
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in used
        )
        results.append(evaluate_float64(model, {"x": np.linspace(-2, 2, 24).reshape(1, 3, 8)})["y"])
    rounded = 5e-9 if op == "Gelu by tanh" else 0.0  # its body has a factor of 0.044715 in float32
    assert relative_l2(results[1], results[0]) < max(1e-15, rounded)
