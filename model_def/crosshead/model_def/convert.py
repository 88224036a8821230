"""Weights both ways between these blocks and torch's own layers.

A converted module computes the same as its source in evaluation mode, to rounding, except at fully masked rows, where
torch's layers give NaN on some of their paths. Three things a caller passes differently:

- masks: torch's layers take a boolean attn_mask as True where a query may *not* attend;
- layout: these blocks are batch first, whatever the source's `batch_first`;
- causality: torch's layers take it with each call, these blocks in the configuration.

Dropout is not carried over: these blocks have none.
"""

import math
from typing import TYPE_CHECKING, Final, overload

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import Tensor, nn

from crosshead.model_def.attention import Implementation, MultiHeadAttention
from crosshead.model_def.config import Activation, AttentionConfig, EncoderConfig, FeedForwardConfig
from crosshead.model_def.encoder import EncoderLayer
from crosshead.model_def.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Callable

_PROJECTIONS: Final = ("query_projection", "key_projection", "value_projection")


@overload
def from_torch(module: nn.MultiheadAttention, implementation: Implementation = ...) -> MultiHeadAttention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer, implementation: Implementation = ...) -> EncoderLayer: ...
def from_torch(module: nn.Module, implementation: Implementation = "sdpa") -> MultiHeadAttention | EncoderLayer:
    """Build the block that computes what a torch layer computes, with copies of its weights.

    Args:
        module: the torch layer; dtype, device and mode carry over.
        implementation: of the new block.

    Raises:
        ConversionError: the layer has a part that these blocks lack (`add_bias_kv`, `add_zero_attn`, a `kdim` other
            than `vdim`, an unknown activation), or is of another class.
    """
    if isinstance(module, nn.MultiheadAttention):
        return _attention_from_torch(module, implementation)
    if isinstance(module, nn.TransformerEncoderLayer):
        return _encoder_from_torch(module, implementation)
    raise ConversionError(
        f"expected an nn.MultiheadAttention or nn.TransformerEncoderLayer, got {type(module).__name__}"
    )


@overload
def to_torch(module: MultiHeadAttention) -> nn.MultiheadAttention: ...
@overload
def to_torch(module: EncoderLayer) -> nn.TransformerEncoderLayer: ...
def to_torch(module: nn.Module) -> nn.MultiheadAttention | nn.TransformerEncoderLayer:
    """Build the torch layer (batch first, dropout 0) that computes what a block computes, with copies of its weights.

    Args:
        module: the block; dtype, device and mode carry over.

    Raises:
        ConversionError: the block uses an option that torch's layer lacks; the option is named.
    """
    if isinstance(module, MultiHeadAttention):
        return _attention_to_torch(module)
    if isinstance(module, EncoderLayer):
        return _encoder_to_torch(module)
    raise ConversionError(f"expected a MultiHeadAttention or EncoderLayer, got {type(module).__name__}")


def _attention_from_torch(module: nn.MultiheadAttention, implementation: Implementation) -> MultiHeadAttention:
    if module.bias_k is not None or module.bias_v is not None:
        raise ConversionError("expected an nn.MultiheadAttention without add_bias_kv, got add_bias_kv=True")
    if module.add_zero_attn:
        raise ConversionError("expected an nn.MultiheadAttention without add_zero_attn, got add_zero_attn=True")
    if module.kdim != module.vdim:
        raise ConversionError(f"expected kdim equal to vdim, got kdim={module.kdim}, vdim={module.vdim}")
    config = AttentionConfig(
        d_model=module.embed_dim,
        num_heads=module.num_heads,
        bias=module.in_proj_bias is not None,
        kv_dim=None if module.kdim == module.embed_dim else module.kdim,
    )
    if module.kdim == module.embed_dim:
        matrices = module.in_proj_weight.chunk(3)  # (3·d_model, d_model) -> 3 x (d_model, d_model)
    else:
        matrices = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    state: dict[str, Tensor] = {"output_projection.weight": module.out_proj.weight}
    for name, matrix in zip(_PROJECTIONS, matrices, strict=True):
        state[f"{name}.weight"] = matrix
    if module.in_proj_bias is not None:
        for name, bias in zip(
            _PROJECTIONS, module.in_proj_bias.chunk(3), strict=True
        ):  # (3·d_model,) -> 3 x (d_model,)
            state[f"{name}.bias"] = bias
        state["output_projection.bias"] = module.out_proj.bias
    block = MultiHeadAttention(config, implementation).to(module.out_proj.weight)
    block.load_state_dict(state)
    return block.train(module.training)


def _attention_to_torch(module: MultiHeadAttention) -> nn.MultiheadAttention:
    config = module.config
    lacking = {
        "num_kv_heads": config.kv_heads != config.num_heads,
        "head_dim": config.head_size * config.num_heads != config.d_model,
        "is_causal (pass an attn_mask with each call instead)": config.is_causal,
        "scale": config.score_scale != 1.0 / math.sqrt(config.head_size),
        "softcap": config.softcap is not None,
        "window": config.window is not None,
        "rotary": config.rotary is not None,
        "qk_norm": config.qk_norm is not None,
    }
    for name, used in lacking.items():
        if used:
            raise ConversionError(f"nn.MultiheadAttention has no equal of this block's {name}")
    like = module.output_projection.weight
    layer = nn.MultiheadAttention(
        config.d_model,
        config.num_heads,
        bias=config.bias,
        kdim=config.kv_width,
        vdim=config.kv_width,
        batch_first=True,
        device=like.device,
        dtype=like.dtype,
    )
    projections: list[nn.Linear] = [getattr(module, name) for name in _PROJECTIONS]
    state: dict[str, Tensor] = {"out_proj.weight": like}
    if config.kv_width == config.d_model:
        # 3 x (d_model, d_model) -> (3·d_model, d_model)
        state["in_proj_weight"] = torch.cat([each.weight for each in projections])
    else:
        for name, each in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), projections, strict=True):
            state[name] = each.weight
    if config.bias:
        state["in_proj_bias"] = torch.cat([each.bias for each in projections])  # 3 x (d_model,) -> (3·d_model,)
        state["out_proj.bias"] = module.output_projection.bias
    layer.load_state_dict(state)
    return layer.train(module.training)


def _gelu_tanh(x: Tensor) -> Tensor:
    """As an `nn.GELU(approximate="tanh")`, torch's fast path would take it for the exact GELU."""
    return F.gelu(x, approximate="tanh")


def _activation_name(activation: object) -> Activation:
    if activation is F.relu or isinstance(activation, nn.ReLU):
        return "relu"
    if activation is F.silu or isinstance(activation, nn.SiLU):
        return "silu"
    if activation is F.gelu:
        return "gelu"
    if activation is _gelu_tanh:
        return "gelu_tanh"
    if isinstance(activation, nn.GELU):
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    name = getattr(activation, "__name__", type(activation).__name__)
    raise ConversionError(f"expected an activation of relu, gelu or silu, got {name}")


def _encoder_from_torch(module: nn.TransformerEncoderLayer, implementation: Implementation) -> EncoderLayer:
    attention = _attention_from_torch(module.self_attn, implementation)
    if module.norm1.eps != module.norm2.eps:
        raise ConversionError(f"expected one eps in both norms, got {module.norm1.eps} and {module.norm2.eps}")
    config = EncoderConfig(
        attention=attention.config,
        feed_forward=FeedForwardConfig(
            d_model=module.linear1.in_features,
            d_ff=module.linear1.out_features,
            activation=_activation_name(module.activation),
            bias=module.linear1.bias is not None,
        ),
        norm_first=module.norm_first,
        norm_eps=module.norm1.eps,
    )
    layer = EncoderLayer(config, implementation).to(module.linear1.weight)
    layer.attention.load_state_dict(attention.state_dict())
    layer.feed_forward.expand.load_state_dict(module.linear1.state_dict())
    layer.feed_forward.contract.load_state_dict(module.linear2.state_dict())
    for ours, theirs in ((layer.attention_norm, module.norm1), (layer.feed_forward_norm, module.norm2)):
        _copy(ours.weight, theirs.weight)
        _copy(ours.bias, theirs.bias)
    return layer.train(module.training)


def _encoder_to_torch(module: EncoderLayer) -> nn.TransformerEncoderLayer:
    config = module.config
    attention = _attention_to_torch(module.attention)
    like = module.feed_forward.expand.weight
    activations: dict[Activation, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": _gelu_tanh,
        "silu": F.silu,
    }
    norms = (module.attention_norm, module.feed_forward_norm)
    # torch has one switch for every bias of the layer; where only some of ours exist, the others are zeros there.
    shifted = any(bool(norm.bias.any()) for norm in norms)
    layer = nn.TransformerEncoderLayer(
        config.attention.d_model,
        config.attention.num_heads,
        config.feed_forward.d_ff,
        dropout=0.0,
        activation=activations[config.feed_forward.activation],
        layer_norm_eps=config.norm_eps,
        batch_first=True,
        norm_first=config.norm_first,
        bias=config.attention.bias or config.feed_forward.bias or shifted,
        device=like.device,
        dtype=like.dtype,
    )
    for theirs, ours in (
        (layer.self_attn.in_proj_weight, attention.in_proj_weight),
        (layer.self_attn.in_proj_bias, attention.in_proj_bias),
        (layer.self_attn.out_proj.weight, attention.out_proj.weight),
        (layer.self_attn.out_proj.bias, attention.out_proj.bias),
        (layer.linear1.weight, module.feed_forward.expand.weight),
        (layer.linear1.bias, module.feed_forward.expand.bias),
        (layer.linear2.weight, module.feed_forward.contract.weight),
        (layer.linear2.bias, module.feed_forward.contract.bias),
        (layer.norm1.weight, norms[0].weight),
        (layer.norm1.bias, norms[0].bias),
        (layer.norm2.weight, norms[1].weight),
        (layer.norm2.bias, norms[1].bias),
    ):
        _copy(theirs, ours)
    return layer.train(module.training)


@torch.no_grad()
def _copy(into: Tensor | None, source: Tensor | None) -> None:
    """Copy a parameter; where the source has none, it is zeros."""
    if into is not None:
        into.zero_() if source is None else into.copy_(source)
