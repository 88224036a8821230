from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import ROUNDING, Case, build, cases, distance, outputs_of, properties, scatter
from torch import Tensor, nn

from crosshead.model_def.attention import MultiHeadAttention
from crosshead.model_def.config import AttentionConfig, EncoderConfig, FeedForwardConfig, RotaryConfig
from crosshead.model_def.convert import from_torch, to_torch
from crosshead.model_def.encoder import EncoderLayer
from crosshead.model_def.errors import ConversionError


def call_torch(layer: nn.MultiheadAttention, case: Case, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Call torch's layer on a case of ours: its own layout of masks, True where a query may not attend."""
    tensors = case.tensors()
    query = tensors["query"]
    key = tensors.get("key", query)
    value = tensors.get("value", key)
    mask, padding = tensors.get("attn_mask"), tensors.get("key_padding_mask")
    if mask is not None:
        if mask.dim() == 4:
            mask = mask.expand(query.shape[0], case.config.num_heads, -1, -1).flatten(0, 1)  # (B, H, …) -> (B·H, …)
        mask = ~mask if mask.dtype == torch.bool else mask
        if padding is not None and mask.dtype != torch.bool:
            padding = torch.zeros(padding.shape, dtype=mask.dtype).masked_fill(padding, -torch.inf)
    if not layer.batch_first:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    output, weights = layer(query, key, value, key_padding_mask=padding, attn_mask=mask, **options)
    return (output if layer.batch_first else output.transpose(0, 1)), weights


def some_keys(weights: Tensor) -> Tensor:
    """Batch rows and queries that are not fully masked in any head: (B, Lq)."""
    return (weights.sum(dim=-1) > 0.5).all(dim=1)


@given(case=cases(plain=True), implementation=st.sampled_from(["sdpa", "explicit"]), batch_first=st.booleans())
@properties(150)
def test_equals_the_torch_layer_it_came_from(case: Case, implementation: Any, batch_first: bool) -> None:
    config = case.config
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(
        config.d_model,
        config.num_heads,
        dropout=0.3,
        bias=config.bias,
        kdim=config.kv_width,
        vdim=config.kv_width,
        batch_first=batch_first,
        dtype=torch.float64,
    ).eval()
    scatter(layer)
    block = from_torch(layer, implementation)
    assert (block.config, block.implementation, block.training) == (config_of(layer), implementation, False)
    output, weights = outputs_of(block, case.tensors(), need_weights=True)
    rows = some_keys(weights)
    with torch.no_grad():
        fast, _ = call_torch(layer, case, need_weights=False)
        slow, their_weights = call_torch(layer, case, need_weights=True, average_attn_weights=False)
    assert their_weights is not None
    for theirs in (fast, slow):
        assert distance(output[rows], theirs[rows]) < ROUNDING
    kept = rows[:, None, :].expand(weights.shape[:-1])
    assert distance(weights[kept], their_weights[kept]) < ROUNDING


def config_of(layer: nn.MultiheadAttention) -> AttentionConfig:
    kv_dim = None if layer.kdim == layer.embed_dim else layer.kdim
    return AttentionConfig(
        d_model=layer.embed_dim, num_heads=layer.num_heads, bias=layer.in_proj_bias is not None, kv_dim=kv_dim
    )


@given(case=cases(plain=True))
@properties(100)
def test_the_torch_layer_made_from_a_block_equals_it(case: Case) -> None:
    block = build(case.config)
    layer = to_torch(block)
    assert layer.batch_first
    assert not layer.training
    output, weights = outputs_of(block, case.tensors(), need_weights=True)
    with torch.no_grad():
        theirs, _ = call_torch(layer, case, need_weights=False)
    rows = some_keys(weights)
    assert distance(theirs[rows], output[rows]) < ROUNDING


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_dim", [None, 5])
def test_weights_go_round_bit_for_bit(bias: bool, kv_dim: int | None) -> None:
    block = build(AttentionConfig(d_model=12, num_heads=3, bias=bias, kv_dim=kv_dim)).float()
    again = from_torch(to_torch(block))
    want = block.state_dict()
    assert again.config == block.config
    assert again.state_dict().keys() == want.keys()
    assert all(torch.equal(tensor, want[name]) for name, tensor in again.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())


def test_weights_are_copied_not_shared() -> None:
    layer = nn.MultiheadAttention(8, 2)
    block = from_torch(layer)
    before = block.query_projection.weight.clone()
    with torch.no_grad():
        layer.in_proj_weight.zero_()
    assert torch.equal(block.query_projection.weight, before)


def test_a_fully_masked_row_is_where_torch_differs() -> None:
    block = build(AttentionConfig(d_model=8, num_heads=2))
    layer = to_torch(block)
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    padding = torch.ones(1, 3, dtype=torch.bool)
    with torch.no_grad():
        theirs, _ = layer(x, x, x, key_padding_mask=padding, need_weights=True)
    assert theirs.isnan().all()
    ours = outputs_of(block, {"query": x, "key_padding_mask": padding})[0]
    assert torch.equal(ours, block.output_projection.bias.expand(1, 3, 8))


def test_causality_is_an_attn_mask_to_torch() -> None:
    config = AttentionConfig(d_model=8, num_heads=2, is_causal=True)
    causal = build(config)
    layer = to_torch(build(AttentionConfig(d_model=8, num_heads=2)))
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    with torch.no_grad():
        theirs, _ = layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    assert distance(outputs_of(causal, {"query": x})[0], theirs) < ROUNDING


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "expected an nn.MultiheadAttention without add_bias_kv, got add_bias_kv=True"),
        ({"add_zero_attn": True}, "expected an nn.MultiheadAttention without add_zero_attn, got add_zero_attn=True"),
        ({"kdim": 4, "vdim": 6}, "expected kdim equal to vdim, got kdim=4, vdim=6"),
        ({"vdim": 6}, "expected kdim equal to vdim, got kdim=8, vdim=6"),
    ],
)
def test_torch_options_without_an_equal_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        from_torch(nn.MultiheadAttention(8, 2, **options))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_kv_heads": 1}, "num_kv_heads"),
        ({"head_dim": 3}, "head_dim"),
        ({"is_causal": True}, "is_causal (pass an attn_mask with each call instead)"),
        ({"scale": 0.1}, "scale"),
        ({"softcap": 2.0}, "softcap"),
        ({"window": 2}, "window"),
        ({"rotary": RotaryConfig()}, "rotary"),
        ({"qk_norm": "rms"}, "qk_norm"),
    ],
)
def test_options_that_torch_lacks_are_refused_by_name(fields: dict[str, Any], named: str) -> None:
    block = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=2, **fields))
    with pytest.raises(ConversionError) as caught:
        to_torch(block)
    assert str(caught.value) == f"nn.MultiheadAttention has no equal of this block's {named}"


def test_an_explicit_scale_equal_to_the_default_converts() -> None:
    block = build(AttentionConfig(d_model=8, num_heads=2, scale=0.5))
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    with torch.no_grad():
        theirs, _ = to_torch(block)(x, x, x)
    assert distance(outputs_of(block, {"query": x})[0], theirs) < ROUNDING


def test_other_modules_are_refused() -> None:
    with pytest.raises(ConversionError, match=r"got Linear$"):
        from_torch(nn.Linear(2, 2))  # type: ignore[call-overload]  # the point of the test
    with pytest.raises(ConversionError, match=r"got Linear$"):
        to_torch(nn.Linear(2, 2))  # type: ignore[call-overload]  # the point of the test


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", [F.relu, F.gelu, nn.GELU(approximate="tanh"), nn.SiLU()])
def test_an_encoder_layer_equals_the_torch_layer_it_came_from(bias: bool, norm_first: bool, activation: Any) -> None:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(
        12,
        2,  # an odd number of heads would keep torch off its fast path
        20,
        activation=activation,
        layer_norm_eps=1e-6,
        bias=bias,
        norm_first=norm_first,
        batch_first=True,
        dtype=torch.float64,
    ).eval()
    scatter(layer)
    block = from_torch(layer)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    theirs = layer(x, src_key_padding_mask=padding).detach()  # with gradients on, torch keeps to its plain path
    ours = outputs_of(block, {"x": x, "key_padding_mask": padding})[0]
    assert distance(ours, theirs) < ROUNDING
    again = to_torch(block)
    with torch.no_grad():  # where torch may take its fast path, which leaves padded positions at 0
        fast = again(x, src_key_padding_mask=padding)
    assert distance(fast[~padding], theirs[~padding]) < ROUNDING
    assert from_torch(again).config == block.config


def test_an_encoder_layer_with_some_biases_converts() -> None:
    config = EncoderConfig(
        attention=AttentionConfig(d_model=8, num_heads=2, bias=False),
        feed_forward=FeedForwardConfig(d_model=8, d_ff=16, bias=True),
    )
    torch.manual_seed(3)
    block = EncoderLayer(config).double().eval()
    scatter(block)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    assert distance(to_torch(block)(x).detach(), outputs_of(block, {"x": x})[0]) < ROUNDING


def test_an_encoder_layer_with_another_activation_is_refused() -> None:
    with pytest.raises(ConversionError, match=r"^expected an activation of relu, gelu or silu, got tanh$"):
        from_torch(nn.TransformerEncoderLayer(8, 2, 16, activation=torch.tanh))
