"""The reference against numbers worked out by hand; the torch blocks are held to it in their own tests."""

import math
import subprocess
import sys

import numpy as np
import pytest

from crosshead.model_def import reference
from crosshead.model_def.config import Activation, AttentionConfig, EncoderConfig, FeedForwardConfig, RotaryConfig


def identity(width: int) -> dict[str, reference.Given]:
    names = ("query_projection", "key_projection", "value_projection", "output_projection")
    return {f"{name}.weight": np.eye(width) for name in names}


def test_two_keys_worked_out_by_hand() -> None:
    config = AttentionConfig(d_model=1, num_heads=1, bias=False)
    query, key, value = [np.array([[[each] for each in row]]) for row in ([1.0], [0.0, math.log(3.0)], [10.0, 20.0])]
    result = reference.multi_head_attention(config, identity(1), query, key, value)
    # scores 0 and ln 3, so weights 1/4 and 3/4
    np.testing.assert_allclose(result.weights[0, 0, 0], [0.25, 0.75], rtol=1e-15)
    np.testing.assert_allclose(result.output[0, 0], [17.5], rtol=1e-15)


def test_scores_are_divided_by_the_root_of_the_head_width() -> None:
    config = AttentionConfig(d_model=8, num_heads=2, bias=False)
    query = np.ones((1, 1, 8))
    key = np.zeros((1, 2, 8))
    key[0, 1, :4] = math.log(3.0) / 2.0  # head 0: 4 · ln 3 / 2 / sqrt(4) = ln 3; head 1: 0
    result = reference.multi_head_attention(config, identity(8), query, key)
    np.testing.assert_allclose(result.weights[0, :, 0], [[0.25, 0.75], [0.5, 0.5]], rtol=1e-15)


def test_masks_worked_out_by_hand() -> None:
    config = AttentionConfig(d_model=1, num_heads=1, bias=True, window=2, is_causal=True)
    weights = identity(1) | {f"{name}_projection.bias": np.zeros(1) for name in ("query", "key", "value")}
    weights["output_projection.bias"] = np.array([5.0])
    x = np.zeros((1, 3, 1))  # every score 0: each row shares out evenly among the keys it sees
    padding = np.array([[True, False, False]])
    result = reference.multi_head_attention(config, weights, x, key_padding_mask=padding)
    assert result.weights[0, 0].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]]
    assert result.output[0, 0].tolist() == [5.0]
    bias = np.array([[0.0, 0.0, 0.0], [math.log(3.0), 0.0, 0.0], [0.0, -np.inf, 0.0]])
    result = reference.multi_head_attention(config, weights, x, attn_mask=bias)
    np.testing.assert_allclose(result.weights[0, 0], np.array([[1, 0, 0], [0.75, 0.25, 0], [0, 0, 1]]), rtol=1e-15)


def test_softcap_scale_and_past_worked_out_by_hand() -> None:
    config = AttentionConfig(d_model=1, num_heads=1, bias=False, scale=2.0, softcap=0.5, is_causal=True)
    past = np.array([[[[1.0]]]])
    result = reference.multi_head_attention(
        config, identity(1), np.array([[[3.0], [0.0]]]), past_key=past, past_value=past
    )
    capped = [0.5 * math.tanh(12.0), 0.5 * math.tanh(36.0)]  # 2 · 3 · 1 and 2 · 3 · 3, over the cap
    first = np.exp(capped) / np.exp(capped).sum()
    np.testing.assert_allclose(result.weights[0, 0], np.array([[*first, 0.0], [1 / 3] * 3]), rtol=1e-15)
    assert result.present_key[0, 0].tolist() == [[1.0], [3.0], [0.0]]


def test_a_quarter_turn_worked_out_by_hand() -> None:
    config = AttentionConfig(d_model=4, num_heads=1, bias=False, rotary=RotaryConfig(base=4.0))
    x = np.zeros((1, 2, 4))
    x[0, 1] = [1.0, 1.0, 0.0, 0.0]  # position 1: pair (0, 2) turns by 1, pair (1, 3) by 4^(-1/2) = 1/2
    key = reference.multi_head_attention(config, identity(4), x).present_key
    want = [math.cos(1.0), math.cos(0.5), math.sin(1.0), math.sin(0.5)]
    np.testing.assert_allclose(key[0, 0, 1], want, rtol=1e-15)


@pytest.mark.parametrize(
    ("activation", "want"),
    [
        ("relu", [0.0, 0.0, 1.0]),
        ("gelu", [-0.15865525393145707, 0.0, 0.8413447460685429]),
        ("gelu_tanh", [-0.15880800939172324, 0.0, 0.8411919906082768]),
        ("silu", [-0.2689414213699951, 0.0, 0.7310585786300049]),
    ],
)
def test_activations_at_known_points(activation: Activation, want: list[float]) -> None:
    config = FeedForwardConfig(d_model=1, d_ff=1, activation=activation, bias=False)
    weights = {"expand.weight": np.eye(1), "contract.weight": np.eye(1)}
    got = reference.feed_forward(config, weights, np.array([[[-1.0], [0.0], [1.0]]]))
    np.testing.assert_allclose(got.ravel(), want, rtol=1e-14)


def test_outputs_come_in_the_order_of_forward() -> None:
    generator = np.random.default_rng(0)
    config = AttentionConfig(d_model=4, num_heads=2, bias=False)
    x, past = generator.standard_normal((1, 3, 4)), generator.standard_normal((1, 2, 5, 2))
    result = reference.multi_head_attention(config, identity(4), x, past_key=past, past_value=past)
    got = reference.evaluate(config, identity(4), {"query": x, "past_key": past, "past_value": past})
    assert [each.shape for each in got] == [(1, 3, 4), (1, 2, 8, 2), (1, 2, 8, 2)]
    for a, b in zip(got, (result.output, result.present_key, result.present_value), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(reference.evaluate(config, identity(4), {"query": x})) == 1


def test_every_kind_of_block_is_evaluated_in_float64() -> None:
    feed_forward = FeedForwardConfig(d_model=4, d_ff=4, bias=False)
    inner = {"expand.weight": np.eye(4, dtype=np.float32), "contract.weight": np.eye(4, dtype=np.float32)}
    x = np.ones((1, 2, 4), dtype=np.float32)
    assert reference.evaluate(feed_forward, inner, {"x": x})[0].dtype == np.float64
    config = EncoderConfig(
        attention=AttentionConfig(d_model=4, num_heads=2, bias=False), feed_forward=feed_forward, norm_first=True
    )
    weights: dict[str, reference.Given] = {f"attention.{name}": each for name, each in identity(4).items()}
    weights |= {f"feed_forward.{name}": each for name, each in inner.items()}
    for norm in ("attention_norm", "feed_forward_norm"):
        weights |= {f"{norm}.weight": np.ones(4), f"{norm}.bias": np.zeros(4)}
    # equal features have no spread: both branches see 0 and add nothing
    assert reference.evaluate(config, weights, {"x": x})[0].tolist() == x.tolist()


def test_importing_it_needs_no_torch() -> None:
    code = "import sys, crosshead.model_def.reference; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
