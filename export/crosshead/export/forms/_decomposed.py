"""The form `decomposed`: attention as MatMul, Softmax, MatMul, for any runtime, and equal to torch in every case.

    scores  = (scale * Q) Kᵀ                   the scale on the query, the smaller operand
    scores  = c tanh(scores / c)               with a softcap c, before any mask
    scores  = scores + mask                    an additive mask
    scores  = scores where kept, else -inf     a boolean mask, the causal frontier
    output  = softmax(scores) V where the query keeps a key, else 0

The last choice is made by the mask, never by looking for NaN: a NaN that the data brought must show.
Source of the meaning: https://onnx.ai/onnx/operators/onnx__Attention.html and the errata of onnx 1.23 in it.
"""

import math

import numpy as np
import onnx_ir as ir

from crosshead.export.artifact import FormError
from crosshead.export.forms import _masks
from crosshead.export.forms._attention import AttentionNode, attention_nodes
from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._rotary import expand_caches

_RAW, _CAPPED, _MASKED, _PROBABILITIES = range(4)


def to_decomposed(model: ir.Model, emit: Emitter) -> None:
    """Lower a canonical model at opset 23 in place, with nodes that every opset from 17 on has."""
    expand_caches(model, emit)
    for node in attention_nodes(model):
        _decompose(emit.before(node), AttentionNode.read(node))
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _decompose(emit: Emitter, attention: AttentionNode) -> None:
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    query = _split(emit, attention, attention.query, heads, "query")  # (B, H, L, D)
    key = _split(emit, attention, attention.key, kv_heads, "key")  # (B, G, S, D)
    value = _split(emit, attention, attention.value, kv_heads, "value")  # (B, G, S, E)
    if (attention.past_key is None) != (attention.past_value is None):
        raise FormError(f"Attention node {attention.node.name!r}: past_key and past_value must come together")
    if attention.past_key is not None:
        key = emit.op("Concat", attention.past_key, key, label="present_key", dtype=key.dtype, axis=2)
        value = emit.op("Concat", attention.past_value, value, label="present_value", dtype=value.dtype, axis=2)
    _give(emit, attention, 1, key)  # (B, G, T, D)
    _give(emit, attention, 2, value)  # (B, G, T, E)

    key, value = (_repeat(emit, x, heads, kv_heads, label) for x, label in ((key, "keys"), (value, "values")))
    key = emit.op("Transpose", key, label="key_transposed", dtype=key.dtype, perm=(0, 1, 3, 2))  # (B, H, D, T)
    raw = emit.op("MatMul", _scaled(emit, attention, query), key, label="scores", dtype=query.dtype)  # (B, H, L, T)
    capped = _capped(emit, attention, raw)
    masked, keep = _masked(emit, attention, capped)
    probabilities = _softmax(emit, attention, masked)
    wants_weights = attention.output(3) is not None
    guards_probabilities = keep is not None and wants_weights and attention.weights_mode == _PROBABILITIES
    if keep is not None and guards_probabilities:
        probabilities = _zero_unless(emit, _masks.keeps_any(emit, keep), probabilities, "weights")
    output = emit.op("MatMul", probabilities, value, label="attended", dtype=value.dtype)  # (B, H, L, E)
    if keep is not None and not guards_probabilities:
        output = _zero_unless(emit, _masks.keeps_any(emit, keep), output, "output")
    if wants_weights:
        _give(emit, attention, 3, (raw, capped, masked, probabilities)[attention.weights_mode])
    _give(emit, attention, 0, _merge(emit, attention, output, heads))


def _split(emit: Emitter, attention: AttentionNode, operand: ir.Value, heads: int, label: str) -> ir.Value:
    """One operand as (B, H, L, D), whichever layout the node has."""
    if not attention.is_3d:
        return operand
    sizes = (emit.length(operand, 0), emit.length(operand, 1), emit.ints(heads, attention.head_size_of(operand, heads)))
    split = emit.op(
        "Reshape", operand, emit.concat_lengths(*sizes), label=f"{label}_split", dtype=operand.dtype, allowzero=1
    )  # (B, L, H*D) -> (B, L, H, D)
    return emit.op("Transpose", split, label=f"{label}_heads", dtype=operand.dtype, perm=(0, 2, 1, 3))


def _merge(emit: Emitter, attention: AttentionNode, output: ir.Value, heads: int) -> ir.Value:
    """The output in the layout of the node."""
    if not attention.is_3d:
        return output
    swapped = emit.op("Transpose", output, label="swapped", dtype=output.dtype, perm=(0, 2, 1, 3))  # (B, L, H, E)
    width = heads * attention.head_size_of(attention.value, attention.num_kv_heads)
    sizes = emit.concat_lengths(emit.length(attention.query, 0), emit.length(attention.query, 1), emit.ints(width))
    return emit.op("Reshape", swapped, sizes, label="merged", dtype=output.dtype, allowzero=1)  # (B, L, H*E)


def _repeat(emit: Emitter, operand: ir.Value, heads: int, kv_heads: int, label: str) -> ir.Value:
    """Grouped heads repeated for their queries: head h of (B, H, T, D) is head h // (H/G) of (B, G, T, D)."""
    if heads == kv_heads:
        return operand
    if heads % kv_heads:
        raise FormError(f"{kv_heads} key/value heads must divide {heads} query heads")
    dtype = operand.dtype
    apart = emit.op("Unsqueeze", operand, emit.ints(2), label=f"{label}_apart", dtype=dtype)  # (B, G, 1, T, D)
    group = emit.ints(1, 1, heads // kv_heads, 1, 1)
    repeated = emit.op("Expand", apart, group, label=f"{label}_repeated", dtype=dtype)  # (B, G, H/G, T, D)
    sizes = (emit.length(operand, 0), emit.ints(heads), emit.length(operand, 2), emit.length(operand, 3))
    return emit.op(
        "Reshape", repeated, emit.concat_lengths(*sizes), label=label, dtype=dtype, allowzero=1
    )  # (B, H, T, D)


def _scaled(emit: Emitter, attention: AttentionNode, query: ir.Value) -> ir.Value:
    """The query times the scale.

    1/sqrt(D) is a division by a root that the graph takes, exact at every precision; an explicit scale is the float32
    attribute of the op, unless it is 1/sqrt(D) rounded.
    """
    dtype, size = query.dtype, attention.head_size
    assert dtype is not None
    scale = attention.scale
    if scale is None or np.float32(scale) == np.float32(1 / math.sqrt(size)):
        root = math.isqrt(size)
        if root * root == size:
            divisor = emit.constant(root, dtype, f"root_of_{size}")
        else:
            divisor = emit.op("Sqrt", emit.constant(size, dtype, f"head_size_{size}"), label="root", dtype=dtype)
        return emit.op("Div", query, divisor, label="query_scaled", dtype=dtype)
    return emit.op("Mul", query, emit.constant(scale, dtype, "scale"), label="query_scaled", dtype=dtype)


def _capped(emit: Emitter, attention: AttentionNode, scores: ir.Value) -> ir.Value:
    if not attention.softcap > 0:
        return scores
    dtype = scores.dtype
    assert dtype is not None
    cap = emit.constant(attention.softcap, dtype, "softcap")
    within = emit.op("Tanh", emit.op("Div", scores, cap, label="over_cap", dtype=dtype), label="tanh", dtype=dtype)
    return emit.op("Mul", within, cap, label="capped", dtype=dtype)


def _masked(emit: Emitter, attention: AttentionNode, scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The scores under mask and frontier, and what is kept where some row may keep nothing."""
    dtype, mask = scores.dtype, attention.mask
    assert dtype is not None
    frontier = _masks.causal(emit, attention) if attention.is_causal else None
    keep = select = frontier
    if mask is not None:
        if mask.dtype not in (ir.DataType.BOOL, dtype):
            mask = emit.op("Cast", mask, label="mask_cast", dtype=dtype, to=dtype.value)
        mask = _masks.padded(emit, attention, mask)
        if mask.dtype == ir.DataType.BOOL:
            select = mask
        else:
            scores = emit.op("Add", scores, mask, label="biased", dtype=dtype)
        keep = _masks.kept(emit, mask)
        if frontier is not None:
            keep = emit.op("And", keep, frontier, label="kept", dtype=ir.DataType.BOOL)
            select = keep if select is mask else frontier
    if select is not None:
        scores = emit.op("Where", select, scores, emit.constant(-np.inf, dtype, "masked"), label="masked", dtype=dtype)
    # The causal frontier alone leaves every query the first key.
    return scores, keep if mask is not None else None


def _softmax(emit: Emitter, attention: AttentionNode, scores: ir.Value) -> ir.Value:
    dtype, precision = scores.dtype, attention.softmax_precision
    if precision is None or precision == dtype:
        return emit.op("Softmax", scores, label="probabilities", dtype=dtype, axis=-1)
    assert dtype is not None
    inside = ir.DataType(precision)
    scores = emit.op("Cast", scores, label="scores_cast", dtype=inside, to=inside.value)
    probabilities = emit.op("Softmax", scores, label="probabilities", dtype=inside, axis=-1)
    return emit.op("Cast", probabilities, label="probabilities_cast", dtype=dtype, to=dtype.value)


def _zero_unless(emit: Emitter, condition: ir.Value, value: ir.Value, label: str) -> ir.Value:
    assert value.dtype is not None
    zero = emit.constant(0, value.dtype, "zero")
    return emit.op("Where", condition, value, zero, label=label, dtype=value.dtype)


def _give(emit: Emitter, attention: AttentionNode, index: int, value: ir.Value) -> None:
    old = attention.output(index)
    if old is not None:
        emit.substitute(old, value)
