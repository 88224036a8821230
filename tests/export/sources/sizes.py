"""Modules whose axes are declared dynamic, as factories: some take every size, some do not."""

import torch
from torch import Tensor, nn

WIDTH = 8

Inputs = dict[str, Tensor]
Dynamic = dict[str, dict[int, str]]
Factory = tuple[nn.Module, Inputs, Dynamic]

TOKENS: Dynamic = {"x": {0: "batch", 1: "seq"}}


class Pairs(nn.Module):
    """Takes at least two tokens."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 2:
            raise ValueError("two tokens at least")
        return x + x.flip(1)


def refuses_one() -> Factory:
    return Pairs(), {"x": torch.randn(2, 6, WIDTH)}, TOKENS


class Table(nn.Module):
    """Adds positions of a table that ends at 7; its axis is declared dynamic all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(7, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions[: x.shape[1]]


def table_that_ends() -> Factory:
    return Table(), {"x": torch.randn(2, 6, WIDTH)}, TOKENS


class Fixed(nn.Module):
    """Adds a table of the example's length."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.expand(x.shape[0], -1, -1)


def fixed_table() -> Factory:
    return Fixed(), {"x": torch.randn(2, 6, WIDTH)}, TOKENS


class View(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], 6, 2, WIDTH // 2).flatten(2)  # (B, L, W) -> (B, 6, 2, W/2) -> (B, 6, W)


def fixed_view() -> Factory:
    return View(), {"x": torch.randn(2, 6, WIDTH)}, TOKENS


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50_000, 2)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.table(ids) @ self.table.weight.T
        return output


def logits() -> Factory:
    return Logits(), {"ids": torch.randint(50_000, (2, 64))}, {"ids": {0: "batch", 1: "seq"}}


class Picks(nn.Module):
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        return x[:, position]


def picks_positions() -> Factory:
    return Picks(), {"x": torch.randn(2, 6, WIDTH), "position": torch.tensor([0, 5])}, TOKENS


def wide() -> Factory:
    return nn.Identity(), {"input": torch.zeros(1, 2, 300_000)}, {"input": {1: "seq"}}


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return output


def padded_from_the_left() -> tuple[nn.Module, Inputs, Dynamic, dict[str, str]]:
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[:, :2] = True
    dynamic = {**TOKENS, "padding": {0: "batch", 1: "seq"}}
    return Padded(), {"x": torch.randn(2, 6, WIDTH), "padding": padding}, dynamic, {"padding": "key_padding_mask"}


def like_axes() -> Factory:
    """Batch 1, and as many queries as keys: sizes that an exporter may mistake for each other, or for a broadcast."""
    inputs = {"query": torch.randn(1, 5, WIDTH), "key": torch.randn(1, 5, WIDTH)}
    axes = {"query": {0: "batch", 1: "seq"}, "key": {0: "batch", 1: "kv_seq"}}
    return Crossed(), inputs, axes


class Crossed(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.transpose(1, 2)).softmax(-1) @ key
