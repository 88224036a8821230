"""Masks, as small parts that are combined into one before the core of attention sees it.

Two kinds travel: *keeps*, boolean with True where a query may attend to a key (the convention of
`torch.nn.functional.scaled_dot_product_attention`), and *biases*, real numbers added to the scores, -inf where a query
may not attend. A large finite bias such as `torch.finfo(dtype).min` is a bias, not a mask: where all keys of a row have
the same one, softmax cancels it and the row attends to all of them alike.

A row that keeps no key is *fully masked*. It attends to nothing: its weights and its attention output are 0.
`row_keeps` names these rows from the mask alone, so that a NaN which the data brought stays a NaN.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def causal_keep(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Keep keys at the query's own position or before it.

    Args:
        query_positions: (Lq,) whole numbers, absolute.
        key_positions: (Lk,) whole numbers, absolute.

    Returns:
        (Lq, Lk) boolean.
    """
    return key_positions <= query_positions.unsqueeze(-1)  # (Lk,) against (Lq, 1) -> (Lq, Lk)


def window_keep(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Keep keys less than `window` positions away, on either side.

    Args:
        query_positions: (Lq,) whole numbers, absolute.
        key_positions: (Lk,) whole numbers, absolute.
        window: at least 1, which keeps only the query's own position.

    Returns:
        (Lq, Lk) boolean.
    """
    distance = query_positions.unsqueeze(-1) - key_positions  # (Lq, 1) against (Lk,) -> (Lq, Lk)
    return (distance < window) & (distance > -window)


def padding_keep(key_padding_mask: Tensor) -> Tensor:
    """Keep keys that are not padding.

    Args:
        key_padding_mask: (B, Lk) boolean, True at padding (the convention of `torch.nn.MultiheadAttention`).

    Returns:
        (B, 1, 1, Lk) boolean.
    """
    return key_padding_mask.logical_not().unsqueeze(1).unsqueeze(1)  # (B, Lk) -> (B, 1, 1, Lk)


def combine_masks(keeps: Sequence[Tensor], bias: Tensor | None, query_length: int) -> Tensor | None:
    """One mask that says all that the given ones say.

    Args:
        keeps: boolean masks, each (Lq | 1, Lk) or (B | 1, H | 1, Lq | 1, Lk).
        bias: real mask of one of these shapes, or None.
        query_length: Lq. The query axis is always written out, since runtimes refuse to broadcast it.

    Returns:
        (B | 1, H | 1, Lq, Lk): boolean when there is no bias, else real with -inf where any keep is False.
        None when there is nothing to combine.
    """
    if not keeps and bias is None:
        return None
    mask = None
    for keep in keeps:
        mask = keep if mask is None else mask & keep
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(mask.logical_not(), float("-inf"))
    assert mask is not None
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)  # (Lq, Lk) -> (1, 1, Lq, Lk)
    return mask.expand(-1, -1, query_length, -1)  # (B | 1, H | 1, Lq | 1, Lk) -> (B | 1, H | 1, Lq, Lk)


def row_keeps(mask: Tensor) -> Tensor:
    """Whether each row of a combined mask keeps any key.

    Args:
        mask: (…, Lq, Lk), boolean or real.

    Returns:
        (…, Lq, 1) boolean.
    """
    keep = mask if mask.dtype == torch.bool else mask != float("-inf")
    return keep.any(dim=-1, keepdim=True)
