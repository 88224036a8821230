"""What people really met when they exported attention and ran it elsewhere, one factory a trouble.

A user's file like any other: crosshead is given `troubles.py:name`, with `--set` for the factory's arguments. Every
docstring says the trouble, and the public report it is known by.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

BATCH, HEADS, WIDTH = 2, 4, 16
MODEL = HEADS * WIDTH

Inputs = dict[str, Tensor]
Axes = dict[str, dict[int, str]]
Made = tuple[nn.Module, Inputs, Axes]

FREE: Axes = {
    "query": {0: "batch", 2: "query_length"},
    "key": {0: "batch", 2: "key_length"},
    "value": {0: "batch", 2: "key_length"},
}
TOKENS: Axes = {"x": {0: "batch", 1: "length"}}


class Attend(nn.Module):
    """torch's attention function alone; query, key and value are (batch, heads, length, width)."""

    def __init__(self, *, causal: bool = False, shared: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.causal, self.shared, self.scale = causal, shared, scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=self.causal, enable_gqa=self.shared, scale=self.scale
        )


def operands(queries: int, keys: int, *, heads: int = HEADS, key_heads: int = HEADS, width: int = WIDTH) -> Inputs:
    """Draw query, key and value."""
    return {
        "query": torch.randn(BATCH, heads, queries, width),
        "key": torch.randn(BATCH, key_heads, keys, width),
        "value": torch.randn(BATCH, key_heads, keys, width),
    }


def tokens(length: int = 7, width: int = MODEL) -> Inputs:
    """Draw a batch of token states."""
    return {"x": torch.randn(BATCH, length, width)}


def causal(queries: int = 5, keys: int = 9) -> Made:
    """Causal attention with other numbers of queries than keys: upper-left or lower-right? (onnxruntime#29020)."""
    return Attend(causal=True), operands(queries, keys), FREE


def shared_heads() -> Made:
    """Several query heads read one key head; the order of repeating and tiling was mixed up (onnx#7274)."""
    return Attend(shared=True), operands(5, 9, heads=6, key_heads=2), FREE


def in_bfloat16() -> Made:
    """bfloat16 exports well, and has few kernels on a CPU (onnxruntime#27891)."""
    return Attend(), {name: tensor.bfloat16() for name, tensor in operands(5, 9).items()}, FREE


def mask_over_keys() -> tuple[nn.Module, Inputs]:
    """A padding mask as (batch, 1, 1, key): a kernel refuses the broadcast query axis (onnxruntime#12149)."""
    lengths = torch.tensor([9, 6])
    keep = torch.arange(9) < lengths[:, None]  # (9,) < (B, 1) -> (B, 9)
    return Attend(), {**operands(5, 9), "attn_mask": keep[:, None, None]}  # (B, 9) -> (B, 1, 1, 9)


def mask_over_queries() -> tuple[nn.Module, Inputs]:
    """A mask (query, 1): padded along the keys instead of being broadcast, in silence (pytorch#120810)."""
    bias = torch.linspace(-1.0, 1.0, 5)[:, None]
    keep = torch.tensor([True, True, False, True, True])[:, None]
    return Attend(), {**operands(5, 9), "attn_mask": torch.where(keep, bias, -torch.inf)}


class Layered(nn.Module):
    """`nn.MultiheadAttention` over one sequence."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(MODEL, HEADS, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        output, weights = self.inner(x, x, x, need_weights=self.weights, average_attn_weights=False)
        return (output, weights) if self.weights else output


def torch_attention(weights: bool = False) -> Made:
    """torch's own layer: the older exporter writes the example's length into a Reshape (pytorch#122321)."""
    return Layered(weights).eval(), tokens(), TOKENS


def _layer(dropout: float = 0.1) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(MODEL, HEADS, 2 * MODEL, dropout, batch_first=True)


def encoder_layer() -> Made:
    """torch's encoder layer: the older exporter meets a fused operator it does not know (pytorch#177013)."""
    return _layer().eval(), {"src": tokens()["x"]}, {"src": TOKENS["x"]}


class Padded(nn.Module):
    """Two encoder layers over sequences of unequal lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(_layer(), 2)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        output: Tensor = self.layers(x, src_key_padding_mask=padding_mask)
        return output


def padded_encoder() -> tuple[nn.Module, Inputs, Axes, dict[str, str]]:
    """torch's two paths through an encoder differ at padded positions (pytorch#163640)."""
    padding = torch.arange(7) >= torch.tensor([[7], [4]])  # (7,) >= (B, 1) -> (B, 7)
    axes = {"x": TOKENS["x"], "padding_mask": TOKENS["x"]}
    return Padded().eval(), {**tokens(), "padding_mask": padding}, axes, {"padding_mask": "key_padding_mask"}


def left_training() -> tuple[nn.Module, Inputs]:
    """Nobody called eval(): dropout goes into the graph in silence (onnx#3753)."""
    return _layer(0.5).train(), {"src": tokens()["x"]}


class Turned(nn.Module):
    """Positions as rotations of pairs, written with complex numbers."""

    def forward(self, x: Tensor) -> Tensor:
        rate = 10000.0 ** -torch.linspace(0, 1, x.shape[2] // 2)
        phase = torch.arange(x.shape[1])[:, None] * rate  # (L, 1) * (W/2,) -> (L, W/2)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2))  # (B, L, W) -> complex (B, L, W/2)
        turned = pairs * torch.polar(torch.ones_like(phase), phase)
        return torch.view_as_real(turned).flatten(2)  # -> (B, L, W/2, 2) -> (B, L, W)


def complex_rotary() -> Made:
    """Rotary positions through complex numbers, which ONNX has none of (sam2#186)."""
    return Turned(), tokens(), TOKENS


class Remembers(nn.Module):
    """Scales tokens by a table that is made once and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = (torch.arange(x.shape[1])[:, None] / torch.arange(1, x.shape[2] + 1)).sin()
        return x + self.kept


def remembered_table(free: bool = True) -> Made:
    """A table of the first call's length stays on the module and goes into the graph (sam2#186)."""
    module, inputs = Remembers(), tokens()
    module(**inputs)
    return module, inputs, TOKENS if free else {}


class Decode(nn.Module):
    """One step of decoding: new keys and values go behind those kept, and all of them come back."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        keys = torch.cat((past_key, key), 2)  # (B, H, P, W), (B, H, 1, W) -> (B, H, P + 1, W)
        values = torch.cat((past_value, value), 2)
        return scaled_dot_product_attention(query, keys, values), keys, values


def decoding(past: int = 6) -> Made:
    """A decoding step with its cache, down to an empty one (onnxscript#2634)."""
    kept = {name: torch.randn(BATCH, HEADS, past, WIDTH) for name in ("past_key", "past_value")}
    axes = {name: {0: "batch", 2: "past"} for name in kept}
    return Decode(), {**operands(1, 1), **kept}, {**{name: {0: "batch"} for name in ("query", "key", "value")}, **axes}


class Ignores(nn.Module):
    """Takes an input and does nothing with it."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return softmax(x @ x.transpose(-1, -2), -1) @ x


def ignored_input() -> tuple[nn.Module, Inputs]:
    """The older exporter drops what is not used, and binding by position goes wrong (pytorch#104949)."""
    return Ignores(), {**tokens(width=8), "position_ids": torch.arange(7)}


class Loud(nn.Module):
    """Attention written out, with queries and keys made so large that their products leave half precision."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.project, self.gain = nn.Linear(MODEL, 3 * MODEL), gain

    def forward(self, x: Tensor) -> Tensor:
        loud = self.project(x) * self.gain
        heads = loud.reshape(*x.shape[:2], 3, HEADS, WIDTH)  # (B, L, 3 M) -> (B, L, 3, H, W)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (B, L, 3, H, W) -> 3 of (B, H, L, W)
        mixed: Tensor = softmax(query @ key.mT * WIDTH**-0.5, -1) @ value
        return mixed.transpose(1, 2).flatten(2)  # (B, H, L, W) -> (B, L, H, W) -> (B, L, M)


def scores_beyond_half(gain: float = 300.0) -> Made:
    """Scores over 65504: NaN where they are computed in fp16, none where in fp32 (transformers#17306)."""
    return Loud(gain).eval(), tokens(), TOKENS


def wide_heads() -> tuple[nn.Module, Inputs]:
    """Heads wider than 256: NaN in fp16 on some CUDA kernels (onnxruntime#28195)."""
    return Attend(causal=True), operands(16, 16, heads=2, key_heads=2, width=320)


def scaled(scale: float | None = None) -> Made:
    """A scale of one's own: 0 and below are valid in torch, and refused by a kernel."""
    return Attend(scale=scale), operands(5, 9), FREE


def no_keys() -> Made:
    """Nothing to attend to: zeros in torch, refused by a kernel."""
    return Attend(), operands(5, 0), FREE


def number_mask() -> tuple[nn.Module, Inputs]:
    """A mask of 0.0 and 1.0 that was meant to say which keys to keep, and is added to the scores instead."""
    return Attend(), {**operands(5, 5), "attn_mask": torch.tril(torch.ones(5, 5))}


class Chooses(nn.Module):
    """Takes one of two ways, by what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1) if x.mean() > 0 else x


def chooses() -> tuple[nn.Module, Inputs]:
    """The exporter's error hides its cause under several others."""
    return Chooses(), tokens()
