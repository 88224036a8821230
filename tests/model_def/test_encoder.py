from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import ROUNDING, configs, distance, outputs_of, properties, scatter, weights_of

from crosshead.model_def import reference
from crosshead.model_def.config import Activation, AttentionConfig, EncoderConfig, FeedForwardConfig
from crosshead.model_def.encoder import EncoderLayer
from crosshead.model_def.errors import InputError


def build(config: EncoderConfig, implementation: Any = "sdpa") -> EncoderLayer:
    torch.manual_seed(0)
    layer = EncoderLayer(config, implementation).double().eval()
    scatter(layer)
    return layer


@given(data=st.data(), attention=configs(), implementation=st.sampled_from(["sdpa", "explicit"]))
@properties(80)
def test_equals_the_reference(data: st.DataObject, attention: AttentionConfig, implementation: str) -> None:
    attention = AttentionConfig(**{**vars(attention), "kv_dim": None})
    config = EncoderConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            d_model=attention.d_model, d_ff=7, activation=data.draw(st.sampled_from(get_args(Activation)))
        ),
        norm_first=data.draw(st.booleans()),
        norm_eps=data.draw(st.sampled_from([1e-5, 1e-12])),
    )
    layer = build(config, implementation)
    generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    inputs: dict[str, Any] = {"x": generator.standard_normal((batch, length, attention.d_model))}
    if data.draw(st.booleans()):
        inputs["key_padding_mask"] = generator.random((batch, length)) < 0.3
    if data.draw(st.booleans()):
        inputs["attn_mask"] = generator.random((length, length)) < 0.6
    want = reference.encoder_layer(config, weights_of(layer), **inputs)
    got = outputs_of(layer, {name: torch.from_numpy(array) for name, array in inputs.items()})[0]
    # LayerNorm divides by the spread of few features, which can be small, and its rounding grows with that.
    assert distance(got, want) < 1e3 * ROUNDING


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_residual_carries_a_fully_masked_row(norm_first: bool) -> None:
    config = EncoderConfig(
        attention=AttentionConfig(d_model=8, num_heads=2, bias=False),
        feed_forward=FeedForwardConfig(d_model=8, d_ff=16),
        norm_first=norm_first,
    )
    layer = build(config)
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    got = outputs_of(layer, {"x": x, "key_padding_mask": torch.ones(1, 4, dtype=torch.bool)})[0]
    with torch.no_grad():
        if norm_first:
            want = x + layer.feed_forward(layer.feed_forward_norm(x))
        else:
            hidden = layer.attention_norm(x)
            want = layer.feed_forward_norm(hidden + layer.feed_forward(hidden))
    assert distance(got, want) < ROUNDING


def test_inputs_are_checked_by_the_attention_inside() -> None:
    config = EncoderConfig(
        attention=AttentionConfig(d_model=8, num_heads=2), feed_forward=FeedForwardConfig(d_model=8, d_ff=16)
    )
    with pytest.raises(InputError, match="key_padding_mask: expected"):
        EncoderLayer(config)(torch.ones(1, 4, 8), key_padding_mask=torch.ones(1, 4))
