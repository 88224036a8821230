import dataclasses
import math
from typing import Any

import pytest

from crosshead.model_def.config import AttentionConfig, EncoderConfig, FeedForwardConfig, RotaryConfig
from crosshead.model_def.errors import ConfigError


def test_defaults_are_the_original_transformer() -> None:
    config = AttentionConfig()
    assert (config.d_model, config.num_heads, config.head_size, config.kv_heads) == (512, 8, 64, 8)
    assert (config.kv_width, config.group, config.score_scale) == (512, 1, 0.125)


def test_fields_left_out_are_resolved() -> None:
    config = AttentionConfig(d_model=10, num_heads=6, num_kv_heads=2, head_dim=5, kv_dim=3, scale=0)
    assert (config.head_size, config.kv_heads, config.group, config.kv_width) == (5, 2, 3, 3)
    assert config.score_scale == 0.0


def test_a_configuration_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AttentionConfig().d_model = 3  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"d_model": 10, "num_heads": 3},
            "num_heads must divide d_model when head_dim is not given: got d_model=10, num_heads=3",
        ),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads: got num_heads=8, num_kv_heads=3"),
        ({"num_kv_heads": 16}, "num_kv_heads must divide num_heads: got num_heads=8, num_kv_heads=16"),
        ({"d_model": 0}, "d_model: expected a whole number of at least 1, got 0"),
        ({"num_heads": 8.0}, "num_heads: expected a whole number of at least 1, got 8.0"),
        ({"num_heads": True}, "num_heads: expected a whole number of at least 1, got True"),
        ({"head_dim": -4}, "head_dim: expected a whole number of at least 1, got -4"),
        ({"window": 0}, "window: expected a whole number of at least 1, got 0"),
        ({"kv_dim": "512"}, "kv_dim: expected a whole number of at least 1, got '512'"),
        ({"bias": "no"}, "bias: expected true or false, got 'no'"),
        ({"is_causal": 1}, "is_causal: expected true or false, got 1"),
        ({"scale": math.nan}, "scale: expected a finite number, got nan"),
        ({"scale": "0.1"}, "scale: expected a finite number, got '0.1'"),
        ({"softcap": 0}, "softcap: expected a finite number above 0, got 0"),
        ({"softcap": math.inf}, "softcap: expected a finite number above 0, got inf"),
        ({"qk_norm": "l2"}, "qk_norm: expected one of rms, layer, got 'l2'"),
        ({"rotary": 10000.0}, "rotary: expected a RotaryConfig or None, got 10000.0"),
        (
            {"head_dim": 5, "rotary": RotaryConfig()},
            "rotary turns pairs, so head_dim must be even: got head_dim=5",
        ),
        ({"head_dim": 4, "rotary": RotaryConfig(dim=6)}, "rotary dim must be at most head_dim=4: got 6"),
    ],
)
def test_attention_says_what_it_expected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**fields)
    assert str(caught.value) == message


@pytest.mark.parametrize("scale", [0, 0.0, -0.5, 3])
def test_any_finite_scale_is_allowed_as_in_torch(scale: float) -> None:
    assert AttentionConfig(scale=scale).score_scale == scale


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base": 0.0}, "rotary base: expected a finite number above 0, got 0.0"),
        ({"dim": 3}, "rotary dim: expected an even whole number of at least 2, got 3"),
        ({"dim": 0}, "rotary dim: expected an even whole number of at least 2, got 0"),
    ],
)
def test_rotary_says_what_it_expected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RotaryConfig(**fields)
    assert str(caught.value) == message


def test_feed_forward_says_what_it_expected() -> None:
    with pytest.raises(ConfigError, match=r"^d_ff: expected a whole number of at least 1, got 0$"):
        FeedForwardConfig(d_ff=0)
    with pytest.raises(ConfigError, match=r"^activation: expected one of relu, gelu, gelu_tanh, silu, got 'tanh'$"):
        FeedForwardConfig(activation="tanh")  # type: ignore[arg-type]  # what a command line may bring


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"attention": AttentionConfig(kv_dim=3)},
            "an encoder layer attends to itself, so kv_dim must be d_model=512: got kv_dim=3",
        ),
        (
            {"feed_forward": FeedForwardConfig(d_model=4)},
            "attention and feed_forward must have one d_model: got 512 and 4",
        ),
        ({"norm_first": None}, "norm_first: expected true or false, got None"),
        ({"norm_eps": -1e-5}, "norm_eps: expected a finite number above 0, got -1e-05"),
    ],
)
def test_encoder_says_what_it_expected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EncoderConfig(**fields)
    assert str(caught.value) == message
