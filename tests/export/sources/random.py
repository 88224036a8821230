"""Sources that draw random numbers, each by another way, and one that only could."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import Tensor, nn

Inputs = dict[str, Tensor]
Dynamic = dict[str, dict[int, str]]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


class LeftOn(nn.Module):
    """`F.dropout` without `training`, which stays on under eval, behind a Dropout that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = nn.Dropout(0.5)
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.quiet(x))  # type: ignore[no-any-return]  # a call of a module


def left_on() -> tuple[nn.Module, Inputs, Dynamic]:
    return LeftOn().eval(), {"x": draw(4, 32)}, {"x": {0: "batch"}}


class FusedDropout(nn.Module):
    """Dropout inside `scaled_dot_product_attention`, whatever the mode: neither exporter keeps it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def fused_dropout() -> tuple[nn.Module, Inputs]:
    return FusedDropout().eval(), {"x": draw(2, 2, 5, 8)}


class Noisy(nn.Module):
    """Noise, and an output of whole numbers that depends on it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        noisy = x + torch.rand_like(x)
        return noisy, (noisy > 0.5).to(torch.int64)


def noisy() -> tuple[nn.Module, Inputs]:
    return Noisy(), {"x": draw(4, 32)}


class OutsideTorch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())  # noqa: NPY002  # the old global, as such modules use it


def outside_torch() -> tuple[nn.Module, Inputs]:
    return OutsideTorch(), {"x": draw(4, 32)}


def in_training() -> tuple[nn.Module, Inputs, Dynamic]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    return layer, {"src": draw(2, 6, 16)}, {"src": {0: "batch", 1: "seq"}}


def drops_nothing() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)).train(), {"input": draw(2, 8)}
