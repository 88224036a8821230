"""Checks of what a forward call is given: one line, expected and got named.

While `torch.export` traces, batch sizes and lengths are symbols. Only sizes that must be equal are compared, which
tells the exporter no more than the arithmetic after it does, so that every axis stays dynamic.
"""

import torch
from torch import Tensor

from crosshead.model_def.config import AttentionConfig
from crosshead.model_def.errors import InputError


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(str(size) for size in tensor.shape)})"


def check_features(name: str, tensor: Tensor, width: int) -> None:
    """Require (B, L, width).

    Raises:
        InputError: another rank or width.
    """
    if tensor.dim() != 3 or tensor.shape[-1] != width:
        raise InputError(f"{name}: expected shape (batch, length, {width}), got {_shape(tensor)}")


def check_attention_inputs(
    config: AttentionConfig,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
) -> None:
    """Check every input of an attention block against its configuration and against each other.

    Raises:
        InputError: a wrong rank, dtype, width, length or batch size; or only one of past_key and past_value.
    """
    check_features("query", query, config.d_model)
    check_features("key", key, config.kv_width)
    check_features("value", value, config.kv_width)
    if (past_key is None) != (past_value is None):
        missing = "past_value" if past_value is None else "past_key"
        raise InputError(f"past_key and past_value go together: expected {missing} as well, got none")
    heads, head_dim = config.kv_heads, config.head_size
    for name, past in (("past_key", past_key), ("past_value", past_value)):
        if past is not None and (past.dim() != 4 or past.shape[1] != heads or past.shape[3] != head_dim):
            raise InputError(f"{name}: expected shape (batch, {heads}, past length, {head_dim}), got {_shape(past)}")
    if attn_mask is not None:
        _check_mask_kind(attn_mask, query)
    if key_padding_mask is not None and (key_padding_mask.dim() != 2 or key_padding_mask.dtype != torch.bool):
        raise InputError(
            "key_padding_mask: expected torch.bool of shape (batch, key length), True at padding, "
            f"got {key_padding_mask.dtype} of shape {_shape(key_padding_mask)}"
        )
    _check_sizes(config, query, key, value, attn_mask, key_padding_mask, past_key, past_value)


def _check_mask_kind(attn_mask: Tensor, query: Tensor) -> None:
    if attn_mask.dtype not in (torch.bool, query.dtype):
        raise InputError(
            f"attn_mask: expected torch.bool (True may attend) or {query.dtype} (added to the scores), "
            f"got {attn_mask.dtype}"
        )
    if attn_mask.dim() not in (2, 4):
        raise InputError(
            "attn_mask: expected 2 axes (query length, key length) or 4 axes (batch or 1, heads or 1, query length, "
            f"key length), got {_shape(attn_mask)}"
        )


def _check_sizes(
    config: AttentionConfig,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
) -> None:
    batch, query_length, _ = query.shape
    for name, tensor in (("key", key), ("value", value), ("past_key", past_key), ("past_value", past_value)):
        if tensor is not None and tensor.shape[0] != batch:
            raise InputError(f"{name}: expected the query's batch size {batch}, got {tensor.shape[0]}")
    if value.shape[1] != key.shape[1]:
        raise InputError(f"value: expected the key's length {key.shape[1]}, got {value.shape[1]}")
    past_length = 0
    if past_key is not None and past_value is not None:
        past_length = past_key.shape[2]
        if past_value.shape[2] != past_length:
            raise InputError(f"past_value: expected past_key's length {past_length}, got {past_value.shape[2]}")
    key_length = past_length + key.shape[1]
    if key_padding_mask is not None and key_padding_mask.shape != (batch, key_length):
        raise InputError(
            f"key_padding_mask: expected shape ({batch}, {key_length}), batch and key length with the past, "
            f"got {_shape(key_padding_mask)}"
        )
    if attn_mask is not None:
        # Only axes before the last may be broadcast: a mask of one key for all keys is more often a mistake.
        want = (batch, config.num_heads, query_length, key_length)[-attn_mask.dim() :]
        fits = all(got in (1, size) for got, size in zip(attn_mask.shape[:-1], want[:-1], strict=True))
        if not fits or attn_mask.shape[-1] != key_length:
            axes = [f"{size} or 1" for size in want[:-1]]
            raise InputError(f"attn_mask: expected shape ({', '.join(axes)}, {key_length}), got {_shape(attn_mask)}")
