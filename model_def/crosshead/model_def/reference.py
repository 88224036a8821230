"""Every block again in NumPy and float64, from its equation: one head, one query at a time. Free of torch.

It shares the configuration records with the torch blocks and nothing else, so that a mistake would have to be made
twice to go unseen. Slow on purpose: loops instead of broadcasting, complex numbers for rotary positions.

Weights go by the names of the torch block's `state_dict()`.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosshead.model_def.config import (
    QK_NORM_EPS,
    Activation,
    AttentionConfig,
    EncoderConfig,
    FeedForwardConfig,
    RotaryConfig,
)

Array = NDArray[np.float64]
Given = NDArray[Any]
Weights = Mapping[str, Given]


class AttentionResult(NamedTuple):
    """What one attention block computes.

    Attributes:
        output: (B, Lq, d_model).
        weights: (B, H, Lq, Lk); each row sums to 1, or to 0 where it is fully masked.
        present_key: (B, Hkv, Lk, head_dim), after norm and rotary positions.
        present_value: (B, Hkv, Lk, head_dim).
    """

    output: Array
    weights: Array
    present_key: Array
    present_value: Array


def _real(array: Given) -> Array:
    return np.asarray(array, dtype=np.float64)


def _linear(weights: Weights, name: str, x: Array) -> Array:
    """X Wᵀ + b; W is (out, in)."""
    product: Array = np.einsum("...i,oi->...o", x, _real(weights[f"{name}.weight"]))
    bias = weights.get(f"{name}.bias")
    return product if bias is None else product + _real(bias)


def _layer_norm(weights: Weights, name: str, x: Array, eps: float) -> Array:
    mean: Array = x.mean(axis=-1, keepdims=True)
    variance: Array = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * _real(weights[f"{name}.weight"]) + _real(weights[f"{name}.bias"])


def _rms_norm(weights: Weights, name: str, x: Array, eps: float) -> Array:
    mean_square: Array = (x**2).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * _real(weights[f"{name}.weight"])


def _head_norm(config: AttentionConfig, weights: Weights, name: str, x: Array) -> Array:
    if config.qk_norm is None:
        return x
    norm = _rms_norm if config.qk_norm == "rms" else _layer_norm
    return norm(weights, name, x, QK_NORM_EPS)


def _rotate(rotary: RotaryConfig, vector: Array, position: int) -> Array:
    """Turn one head's vector: features i and i + dim/2 are one complex number, times exp(i · position · frequency)."""
    dim = vector.shape[0] if rotary.dim is None else rotary.dim
    half = dim // 2
    frequencies = rotary.base ** (-2.0 * np.arange(half) / dim)
    turned = (vector[:half] + 1j * vector[half:dim]) * np.exp(1j * position * frequencies)
    return np.concatenate([turned.real, turned.imag, vector[dim:]])


def _heads(
    config: AttentionConfig, weights: Weights, name: str, source: Array, heads: int, first_position: int
) -> Array:
    """Project, cut into heads and, for queries and keys, norm and turn: (B, L, width) to (B, heads, L, head_dim)."""
    batch, length, _ = source.shape
    projected = _linear(weights, f"{name}_projection", source)
    result = np.empty((batch, heads, length, config.head_size))
    for b in range(batch):
        for h in range(heads):
            for i in range(length):
                vector = projected[b, i, h * config.head_size : (h + 1) * config.head_size]
                if name != "value":
                    vector = _head_norm(config, weights, f"{name}_norm", vector)
                    if config.rotary is not None:
                        vector = _rotate(config.rotary, vector, first_position + i)
                result[b, h, i] = vector
    return result


def _sees(config: AttentionConfig, query_position: int, key_position: int) -> bool:
    if config.is_causal and key_position > query_position:
        return False
    return config.window is None or abs(query_position - key_position) < config.window


def multi_head_attention(
    config: AttentionConfig,
    weights: Weights,
    query: Given,
    key: Given | None = None,
    value: Given | None = None,
    attn_mask: Given | None = None,
    key_padding_mask: Given | None = None,
    past_key: Given | None = None,
    past_value: Given | None = None,
) -> AttentionResult:
    """Attention heads side by side, concatenated and mixed; arguments as for `MultiHeadAttention.forward`."""
    query = _real(query)
    key = query if key is None else _real(key)
    value = key if value is None else _real(value)
    past = 0 if past_key is None else past_key.shape[2]
    q = _heads(config, weights, "query", query, config.num_heads, past)
    k = _heads(config, weights, "key", key, config.kv_heads, past)
    v = _heads(config, weights, "value", value, config.kv_heads, past)
    if past_key is not None and past_value is not None:
        k = np.concatenate([_real(past_key), k], axis=2)  # (B, Hkv, P + S, d)
        v = np.concatenate([_real(past_value), v], axis=2)  # (B, Hkv, P + S, d)
    batch, heads, query_length, head_dim = q.shape
    key_length = k.shape[2]
    mask = None if attn_mask is None else np.broadcast_to(attn_mask, (batch, heads, query_length, key_length))

    mixed = np.zeros((batch, query_length, heads * head_dim))
    probabilities = np.zeros((batch, heads, query_length, key_length))
    factor = 1.0 / math.sqrt(head_dim) if config.scale is None else config.scale
    for b in range(batch):
        for h in range(heads):
            shared = h // (heads // config.kv_heads)
            for i in range(query_length):
                scores = factor * (k[b, shared] @ q[b, h, i])
                if config.softcap is not None:
                    scores = config.softcap * np.tanh(scores / config.softcap)
                seen = np.array([_sees(config, past + i, j) for j in range(key_length)], dtype=bool)
                if key_padding_mask is not None:
                    seen &= ~key_padding_mask[b]
                if mask is not None and mask.dtype == np.bool_:
                    seen &= mask[b, h, i]
                elif mask is not None:
                    seen &= mask[b, h, i] != -np.inf
                    scores = scores + np.where(seen, mask[b, h, i], 0.0)
                if not seen.any():
                    continue  # attends to nothing: weights and mixed values stay 0
                exponentials = np.exp(scores[seen] - scores[seen].max())
                probabilities[b, h, i, seen] = exponentials / exponentials.sum()
                mixed[b, i, h * head_dim : (h + 1) * head_dim] = probabilities[b, h, i] @ v[b, shared]
    return AttentionResult(_linear(weights, "output_projection", mixed), probabilities, k, v)


def _activate(kind: Activation, x: Array) -> Array:
    if kind == "relu":
        return np.maximum(x, 0.0)
    if kind == "silu":
        return x / (1.0 + np.exp(-x))
    if kind == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    erf = np.array([math.erf(each / math.sqrt(2.0)) for each in x.ravel()]).reshape(x.shape)
    return 0.5 * x * (1.0 + erf)


def feed_forward(config: FeedForwardConfig, weights: Weights, x: Given) -> Array:
    """act(x W1 + b1) W2 + b2; (B, L, d_model) to the same."""
    hidden = _activate(config.activation, _linear(weights, "expand", _real(x)))
    return _linear(weights, "contract", hidden)


def encoder_layer(
    config: EncoderConfig,
    weights: Weights,
    x: Given,
    attn_mask: Given | None = None,
    key_padding_mask: Given | None = None,
) -> Array:
    """One encoder layer, pre- or post-norm; (B, L, d_model) to the same."""

    def attend(tokens: Array) -> Array:
        part = _under(weights, "attention.")
        return multi_head_attention(
            config.attention, part, tokens, attn_mask=attn_mask, key_padding_mask=key_padding_mask
        ).output

    def transform(tokens: Array) -> Array:
        return feed_forward(config.feed_forward, _under(weights, "feed_forward."), tokens)

    def norm(name: str, tokens: Array) -> Array:
        return _layer_norm(weights, name, tokens, config.norm_eps)

    x = _real(x)
    if config.norm_first:
        hidden = x + attend(norm("attention_norm", x))
        return hidden + transform(norm("feed_forward_norm", hidden))
    hidden = norm("attention_norm", x + attend(x))
    return norm("feed_forward_norm", hidden + transform(hidden))


def _under(weights: Weights, prefix: str) -> dict[str, Given]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def evaluate(
    config: AttentionConfig | FeedForwardConfig | EncoderConfig, weights: Weights, inputs: Mapping[str, Given]
) -> tuple[Array, ...]:
    """All outputs of a block, in the order of its forward.

    Args:
        config: which block.
        weights: its parameters by `state_dict()` name.
        inputs: its inputs by argument name.

    Returns:
        The output; for attention with a past then present_key and present_value. float64.
    """
    if isinstance(config, FeedForwardConfig):
        return (feed_forward(config, weights, **inputs),)
    if isinstance(config, EncoderConfig):
        return (encoder_layer(config, weights, **inputs),)
    result = multi_head_attention(config, weights, **inputs)
    if "past_key" in inputs:
        return result.output, result.present_key, result.present_value
    return (result.output,)
