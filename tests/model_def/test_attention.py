import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import (
    ROUNDING,
    Case,
    build,
    cases,
    configs,
    distance,
    outputs_of,
    properties,
    weights_of,
)
from torch import Tensor

from crosshead.model_def import reference
from crosshead.model_def.attention import MultiHeadAttention
from crosshead.model_def.config import AttentionConfig, RotaryConfig
from crosshead.model_def.errors import ConfigError

IMPLEMENTATIONS = ["sdpa", "explicit"]


def tokens(batch: int, length: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def equations(case: Case, block: MultiHeadAttention) -> reference.AttentionResult:
    return reference.multi_head_attention(case.config, weights_of(block), **case.inputs)


@given(case=cases(), implementation=st.sampled_from(IMPLEMENTATIONS))
@properties(250)
def test_equals_the_reference(case: Case, implementation: str) -> None:
    block = build(case.config, implementation)
    got = outputs_of(block, case.tensors())
    want = equations(case, block)
    assert distance(got[0], want.output) < ROUNDING
    if "past_key" in case.inputs:
        assert len(got) == 3
        assert distance(got[1], want.present_key) < ROUNDING
        assert distance(got[2], want.present_value) < ROUNDING
    else:
        assert len(got) == 1


@given(case=cases())
@properties(100)
def test_the_two_implementations_are_equal(case: Case) -> None:
    sdpa, explicit = build(case.config, "sdpa"), build(case.config, "explicit")
    explicit.load_state_dict(sdpa.state_dict())
    for a, b in zip(outputs_of(sdpa, case.tensors()), outputs_of(explicit, case.tensors()), strict=True):
        assert distance(a, b) < ROUNDING


@given(case=cases(), implementation=st.sampled_from(IMPLEMENTATIONS))
@properties(100)
def test_weights_on_request_are_those_of_the_output(case: Case, implementation: str) -> None:
    block = build(case.config, implementation)
    plain, asked = outputs_of(block, case.tensors()), outputs_of(block, case.tensors(), need_weights=True)
    want = equations(case, block)
    output, weights, *present = asked
    assert distance(output, plain[0]) < ROUNDING
    assert all(torch.equal(a, b) for a, b in zip(present, plain[1:], strict=True))
    assert distance(weights, want.weights) < ROUNDING
    kept = want.weights.any(axis=-1).astype(float)
    assert distance(weights.sum(dim=-1), kept) < ROUNDING


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["boolean", "additive", "padding", "boolean and padding"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_fully_masked_row_gives_the_output_bias(implementation: str, kind: str, bias: bool) -> None:
    block = build(AttentionConfig(d_model=12, num_heads=3, bias=bias), implementation)
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[2] = False
    padding = torch.zeros(2, 4, dtype=torch.bool)
    masks: dict[str, Tensor] = {}
    row: tuple[Any, ...] = (slice(None), 2)
    if kind == "boolean":
        masks["attn_mask"] = keep
    elif kind == "additive":
        masks["attn_mask"] = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~keep, -torch.inf)
    elif kind == "padding":
        padding[1] = True
        masks["key_padding_mask"] = padding
        row = (1,)
    else:  # neither masks a row fully, both together do
        keep[2, 3] = True
        padding[:, 3] = True
        masks = {"attn_mask": keep, "key_padding_mask": padding}
    got = outputs_of(block, {"query": tokens(2, 4, 12), **masks})[0]
    want = block.output_projection.bias.detach() if bias else torch.zeros(12, dtype=torch.float64)
    assert torch.equal(got[row], want.expand_as(got[row]))
    others = torch.ones(2, 4, dtype=torch.bool)
    others[row] = False
    assert not torch.isclose(got[others], want).all(dim=-1).any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_window_that_reaches_no_key_gives_the_output_bias(implementation: str) -> None:
    block = build(AttentionConfig(d_model=8, num_heads=2, window=2), implementation)
    got = outputs_of(block, {"query": tokens(1, 6, 8), "key": tokens(1, 3, 8, seed=1)})[0]
    assert torch.equal(got[0, 4:], block.output_projection.bias.expand(2, 8))
    assert not torch.isclose(got[0, :4], block.output_projection.bias).all(dim=-1).any()


@given(config=configs(), implementation=st.sampled_from(IMPLEMENTATIONS), data=st.data())
@properties(60)
def test_causal_output_does_not_move_when_later_tokens_do(
    config: AttentionConfig, implementation: str, data: st.DataObject
) -> None:
    changes = {"is_causal": True, "kv_dim": None}
    block = build(AttentionConfig(**{**vars(config), **changes}), implementation)
    length = data.draw(st.integers(2, 7))
    first_changed = data.draw(st.integers(1, length - 1))
    x = tokens(2, length, config.d_model)
    moved = x.clone()
    moved[:, first_changed:] += 10.0
    before, after = (outputs_of(block, {"query": each})[0][:, :first_changed] for each in (x, moved))
    assert distance(after, before) < ROUNDING


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("queries", "keys"), [(2, 5), (5, 2)])
def test_causal_with_unequal_lengths_is_upper_left_aligned(implementation: str, queries: int, keys: int) -> None:
    config = AttentionConfig(d_model=8, num_heads=2)
    plain = build(config, implementation)
    causal = build(AttentionConfig(d_model=8, num_heads=2, is_causal=True), implementation)
    given_ = {"query": tokens(1, queries, 8), "key": tokens(1, keys, 8, seed=1)}
    keep = torch.tensor([[j <= i for j in range(keys)] for i in range(queries)])
    want = outputs_of(plain, {**given_, "attn_mask": keep})[0]
    assert distance(outputs_of(causal, given_)[0], want) < ROUNDING


@given(config=configs(), implementation=st.sampled_from(IMPLEMENTATIONS), data=st.data())
@properties(60)
def test_decoding_with_a_cache_equals_the_full_forward(
    config: AttentionConfig, implementation: str, data: st.DataObject
) -> None:
    config = AttentionConfig(**{**vars(config), "is_causal": True, "kv_dim": None})
    block = build(config, implementation)
    length = data.draw(st.integers(2, 7))
    x = tokens(2, length, config.d_model)
    padding = torch.from_numpy(np.random.default_rng(length).random((2, length)) < 0.2)
    full = outputs_of(block, {"query": x, "key_padding_mask": padding})[0]
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1))))
    past_key = past_value = torch.zeros(2, config.kv_heads, 0, config.head_size, dtype=torch.float64)
    pieces = []
    for start, stop in itertools.pairwise([0, *cuts, length]):
        step = {"query": x[:, start:stop], "past_key": past_key, "past_value": past_value}
        output, past_key, past_value = outputs_of(block, {**step, "key_padding_mask": padding[:, :stop]})
        assert past_key.shape == (2, config.kv_heads, stop, config.head_size)
        pieces.append(output)
    assert distance(torch.cat(pieces, dim=1), full) < ROUNDING


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_grouped_heads_are_full_heads_with_kv_heads_repeated(implementation: str) -> None:
    grouped = build(AttentionConfig(d_model=12, num_heads=6, num_kv_heads=2), implementation)
    full = build(AttentionConfig(d_model=12, num_heads=6), implementation)
    state = grouped.state_dict()
    for name in ("key_projection", "value_projection"):
        # each of the 2 heads serves 3 query heads that stand next to each other: 0, 0, 0, 1, 1, 1
        state[f"{name}.weight"] = state[f"{name}.weight"].view(2, 2, 12).repeat_interleave(3, dim=0).view(12, 12)
        state[f"{name}.bias"] = state[f"{name}.bias"].view(2, 2).repeat_interleave(3, dim=0).view(12)
    full.load_state_dict(state)
    x = {"query": tokens(2, 5, 12)}
    assert distance(outputs_of(grouped, x)[0], outputs_of(full, x)[0]) < ROUNDING


def test_self_attention_commutes_with_a_permutation_of_tokens() -> None:
    block = build(AttentionConfig(d_model=12, num_heads=3))
    x, order = tokens(2, 6, 12), torch.tensor([3, 0, 5, 1, 4, 2])
    got = outputs_of(block, {"query": x[:, order]})[0]
    assert distance(got, outputs_of(block, {"query": x})[0][:, order]) < ROUNDING


def test_rotary_positions_break_that_symmetry_but_not_the_distance() -> None:
    block = build(AttentionConfig(d_model=12, num_heads=3, rotary=RotaryConfig()))
    x = tokens(1, 6, 12)
    plain = outputs_of(block, {"query": x})[0]
    order = torch.tensor([1, 0, 2, 3, 4, 5])
    assert distance(outputs_of(block, {"query": x[:, order]})[0], plain[:, order]) > 1e-3
    # the same tokens after a past that the mask hides stand at other positions and give the same output
    past = torch.randn(1, 3, 7, 4, dtype=torch.float64)
    hidden = torch.tensor([[True] * 7 + [False] * 6])
    shifted = {"query": x, "past_key": past, "past_value": past, "key_padding_mask": hidden}
    assert distance(outputs_of(block, shifted)[0], plain) < ROUNDING


def test_a_qk_norm_takes_out_the_length_of_queries_and_keys() -> None:
    block = build(AttentionConfig(d_model=12, num_heads=3, bias=False, qk_norm="rms"))
    x = 100 * tokens(1, 6, 12)
    weights = outputs_of(block, {"query": x, "value": x}, need_weights=True)[1]
    scaled = outputs_of(block, {"query": 7 * x, "value": x}, need_weights=True)[1]
    assert distance(scaled, weights) < 1e-6  # up to the norm's eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_floating_dtype_runs_and_is_kept(dtype: torch.dtype) -> None:
    config = AttentionConfig(d_model=16, num_heads=2, num_kv_heads=1, rotary=RotaryConfig(), qk_norm="rms", window=3)
    exact = build(config)
    block = build(config).to(dtype)
    x = tokens(2, 5, 16)
    got = outputs_of(block, {"query": x.to(dtype)})[0]
    assert got.dtype == dtype
    assert distance(got.double(), outputs_of(exact, {"query": x})[0]) < 20 * torch.finfo(dtype).eps


def test_there_is_no_dropout() -> None:
    block = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=2)).train()
    x = {"query": torch.randn(2, 4, 8)}
    assert torch.equal(outputs_of(block, x)[0], outputs_of(block, x)[0])


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^implementation: expected one of sdpa, explicit, got 'flash'$"):
        MultiHeadAttention(AttentionConfig(), "flash")  # type: ignore[arg-type]  # what a command line may bring
