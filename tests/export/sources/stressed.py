"""Modules with inputs of every kind that the stress set looks at, as factories."""

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
TOKENS = {0: "batch", 1: "seq"}

Factory = tuple[Any, ...]


class Attends(nn.Module):
    """Self-attention by hand; zeros and ones say which keys are kept, or a float mask is added."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2)  # (B, L, W) @ (B, W, L) -> (B, L, L)
        if attention_mask.is_floating_point():
            return (scores + attention_mask).softmax(-1) @ x
        hidden = attention_mask[:, None] == 0  # (B, L) -> (B, 1, L)
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ x


def flags() -> Factory:
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    return (
        Attends(),
        {"x": torch.randn(2, 6, WIDTH), "attention_mask": mask},
        {"x": TOKENS, "attention_mask": TOKENS},
        {},
    )


def added() -> Factory:
    """A float mask of its own leading axis, with a role."""
    mask = torch.zeros(2, 6, 6)
    mask[:, 0, 3:] = -torch.inf
    axes = {0: "mask_batch", 1: "seq", 2: "seq"}
    inputs = {"x": torch.randn(2, 6, WIDTH), "attention_mask": mask}
    return Attends(), inputs, {"x": TOKENS, "attention_mask": axes}, {"attention_mask": "attn_mask", "x": "query"}


class Reads(nn.Module):
    """Values come apart from keys, and are cleared where they are hidden: NaN there reaches nothing."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
        scores = query @ key.transpose(1, 2)  # (B, L, W) @ (B, W, K) -> (B, L, K)
        weights = scores.masked_fill(padding[:, None], -torch.inf).softmax(-1)  # (B, K) -> (B, 1, K)
        return weights @ value.masked_fill(padding[..., None], 0.0)


def cleared() -> Factory:
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 4] = True
    keys = {0: "batch", 1: "kv_seq"}
    inputs = {
        "query": torch.randn(2, 6, WIDTH),
        "key": torch.randn(2, 5, WIDTH),
        "value": torch.randn(2, 5, WIDTH),
        "padding": padding,
    }
    return Reads(), inputs, {"query": TOKENS, "key": keys, "value": keys, "padding": keys}


class Core(nn.Module):
    """Attention of heads that are split already."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return mixed


def core() -> Factory:
    inputs = {"query": torch.randn(2, 4, 6, WIDTH), "key": torch.randn(2, 2, 5, WIDTH)}
    keys = {0: "batch", 2: "kv_seq"}
    axes = {"query": {0: "batch", 2: "seq"}, "key": keys, "value": keys}
    return Core(), {**inputs, "value": torch.randn(2, 2, 5, WIDTH)}, axes, {name: name for name in axes}


class Ids(nn.Module):
    """Token ids through a table that ends at 11."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.table(ids)
        return found


def ids() -> Factory:
    return Ids(), {"ids": torch.randint(0, 12, (2, 6))}, {"ids": TOKENS}


class Linear(nn.Linear):
    """A layer that takes nothing shorter than three tokens."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 3:
            raise ValueError("three tokens at least")
        return super().forward(x)


def fixed_batch() -> Factory:
    return Linear(WIDTH, WIDTH), {"x": torch.randn(2, 6, WIDTH)}, {"x": {1: "seq"}}


def large() -> Factory:
    """Weights beyond what is evaluated so often, all alike and never looked at."""
    return nn.Linear(WIDTH, WIDTH), {"input": torch.randn(1 << 8, 1 << 8, WIDTH)}, {"input": TOKENS}
