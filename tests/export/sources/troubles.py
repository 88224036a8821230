"""Modules that people met trouble with when they exported attention, as factories; a user's file like any other."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

HEADS, HEAD_DIM, WIDTH = 4, 8, 32

Inputs = dict[str, Tensor]
Dynamic = dict[str, dict[int, str]]
Factory = tuple[nn.Module, Inputs, Dynamic]


class Core(nn.Module):
    """Scaled dot-product attention on (batch, heads, length, head_dim)."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, is_causal=self.is_causal)


def _qkv(q_len: int, kv_len: int, batch: int = 2) -> Inputs:
    return {
        "query": torch.randn(batch, HEADS, q_len, HEAD_DIM),
        "key": torch.randn(batch, HEADS, kv_len, HEAD_DIM),
        "value": torch.randn(batch, HEADS, kv_len, HEAD_DIM),
    }


_LENGTHS: Dynamic = {
    "query": {0: "batch", 2: "q_len"},
    "key": {0: "batch", 2: "kv_len"},
    "value": {0: "batch", 2: "kv_len"},
}


def causal_unequal_lengths() -> Factory:
    return Core(is_causal=True), _qkv(3, 7), _LENGTHS


def equal_lengths_batch_one() -> Factory:
    """The usual example: batch 1, and queries as many as keys, though both are free."""
    return Core(), _qkv(6, 6, batch=1), _LENGTHS


def aliased() -> tuple[nn.Module, Inputs]:
    x = torch.randn(2, HEADS, 6, HEAD_DIM)
    return Core(), {"query": x, "key": x, "value": x}


def padding_as_broadcast_mask() -> tuple[nn.Module, Inputs]:
    keep = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    keep[1, ..., 4:] = False
    return Core(), {**_qkv(6, 6), "attn_mask": keep}


def fully_masked_row() -> tuple[nn.Module, Inputs]:
    bias = torch.zeros(6, 6)
    bias[2] = float("-inf")
    return Core(), {**_qkv(6, 6), "attn_mask": bias}


def bfloat16_core() -> Factory:
    return Core(), {name: tensor.bfloat16() for name, tensor in _qkv(6, 5).items()}, _LENGTHS


def left_in_training_mode() -> tuple[nn.Module, Inputs]:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.5, batch_first=True)
    return layer.train(), {"src": torch.randn(2, 6, WIDTH)}


class Rotary(nn.Module):
    """Rotary positions through complex numbers."""

    def forward(self, x: Tensor) -> Tensor:
        length, width = x.shape[1], x.shape[-1]
        angle = torch.outer(torch.arange(length, dtype=torch.float32), 10000 ** (-torch.arange(0, width, 2) / width))
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))  # (B, L, W) -> (B, L, W/2) complex
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)  # -> (B, L, W)


def complex_rotary() -> Factory:
    return Rotary(), {"x": torch.randn(2, 6, 8)}, {"x": {1: "seq"}}


class CachedTable(nn.Module):
    """A position table made on the first call and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.outer(torch.arange(x.shape[1]), 1 / torch.arange(1, x.shape[2] + 1)).cos()
        return x * self.table


def table_cached_on_first_call(dynamic: bool = True) -> Factory:
    module, x = CachedTable(), torch.randn(2, 6, 8)
    module(x)
    return module, {"x": x}, {"x": {1: "seq"}} if dynamic else {}


class DecodeStep(nn.Module):
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        key, value = torch.cat((past_key, key), 2), torch.cat((past_value, value), 2)
        return scaled_dot_product_attention(query, key, value), key, value


def decode_step() -> Factory:
    past = {name: torch.randn(2, HEADS, 5, HEAD_DIM) for name in ("past_key", "past_value")}
    return DecodeStep(), {**_qkv(1, 1), **past}, {"past_key": {2: "past"}, "past_value": {2: "past"}}


class UnusedInput(nn.Module):
    def forward(self, x: Tensor, unused: Tensor) -> Tensor:
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x


def unused_input() -> tuple[nn.Module, Inputs]:
    return UnusedInput(), {"x": torch.randn(2, 6, 8), "unused": torch.randn(3)}


class ReturnsInput(nn.Module):
    """Returns its inputs beside a result, keyed like one of them."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor | tuple[Tensor, Tensor] | None]:
        return {"x": x, "none": None, "sums": (x + y, y)}


def returned_inputs() -> tuple[nn.Module, Inputs]:
    return ReturnsInput(), {"x": torch.randn(2, 3), "y": torch.randn(2, 3)}


class Branches(nn.Module):
    """Takes another way for long sequences; a graph holds one of them."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[1] > 4 else x


def branches_on_length() -> Factory:
    return Branches(), {"x": torch.randn(2, 6, 8)}, {"x": {1: "seq"}}


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def data_dependent() -> tuple[nn.Module, Inputs]:
    return DataDependent(), {"x": torch.randn(2, 3)}


class Eigen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.eigvals(x)
        return values.real


def no_onnx_operator() -> tuple[nn.Module, Inputs]:
    return Eigen(), {"x": torch.randn(3, 3)}


class Total(nn.Module):
    """Needs its last axis to be the sum of two others."""

    def forward(self, past: Tensor, new: Tensor, bias: Tensor) -> Tensor:
        return torch.cat((past, new), 1) + bias


def related_axes() -> Factory:
    inputs = {"past": torch.randn(2, 1), "new": torch.randn(2, 3), "bias": torch.randn(2, 4)}
    return Total(), inputs, {"past": {1: "past"}, "new": {1: "new"}, "bias": {1: "total"}}


def wrong_mask_shape() -> Factory:
    from crosshead.model_def import AttentionConfig, MultiHeadAttention

    module = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=2))
    inputs = {"query": torch.randn(2, 5, 8), "attn_mask": torch.ones(5, 6, dtype=torch.bool)}
    return module, inputs, {"query": {0: "batch", 1: "seq"}, "attn_mask": {0: "seq"}}


class Broadcasts(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def broadcast_declared_dynamic() -> Factory:
    inputs = {"x": torch.randn(3, 5), "y": torch.randn(1, 5)}
    return Broadcasts(), inputs, {"x": {0: "n"}, "y": {0: "m"}}


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


def counts_its_calls() -> tuple[nn.Module, Inputs]:
    return Counting(), {"x": torch.randn(2, 3)}


class Tied(nn.Module):
    """Two layers that share one weight, a table that is not persistent, and a causal self-attention between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.randn(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) + self.table
        heads = x.reshape(*x.shape[:-1], 2, -1).transpose(1, 2)  # (B, L, W) -> (B, L, 2, W/2) -> (B, 2, L, W/2)
        mixed = scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        output: Tensor = self.second(mixed.transpose(1, 2).flatten(2))  # (B, 2, L, W/2) -> (B, L, W)
        return output


def tied(width: int = 8) -> tuple[nn.Module, Inputs, Dynamic, dict[str, str]]:
    return Tied(width), {"x": torch.randn(2, 5, width)}, {"x": {0: "batch", 1: "seq"}}, {"x": "query"}


def draws_from_all_generators() -> tuple[nn.Module, Inputs]:
    import random

    x = [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002  # as users' factories do
    return nn.Identity(), {"input": torch.tensor(x)}


def token_ids() -> tuple[nn.Module, Inputs, Dynamic]:
    return nn.Embedding(11, 4), {"input": torch.tensor([[1, 9, 4]])}, {"input": {0: "batch", 1: "seq"}}


def inputs_as_tuple() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Core(), tuple(_qkv(3, 5).values())


def out_of_order() -> tuple[nn.Module, Inputs]:
    return Core(), dict(reversed(_qkv(3, 5).items()))


def alone() -> nn.Module:
    return Core()


class WithNumber(nn.Module):
    """Returns a number beside its tensor."""

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x * 2, 3


def number_beside() -> tuple[nn.Module, Inputs]:
    return WithNumber(), {"x": torch.zeros(2, 3)}


def raises() -> nn.Module:
    raise KeyError("weights.bin")


def exits() -> nn.Module:
    raise SystemExit(3)


def prints() -> tuple[nn.Module, Inputs]:
    print("loading…")  # noqa: T201  # as users' factories do
    return nn.Identity(), {"input": torch.zeros(2)}


not_callable = 3
ready_made = Core()
