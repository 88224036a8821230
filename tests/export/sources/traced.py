"""Sources for the TorchScript exporter: what it takes for something else, drops, bakes in or cannot write."""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import Tensor, nn

Inputs = dict[str, Tensor]
Dynamic = dict[str, dict[int, str]]

WIDTH, HEADS = 32, 4
SEQUENCE = {0: "batch", 1: "seq"}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Structured(nn.Module):
    """A first input that nothing reads, a default that is no tensor, outputs in a dict that is not sorted, None."""

    def forward(self, unused: Tensor, x: Tensor, y: Tensor, flip: bool = False) -> dict[str, object]:
        del unused
        x, y = (y, x) if flip else (x, y)
        return {"later": x + y, "earlier": x - y, "nothing": None, "pair": (x * 2, y * 3)}


def structured() -> tuple[nn.Module, Inputs, Dynamic]:
    axes = {0: "batch"}
    return (
        Structured(),
        {"unused": draw(5), "x": draw(2, 3), "y": draw(2, 3) + 1},
        {"x": axes, "y": axes, "unused": {0: "n"}},
    )


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]  # a call of a module


def torch_mha() -> tuple[nn.Module, Inputs, Dynamic]:
    return SelfAttention().eval(), {"x": draw(2, 6, WIDTH)}, {"x": SEQUENCE}


def encoder_layer() -> tuple[nn.Module, Inputs, Dynamic]:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, activation="gelu", batch_first=True).eval()
    return layer, {"src": draw(2, 6, WIDTH)}, {"src": SEQUENCE}


class Grouped(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, key, enable_gqa=True)


def grouped() -> tuple[nn.Module, Inputs]:
    return Grouped(), {"query": draw(2, 4, 6, 8), "key": draw(2, 2, 6, 8)}


class Complex(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(x).abs()


def complex_numbers() -> tuple[nn.Module, Inputs]:
    return Complex(), {"x": draw(2, 3, 2)}


class Normalised(nn.Module):
    """Changes its buffers when it is called in training mode, and keeps a tensor of the last call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x + 1
        return self.norm(x)  # type: ignore[no-any-return]  # a call of a module


def normalised() -> tuple[nn.Module, Inputs]:
    return Normalised(), {"x": draw(6, 4)}


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x


def failing() -> tuple[nn.Module, Inputs]:
    return Failing(), {"x": draw(2, 3)}
