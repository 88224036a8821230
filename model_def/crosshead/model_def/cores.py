"""The core of attention, from projected heads to mixed values, written twice.

    core(q, k, v) = softmax(cap(scale · q kᵀ) + mask) v        cap(s) = c · tanh(s / c), or s without a softcap

Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), equation 1. Grouped heads: query head h reads
key/value head h // group (Ainslie et al. 2023, arXiv:2305.13245). Softcap: Gemma 2 (arXiv:2408.00118), before the mask.

`sdpa_core` calls `torch.nn.functional.scaled_dot_product_attention`, which exporters write as the standard Attention
operator; `explicit_core` writes each step, and so has weights to show and a place for the softcap. They agree to
rounding. Fully masked rows give 0 in both.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import Tensor

from crosshead.model_def.masks import causal_keep, row_keeps


def sdpa_core(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool, scale: float | None
) -> Tensor:
    """Attention by torch's own function.

    Args:
        query: (B, H, Lq, d).
        key: (B, Hkv, Lk, d), Hkv dividing H.
        value: (B, Hkv, Lk, d).
        mask: (B | 1, H | 1, Lq, Lk), boolean or of the query's dtype; None with is_causal.
        is_causal: query i sees keys 0 to i (upper-left aligned when the lengths differ).
        scale: factor on the scores, or None for 1/sqrt(d). A factor of 0 or below is multiplied into the query,
            since the Attention operator of ONNX Runtime refuses it as an attribute.

    Returns:
        (B, H, Lq, d).
    """
    if scale is not None and scale <= 0:
        query, scale = query * scale, 1.0
    grouped = bool(query.shape[1] != key.shape[1])  # while tracing, a comparison of sizes is a tensor
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )


def explicit_core(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    scale: float | None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention step by step.

    Args:
        query: (B, H, Lq, d).
        key: (B, Hkv, Lk, d), Hkv dividing H.
        value: (B, Hkv, Lk, d).
        mask: (B | 1, H | 1, Lq, Lk), boolean or of the query's dtype; None with is_causal.
        is_causal: query i sees keys 0 to i (upper-left aligned when the lengths differ).
        scale: factor on the scores, or None for a division by sqrt(d).
        softcap: c, or None for none.

    Returns:
        The mixed values (B, H, Lq, d) and the weights (B, H, Lq, Lk); each row of weights sums to 1, or to 0 where
        the row is fully masked.
    """
    group = int(query.shape[1]) // int(key.shape[1])  # while tracing, sizes are tensors
    if group > 1:
        key = key.repeat_interleave(group, dim=1)  # (B, Hkv, Lk, d) -> (B, H, Lk, d)
        value = value.repeat_interleave(group, dim=1)  # (B, Hkv, Lk, d) -> (B, H, Lk, d)
    scores = query @ key.transpose(-2, -1)  # (B, H, Lq, d) @ (B, H, d, Lk) -> (B, H, Lq, Lk)
    scores = scores / query.shape[-1] ** 0.5 if scale is None else scores * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if is_causal:
        mask = causal_keep(
            torch.arange(query.shape[2], device=query.device), torch.arange(key.shape[2], device=query.device)
        )
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        masked = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        # The softmax of a fully masked row is 0/0; the row attends to nothing instead.
        weights = masked.softmax(dim=-1).masked_fill(~row_keeps(mask), 0.0)
    return weights @ value, weights  # (B, H, Lq, Lk) @ (B, H, Lk, d) -> (B, H, Lq, d)
