"""The operators of ONNX Runtime's own domain that attend, in float64.

By https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md and, where that is silent, by what the
CPU kernels of release 1.32 do; tests hold them against each other. A mask of padded keys adds `mask_filter_value` to
their scores, so that a row all of whose keys are padded attends to all of them; a causal mask adds -inf.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from crosshead.export.float64._attention import Attending, as_bias, merge_heads, split_heads
from crosshead.export.float64._contrib import Contrib, rotate

_Array = NDArray[Any]
_FILL = -10000.0


class MultiHeadAttention(Contrib, Attending):
    """Attention over projected queries, keys and values, packed together or apart, with a cache or without."""

    def _run(
        self,
        query: _Array,
        key: _Array | None = None,
        value: _Array | None = None,
        bias: _Array | None = None,
        padding: _Array | None = None,
        attention_bias: _Array | None = None,
        past_key: _Array | None = None,
        past_value: _Array | None = None,
        past_length: _Array | None = None,
        beams: _Array | None = None,
        *,
        num_heads: int,
        mask_filter_value: float = _FILL,
        scale: float = 0.0,
        unidirectional: int = 0,
    ) -> tuple[_Array, ...]:
        if past_length is not None or beams is not None:
            raise ValueError("past_sequence_length and cache_indirection are not defined here")
        query, key, value = _heads(query, key, value, bias, num_heads)
        if past_key is not None and past_value is not None:
            key = np.concatenate((past_key, key), axis=2)  # (B, H, P, D), (B, H, S, D) -> (B, H, T, D)
            value = np.concatenate((past_value, value), axis=2)
        past = 0 if past_key is None else past_key.shape[2]
        added = _added(padding, mask_filter_value, len(query), query.shape[2], key.shape[2])
        if unidirectional:
            added = _sum(added, _causal(query.shape[2], key.shape[2], past))
        added = _sum(attention_bias, added)
        output, scores = self.attend(query, key, value, added, scale=scale or None, stage=2)
        return merge_heads(output), key, value, scores


def _heads(
    query: _Array, key: _Array | None, value: _Array | None, bias: _Array | None, heads: int
) -> tuple[_Array, _Array, _Array]:
    """Return queries (B, H, L, D), keys (B, H, S, D) and values (B, H, S, E)."""
    if query.ndim == 5:  # (B, L, H, 3, D)
        query, key, value = (query[:, :, :, part].reshape(*query.shape[:2], -1) for part in range(3))
    elif key is not None and key.ndim == 5:  # (B, S, H, 2, D)
        key, value = (key[:, :, :, part].reshape(*key.shape[:2], -1) for part in range(2))
    if key is None or value is None:
        raise ValueError("key and value are missing, and the query does not hold them")
    width = query.shape[-1]
    if bias is not None:
        query = query + bias[:width]
        if key.ndim == 3:
            key, value = key + bias[width : width + key.shape[-1]], value + bias[width + key.shape[-1] :]
    if key.ndim == 3:
        key, value = split_heads(key, heads), split_heads(value, heads)
    return split_heads(query, heads), key, value


def _sum(a: _Array | None, b: _Array | None) -> _Array | None:
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a + b)


def _causal(queries: int, keys: int, past: int) -> _Array:
    """Return the causal mask (L, T) after so many cached keys.

    Raises:
        ValueError: keys that no query stands at; kernels do not agree on them, and mask all rows but the last.
    """
    if keys - past > queries:
        raise ValueError(f"unidirectional is not defined for {queries} queries and {keys - past} new keys")
    return as_bias(np.tri(queries, keys, past, dtype=np.bool_))


def _added(padding: _Array | None, fill: float, batch: int, queries: int, keys: int) -> _Array | None:
    """Return what a mask of padded keys adds to the scores (B, H, L, T).

    Args:
        padding: (B,) numbers of keys before the padding, also as the first of (3 B + 2,); (2 B,) those, and then where
            the first keys start; (B, T) or (B, L, T) with 0 at padded keys; (B, 1, M, M), of which the part for these
            queries and keys is taken.
        fill: what it adds.
        batch: B.
        queries: L.
        keys: T.
    """
    if padding is None or (padding.ndim == 2 and padding.shape[1] == 1 != keys):  # a mask of one column masks nothing
        return None
    if padding.ndim == 1:
        places, ends = np.arange(keys), padding[:batch, np.newaxis]  # (B,) -> (B, 1)
        keep = places < ends  # (B, T)
        if len(padding) == 2 * batch:
            keep &= places >= padding[batch:, np.newaxis]
        keep = keep[:, np.newaxis, np.newaxis]  # (B, T) -> (B, 1, 1, T)
    elif padding.ndim == 2:
        keep = padding[:, np.newaxis, np.newaxis] > 0  # (B, T) -> (B, 1, 1, T)
    elif padding.ndim == 3:
        keep = padding[:, np.newaxis] > 0  # (B, L, T) -> (B, 1, L, T)
    else:
        keep = padding[:, :, keys - queries : keys, :keys] > 0
    return as_bias(keep, float(fill))


class Attention(Contrib, Attending):
    """Attention over hidden states, whose projections are packed into one matrix."""

    def _run(
        self,
        hidden: _Array,
        weights: _Array,
        bias: _Array | None = None,
        padding: _Array | None = None,
        past: _Array | None = None,
        attention_bias: _Array | None = None,
        past_length: _Array | None = None,
        *,
        num_heads: int,
        mask_filter_value: float = _FILL,
        qkv_hidden_sizes: list[int] | None = None,
        scale: float = 0.0,
        unidirectional: int = 0,
        do_rotary: int = 0,
        rotary_embedding_dim: int = 0,
        past_present_share_buffer: int = 0,
    ) -> tuple[_Array, ...]:
        if past_length is not None or past_present_share_buffer or do_rotary or rotary_embedding_dim:
            raise ValueError("do_rotary and a shared cache buffer are not defined here")
        projected = self.multiply(hidden, weights)  # (B, L, W) (W, D + D + E) -> (B, L, D + D + E)
        projected = projected if bias is None else projected + bias
        first, second, _ = qkv_hidden_sizes or [weights.shape[1] // 3] * 3
        query, key, value = (
            split_heads(part, num_heads) for part in np.split(projected, [first, first + second], axis=-1)
        )
        cached = 0
        if past is not None:  # (2, B, H, P, D)
            cached = past.shape[3]
            key, value = np.concatenate((past[0], key), axis=2), np.concatenate((past[1], value), axis=2)
        batch, _, queries, _ = query.shape
        added = _added(padding, mask_filter_value, batch, queries, key.shape[2])
        if unidirectional:
            added = _sum(added, _causal(queries, key.shape[2], cached))
        output, _ = self.attend(query, key, value, _sum(attention_bias, added), scale=scale or None)
        present = np.stack((key, value)) if key.shape == value.shape else np.zeros(0)  # (2, B, H, T, D)
        return merge_heads(output), present


class GroupQueryAttention(Contrib, Attending):
    """Causal attention of grouped heads over a cache that is filled as far as `lengths` say for each of a batch.

    What a row of padding gives, after the end of its sequence, is not defined, and kernels leave anything there.
    """

    def _run(
        self,
        query: _Array,
        key: _Array | None,
        value: _Array | None,
        past_key: _Array | None,
        past_value: _Array | None,
        lengths: _Array,
        total: _Array,
        cos: _Array | None = None,
        sin: _Array | None = None,
        places: _Array | None = None,
        attention_bias: _Array | None = None,
        sink: _Array | None = None,
        *others: _Array | None,
        num_heads: int,
        kv_num_heads: int,
        causal: int = 1,
        do_rotary: int = 0,
        local_window_size: int = -1,
        qk_output: int = 0,
        rotary_interleaved: int = 0,
        scale: float = 0.0,
        smooth_softmax: int = -1,
        softcap: float = 0.0,
        k_quant_type: str = "NONE",
        v_quant_type: str = "NONE",
        **more: Any,
    ) -> tuple[_Array, ...]:
        if any(other is not None for other in others) or (k_quant_type, v_quant_type) != ("NONE", "NONE"):
            raise ValueError("a quantized cache, norms of queries and keys, and query_seqlens are not defined here")
        if more.get("sliding_window_cache"):
            raise ValueError("sliding_window_cache is not defined here")
        heads, groups = num_heads, kv_num_heads
        if key is None or value is None:
            size = query.shape[-1] // (heads + 2 * groups)
            query, key, value = np.split(query, [heads * size, (heads + groups) * size], axis=-1)
        query, key, value = split_heads(query, heads), split_heads(key, groups), split_heads(value, groups)
        batch, _, queries, _ = query.shape
        ends = lengths.reshape(-1).astype(np.int64) + 1  # (B,)
        longest = int(total.reshape(-1)[0])
        starts = np.zeros(batch, np.int64) if queries == longest else ends - queries  # (B,)
        rows = starts[:, np.newaxis] + np.arange(queries)  # (B, 1), (L,) -> (B, L)
        if do_rotary and cos is not None and sin is not None:
            used = rows if places is None else places  # (B, L)
            if places is not None and queries == longest:  # of a prompt only the first place counts
                used = rows + places.reshape(-1)[0]
            angles = cos[used][:, np.newaxis], sin[used][:, np.newaxis]  # (B, L) -> (B, 1, L, R/2)
            query = rotate(query, *angles, interleaved=bool(rotary_interleaved))
            key = rotate(key, *angles, interleaved=bool(rotary_interleaved))
        keys = max(longest, 0 if past_key is None else past_key.shape[2])
        present_key, present_value = (
            _filled(new, past, starts, keys) for new, past in ((key, past_key), (value, past_value))
        )
        distance = np.arange(keys) - rows[:, np.newaxis, :, np.newaxis]  # (T,), (B, 1, L, 1) -> (B, 1, L, T)
        keep = distance <= 0 if causal else np.arange(keys) < ends.reshape(-1, 1, 1, 1)
        if local_window_size > 0:
            keep &= distance > -local_window_size
        bias = as_bias(keep)
        if attention_bias is not None:
            bias = bias + _widened(attention_bias, keys)
        if sink is None and smooth_softmax > 0:
            sink = np.zeros(heads)
        stage = {1: 2, 2: 3}.get(qk_output)
        output, shown = self.attend(
            query, present_key, present_value, bias, scale=scale or None, softcap=softcap, sink=sink, stage=stage
        )
        return merge_heads(output), present_key, present_value, shown


def _filled(new: _Array, past: _Array | None, starts: _Array, keys: int) -> _Array:
    """Return a cache (B, G, T, D): of each member of the batch the past up to a place, the new from there, then 0."""
    batch, groups, count, size = new.shape
    present = np.zeros((batch, groups, keys, size))
    for member, start in enumerate(starts):
        if past is not None:
            present[member, :, :start] = past[member, :, :start]
        present[member, :, start : start + count] = new[member]
    return present


def _widened(bias: _Array, keys: int) -> _Array:
    """Return a bias (…, L, S) for T keys; the keys after its end get 0, and are after the end of every sequence."""
    short = keys - bias.shape[-1]
    return np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, short)]) if short > 0 else bias


CONTRIB_ATTENTION_OPS: tuple[type[OpRun], ...] = (Attention, GroupQueryAttention, MultiHeadAttention)
