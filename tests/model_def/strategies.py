"""Hypothesis strategies of small attention blocks and what they are fed, and what the tests share beside them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from crosshead.model_def.attention import MultiHeadAttention
from crosshead.model_def.config import AttentionConfig, RotaryConfig

Array = NDArray[Any]

# float64 throughout: what is left of a difference is rounding, and 1e-12 leaves room for a few thousand of it.
ROUNDING = 1e-12


def properties(examples: int) -> Callable[[Any], Any]:
    """Settings of a property test: the same examples every time, and no clock."""
    return settings(max_examples=examples, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """A configuration with inputs that fit it, in forward's order."""

    config: AttentionConfig
    inputs: Mapping[str, Array]

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array) for name, array in self.inputs.items()}


@st.composite
def configs(draw: st.DrawFn, *, plain: bool = False) -> AttentionConfig:
    """Configurations; `plain` ones have an equal in torch.nn.MultiheadAttention."""
    kv_heads = draw(st.integers(1, 3))
    group = 1 if plain else draw(st.integers(1, 3))
    heads = kv_heads * group
    rotary = None if plain else draw(st.sampled_from([None, RotaryConfig(), RotaryConfig(base=50.0, dim=4)]))
    widths = [1, 2, 3, 5, 8] if rotary is None else [2, 4, 6] if rotary.dim is None else [4, 6]
    head_dim = draw(st.sampled_from(widths))
    d_model = heads * head_dim if plain else draw(st.sampled_from([heads * head_dim, 5, 12]))
    common: dict[str, Any] = {
        "d_model": d_model,
        "num_heads": heads,
        "head_dim": head_dim,
        "bias": draw(st.booleans()),
        "kv_dim": draw(st.sampled_from([None, 7])),
    }
    if plain:
        return AttentionConfig(**common)
    return AttentionConfig(
        **common,
        num_kv_heads=kv_heads,
        is_causal=draw(st.booleans()),
        scale=draw(st.sampled_from([None, None, 0.3, 0.0, -0.7])),
        softcap=draw(st.sampled_from([None, None, 1.5])),
        window=draw(st.sampled_from([None, None, 1, 2, 4])),
        rotary=rotary,
        qk_norm=draw(st.sampled_from([None, None, "rms", "layer"])),
    )


@st.composite
def cases(draw: st.DrawFn, *, plain: bool = False, past: bool = True) -> Case:
    """Configurations with inputs: any mix of masks, masked rows among them, self- or cross-attention, maybe a past."""
    config = draw(configs(plain=plain))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, query_length = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    crossed = config.kv_dim is not None or draw(st.booleans())
    new_length = draw(st.integers(1, 6)) if crossed else query_length
    past_length = draw(st.integers(0, 4)) if past and not plain and draw(st.booleans()) else None
    key_length = new_length + (past_length or 0)
    gain = draw(st.sampled_from([1.0, 1.0, 30.0]))

    inputs: dict[str, Array] = {"query": gain * generator.standard_normal((batch, query_length, config.d_model))}
    if crossed:
        inputs["key"] = gain * generator.standard_normal((batch, new_length, config.kv_width))
        if draw(st.booleans()):
            inputs["value"] = generator.standard_normal((batch, new_length, config.kv_width))
    kind = draw(st.sampled_from(["none", "none", "boolean", "additive"]))
    if kind != "none":
        axes: tuple[int, ...] = (query_length, key_length)
        if not plain:
            axes = (draw(st.sampled_from([1, query_length])), key_length)
        if draw(st.booleans()):
            axes = (draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, config.num_heads])), *axes)
        keep = generator.random(axes) < draw(st.sampled_from([0.3, 0.8]))
        bias = np.where(keep, generator.standard_normal(axes), -np.inf)
        inputs["attn_mask"] = keep if kind == "boolean" else bias
    if draw(st.booleans()):
        inputs["key_padding_mask"] = generator.random((batch, key_length)) < 0.3
    if past_length is not None:
        shape = (batch, config.kv_heads, past_length, config.head_size)
        inputs["past_key"], inputs["past_value"] = generator.standard_normal(shape), generator.standard_normal(shape)
    return Case(config, inputs)


def build(config: AttentionConfig, implementation: Any = "sdpa", seed: int = 0) -> MultiHeadAttention:
    """A block in float64 whose parameters are all drawn, the gains of norms too."""
    torch.manual_seed(seed)
    block = MultiHeadAttention(config, implementation).double().eval()
    scatter(block)
    return block


def scatter(module: nn.Module) -> None:
    """Move every parameter off its initial value, so that none is 0 or 1 by convention."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))


def weights_of(module: nn.Module) -> dict[str, Array]:
    """Parameters by name, as the NumPy reference takes them."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def outputs_of(module: nn.Module, inputs: Mapping[str, Tensor], **options: Any) -> tuple[Tensor, ...]:
    """The outputs of a call without gradients, always a tuple."""
    with torch.no_grad():
        result = module(**inputs, **options)
    return result if isinstance(result, tuple) else (result,)


def distance(got: Tensor | Array, want: Tensor | Array) -> float:
    """Largest difference, relative to the largest value wanted (or to 1 where that is smaller)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if not want.size:
        return 0.0
    assert np.isfinite(want).all()
    return float(np.abs(got - want).max() / max(1.0, np.abs(want).max()))
