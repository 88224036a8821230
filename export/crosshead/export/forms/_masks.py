"""What forms do to the mask of an Attention node, (…, L, T) or fewer axes, T = P + S keys.

A last axis of fixed size 1 is a broadcast, as `scaled_dot_product_attention` means it. A last axis of another size is
what the op says: when it is shorter than T, the keys beyond it are masked.
"""

import numpy as np
import onnx_ir as ir

from crosshead.export.forms._attention import AttentionNode
from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._shapes import added, dim, proved_equal, rank, static_dim


def total_length(emit: Emitter, attention: AttentionNode) -> ir.Value:
    """T, the number of keys with those of the past, as a 1-D int64 value."""
    new = emit.length(attention.key, attention.length_axis)
    if attention.past_key is None:
        return new
    return emit.op("Add", emit.length(attention.past_key, 2), new, label="total", dtype=ir.DataType.INT64)


def expanded(emit: Emitter, attention: AttentionNode, mask: ir.Value) -> ir.Value:
    """The mask with its query and key axes at full size, (…, L, T); as it is where shapes prove that they are.

    ONNX Runtime's kernels refuse a query axis of 1, a key axis of 1 and a mask of one axis; batch and head axes of 1
    they broadcast.
    """
    one = emit.ints(1)
    query_is_full = (rank(mask) or 0) >= 2 and proved_equal(dim(mask, -2), dim(attention.query, attention.length_axis))
    key_broadcasts = static_dim(mask, -1) == 1 and not _one_key(attention)
    if query_is_full and not key_broadcasts:
        return mask
    queries = one if query_is_full else emit.length(attention.query, attention.length_axis)
    keys = total_length(emit, attention) if key_broadcasts else one
    # Expand broadcasts both ways: axes that the target has as 1, or not at all, stay.
    return emit.op("Expand", mask, emit.concat_lengths(queries, keys), label="mask_expanded", dtype=mask.dtype)


def above_lowest(emit: Emitter, mask: ir.Value) -> ir.Value:
    """An additive mask whose lowest finite numbers are raised a little, to 63/64 of it.

    ONNX Runtime's kernels take a score of exactly the lowest number as masked for good, and make a row of them 0; in
    torch such a row is the mean of the values. Both numbers swallow any score that they are added to.
    """
    assert mask.dtype is not None
    lowest = float(mask.dtype.min)
    is_lowest = emit.op(
        "Equal", mask, emit.constant(lowest, mask.dtype, "lowest"), label="mask_is_lowest", dtype=ir.DataType.BOOL
    )
    raised = emit.constant(lowest * (63 / 64), mask.dtype, "above_lowest")
    result = emit.op("Where", is_lowest, raised, mask, label="mask_above_lowest", dtype=mask.dtype)
    result.shape = mask.shape  # `expanded` goes by it
    return result


def padded(emit: Emitter, attention: AttentionNode, mask: ir.Value) -> ir.Value:
    """The mask with the keys beyond its last axis masked; as it is where shapes prove that there are none."""
    axes, keys = rank(mask), dim(mask, -1)
    if axes is None or mask.dtype is None or static_dim(mask, -1) == 1:
        return mask
    total = dim(attention.key, attention.length_axis)
    if attention.past_key is not None:
        total = added(dim(attention.past_key, 2), total)
    if proved_equal(keys, total):
        return mask
    missing = emit.op(
        "Sub", total_length(emit, attention), emit.length(mask, axes - 1), label="missing", dtype=ir.DataType.INT64
    )
    pads = emit.concat_lengths(emit.ints(*[0] * (2 * axes - 1)), missing)
    fill = emit.constant(False if mask.dtype == ir.DataType.BOOL else -np.inf, mask.dtype, "masked")
    return emit.op("Pad", mask, pads, fill, label="mask_padded", dtype=mask.dtype)


def causal(emit: Emitter, attention: AttentionNode) -> ir.Value:
    """Which key each query may see, (L, T): key j where j <= i + P, the query's place after the P past keys."""
    int64 = ir.DataType.INT64
    zero, one = emit.constant(0, int64, "zero"), emit.constant(1, int64, "one")
    queries = _scalar(emit, emit.length(attention.query, attention.length_axis))
    places = emit.op("Range", zero, queries, one, label="query_places", dtype=int64)  # (L,)
    if attention.past_key is not None:
        places = emit.op("Add", places, emit.length(attention.past_key, 2), label="places_after_past", dtype=int64)
    keys = emit.op("Range", zero, _scalar(emit, total_length(emit, attention)), one, label="key_places", dtype=int64)
    column = emit.op("Unsqueeze", places, emit.ints(1), label="query_column", dtype=int64)  # (L, 1)
    return emit.op("LessOrEqual", keys, column, label="causal", dtype=ir.DataType.BOOL)  # (L, T)


def kept(emit: Emitter, mask: ir.Value) -> ir.Value:
    """Which keys a mask leaves in: its own truth, or everything above -inf (a NaN is left in, and so it shows)."""
    if mask.dtype == ir.DataType.BOOL:
        return mask
    assert mask.dtype is not None
    infinite = emit.constant(-np.inf, mask.dtype, "masked")
    dropped = emit.op("Equal", mask, infinite, label="mask_drops", dtype=ir.DataType.BOOL)
    return emit.op("Not", dropped, label="mask_keeps", dtype=ir.DataType.BOOL)


def keeps_any(emit: Emitter, keep: ir.Value) -> ir.Value:
    """Which queries have a key left, (…, L, 1). A sum, so that no keys at all give False."""
    counted = emit.op("Cast", keep, label="kept_as_int", dtype=ir.DataType.INT32, to=ir.DataType.INT32.value)
    count = emit.op("ReduceSum", counted, emit.ints(-1), label="kept_count", dtype=ir.DataType.INT32, keepdims=1)
    return emit.op("Cast", count, label="keeps_any", dtype=ir.DataType.BOOL, to=ir.DataType.BOOL.value)


def _one_key(attention: AttentionNode) -> bool:
    return attention.past_key is None and static_dim(attention.key, attention.length_axis) == 1


def _scalar(emit: Emitter, length: ir.Value) -> ir.Value:
    return emit.op("Squeeze", length, emit.ints(0), label="length", dtype=ir.DataType.INT64)  # (1,) -> ()
