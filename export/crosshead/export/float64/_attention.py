"""Attention in float64, for every operator that attends: the standard's here, those of ONNX Runtime beside it.

Scores are multiplied before they are scaled, as matrix units and fused kernels do it, so that `emulation` rounds the
factors that they round; in float64 it is all the same.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosshead.export.float64._product import Multiplying

_Array = NDArray[Any]


class Attending(Multiplying):
    """An operator that attends."""

    def attend(
        self,
        query: _Array,
        key: _Array,
        value: _Array,
        bias: _Array | None = None,
        *,
        scale: float | None = None,
        softcap: float = 0.0,
        sink: _Array | None = None,
        empty_is_zero: bool = False,
        stage: int | None = None,
    ) -> tuple[_Array, _Array]:
        """Return softmax(softcap(scale Q K^T) + bias) V, and one of the arrays on the way.

        Args:
            query: (B, H, L, D).
            key: (B, G, T, D), where G divides H: each head serves H / G queries that follow each other.
            value: (B, G, T, E).
            bias: broadcasts to (B, H, L, T).
            scale: 1 / sqrt(D) when left out.
            softcap: c in c tanh(x / c); no cap when 0.
            sink: (H,): for each head the logit of one more key, whose value is 0.
            empty_is_zero: a row that the bias masks as a whole gives 0; else NaN.
            stage: what the second result is: 0 scaled scores, 1 those capped, 2 those with the bias, 3 probabilities.

        Returns:
            (B, H, L, E), and (B, H, L, T), which is empty when no stage is asked for.
        """
        batch, heads, queries, size = query.shape
        groups, keys = key.shape[1], key.shape[2]
        asked = np.zeros((batch, heads, queries, 0))
        split = query.reshape(batch, groups, heads // groups, queries, size)  # (B, H, L, D) -> (B, G, H/G, L, D)
        scores = self.multiply(split, key[:, :, np.newaxis].swapaxes(-1, -2))  # (B, G, 1, D, T) -> (B, G, H/G, L, T)
        scores = scores.reshape(batch, heads, queries, keys) * (1.0 / np.sqrt(size) if scale is None else float(scale))
        asked = scores if stage == 0 else asked
        if softcap > 0:
            scores = float(softcap) * np.tanh(scores / float(softcap))
        asked = scores if stage == 1 else asked
        if bias is not None:
            scores = scores + bias
        asked = scores if stage == 2 else asked
        if scores.size:
            scores = _softmax(scores, None if sink is None else sink.reshape(-1, 1, 1))  # (H,) -> (H, 1, 1)
            if bias is not None and empty_is_zero:
                empty = np.isneginf(bias.max(axis=-1, keepdims=True)) if bias.ndim else np.isneginf(bias)
                scores = np.where(empty, 0.0, scores)
        asked = scores if stage == 3 else asked
        split = scores.reshape(batch, groups, heads // groups, queries, keys)  # (B, H, L, T) -> (B, G, H/G, L, T)
        output = self.multiply(split, value[:, :, np.newaxis])  # (B, G, 1, T, E) -> (B, G, H/G, L, E)
        return output.reshape(batch, heads, queries, value.shape[-1]), asked


def _softmax(scores: _Array, sink: _Array | None) -> _Array:
    largest = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        largest = np.maximum(largest, sink)
    exponentials: _Array = scores - largest
    np.exp(exponentials, out=exponentials)
    total = exponentials.sum(axis=-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - largest)
    exponentials /= total
    return exponentials


def split_heads(x: _Array, heads: int) -> _Array:
    """(B, L, H D) -> (B, H, L, D)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def merge_heads(x: _Array) -> _Array:
    """(B, H, L, D) -> (B, L, H D)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def as_bias(keep: _Array, fill: float = -np.inf) -> _Array:
    """Return 0 where a mask keeps, `fill` where it does not."""
    return np.where(keep, 0.0, fill)


class Attention(Attending):
    """Attention of opsets 23 to 25, https://onnx.ai/onnx/operators/onnx__Attention.html.

    A mask whose last axis is 1 is broadcast over the keys, as every axis of it may be; `onnx.reference` and the body in
    the schema take it for the mask of the first key alone and mask the rest.
    """

    def _run(
        self,
        query: _Array,
        key: _Array,
        value: _Array,
        mask: _Array | None = None,
        past_key: _Array | None = None,
        past_value: _Array | None = None,
        nonpad: _Array | None = None,
        *,
        is_causal: int | None = 0,
        scale: float | None = None,
        softcap: float | None = 0.0,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        qk_matmul_output_mode: int | None = 0,
        softmax_precision: int | None = None,  # noqa: ARG002  # nothing is rounded here
        left_window_size: int | None = -1,
        right_window_size: int | None = -1,
    ) -> tuple[_Array, ...]:
        packed = query.ndim == 3
        if packed:
            if not q_num_heads or not kv_num_heads:
                raise ValueError("3-D inputs need q_num_heads and kv_num_heads")
            query, key, value = (
                split_heads(query, q_num_heads),
                split_heads(key, kv_num_heads),
                split_heads(value, kv_num_heads),
            )
        if past_key is not None and past_value is not None:
            key = np.concatenate((past_key, key), axis=2)  # (B, G, P, D), (B, G, S, D) -> (B, G, T, D)
            value = np.concatenate((past_value, value), axis=2)
        queries, keys = query.shape[2], key.shape[2]
        offset: _Array = np.array(0 if past_key is None else past_key.shape[2])
        if past_key is None and nonpad is not None:
            offset = nonpad.reshape(-1, 1, 1, 1) - queries  # (B,) -> (B, 1, 1, 1)
        distance = np.arange(keys) - (np.arange(queries)[:, np.newaxis] + offset)  # (T,), (L, 1) -> (…, L, T)
        keep = np.ones_like(distance, dtype=np.bool_)
        if is_causal:
            keep &= distance <= 0
        if left_window_size is not None and left_window_size >= 0:
            keep &= distance >= -left_window_size
        if right_window_size is not None and right_window_size >= 0:
            keep &= distance <= right_window_size
        if nonpad is not None:
            keep = keep & (np.arange(keys) < nonpad.reshape(-1, 1, 1, 1))  # -> (B, 1, L, T)
        bias = None if keep.all() else as_bias(keep)
        if mask is not None:
            added = _padded(mask, keys)
            bias = added if bias is None else added + bias
        output, asked = self.attend(
            query,
            key,
            value,
            bias,
            scale=scale,
            softcap=softcap or 0.0,
            empty_is_zero=True,
            stage=(qk_matmul_output_mode or 0) if len(self.onnx_node.output) > 3 else None,
        )
        return merge_heads(output) if packed else output, key, value, asked


def _padded(mask: _Array, keys: int) -> _Array:
    """Return what a mask adds to the scores, its last axis 1 or all keys; keys after its end are masked."""
    added = as_bias(mask) if mask.dtype == np.bool_ else mask
    short = keys - added.shape[-1]
    if short <= 0 or added.shape[-1] == 1:
        return added
    return np.pad(added, [(0, 0)] * (added.ndim - 1) + [(0, short)], constant_values=-np.inf)
