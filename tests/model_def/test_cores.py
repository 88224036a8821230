import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import ROUNDING, distance, properties
from torch import Tensor

from crosshead.model_def.cores import explicit_core, sdpa_core
from crosshead.model_def.masks import row_keeps

LOW = torch.finfo(torch.float64).min


def heads(seed: int, queries: int, keys: int, group: int = 1, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(count: int, length: int) -> Tensor:
        return torch.randn(2, count, length, width, dtype=torch.float64, generator=generator)

    return normal(2 * group, queries), normal(2, keys), normal(2, keys)


@st.composite
def masks(draw: st.DrawFn, queries: int, keys: int) -> Tensor | None:
    """None, boolean or additive; sparse enough that fully masked rows come up."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 4])), queries, keys)
    kind = draw(st.sampled_from(["none", "boolean", "additive", "lowest"]))
    keep = torch.rand(shape, generator=generator) < 0.4
    if kind == "none":
        return None
    if kind == "boolean":
        return keep
    bias = torch.randn(shape, dtype=torch.float64, generator=generator)
    return bias.masked_fill(~keep, LOW if kind == "lowest" else -torch.inf)


@given(st.data())
@properties(150)
def test_the_two_cores_are_equal(data: st.DataObject) -> None:
    queries, keys, group = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), 2
    q, k, v = heads(data.draw(st.integers(0, 2**31)), queries, keys, group)
    mask = data.draw(masks(queries, keys))
    is_causal = mask is None and data.draw(st.booleans())
    scale = data.draw(st.sampled_from([None, 0.3, 2.0, 0.0, -1.1]))
    got = sdpa_core(q, k, v, mask, is_causal=is_causal, scale=scale)
    want, _ = explicit_core(q, k, v, mask, is_causal=is_causal, scale=scale)
    assert distance(got, want) < ROUNDING


@given(st.data())
@properties(100)
def test_weights_are_positive_and_each_row_sums_to_one_or_is_fully_masked(data: st.DataObject) -> None:
    queries, keys = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    q, k, v = heads(data.draw(st.integers(0, 2**31)), queries, keys, group=2)
    mask = data.draw(masks(queries, keys))
    softcap = data.draw(st.sampled_from([None, 2.0]))
    _, weights = explicit_core(q, k, v, mask, is_causal=False, scale=None, softcap=softcap)
    want = torch.ones(()) if mask is None else row_keeps(mask).squeeze(-1)
    assert distance(weights.sum(dim=-1), want.expand(2, 4, queries).double()) < ROUNDING
    assert (weights >= 0).all()


def test_scores_are_divided_by_the_root_of_the_head_width() -> None:
    width = 9
    q, k, v = torch.ones(1, 1, 1, width), torch.zeros(1, 1, 2, width), torch.ones(1, 1, 2, width)
    k[0, 0, 1] = 1.0  # q · k is 0 and 9, divided by 3 it is 0 and 3
    _, weights = explicit_core(q, k, v, None, is_causal=False, scale=None)
    assert torch.allclose(weights[0, 0, 0], torch.tensor([0.0, 3.0]).softmax(-1), rtol=1e-6)
    q, k, v = heads(0, 3, 5, width=7)
    named = explicit_core(q, k, v, None, is_causal=False, scale=1 / math.sqrt(7))[0]
    assert distance(explicit_core(q, k, v, None, is_causal=False, scale=None)[0], named) < ROUNDING
    assert distance(sdpa_core(q, k, v, None, is_causal=False, scale=None), named) < ROUNDING


def test_scale_zero_weighs_all_keys_alike_and_a_negative_one_turns_scores_over() -> None:
    q, k, v = heads(1, 3, 5)
    mean = v.mean(dim=2, keepdim=True).expand(-1, -1, 3, -1)
    assert distance(sdpa_core(q, k, v, None, is_causal=False, scale=0.0), mean) < ROUNDING
    turned = sdpa_core(-q, k, v, None, is_causal=False, scale=0.5)
    assert distance(sdpa_core(q, k, v, None, is_causal=False, scale=-0.5), turned) < ROUNDING


def test_a_softcap_comes_before_the_mask() -> None:
    q, k, v = heads(2, 1, 3)
    bias = torch.tensor([[[[0.0, 100.0, 0.0]]]], dtype=torch.float64)
    _, weights = explicit_core(q, k, v, bias, is_causal=False, scale=None, softcap=1.0)
    assert (weights[..., 1] > 1 - 1e-12).all()  # capped after the mask, 100 would count for no more than 1
    scores = q @ k.repeat_interleave(1, 1).mT / 2.0
    want = (1.0 * torch.tanh(scores / 1.0) + bias).softmax(-1)
    assert distance(weights, want) < ROUNDING


@pytest.mark.parametrize("core", ["sdpa", "explicit"])
def test_query_head_h_reads_kv_head_h_over_group(core: str) -> None:
    q, k, v = heads(3, 3, 4, group=3)
    if core == "sdpa":
        got = sdpa_core(q, k, v, None, is_causal=False, scale=None)
    else:
        got, _ = explicit_core(q, k, v, None, is_causal=False, scale=None)
    for head in range(6):
        one = (q[:, head] @ k[:, head // 3].mT / 2.0).softmax(-1) @ v[:, head // 3]
        assert distance(got[:, head], one) < ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("additive", [False, True])
def test_a_fully_masked_row_is_exactly_zero(dtype: torch.dtype, additive: bool) -> None:
    q, k, v = (each.to(dtype) for each in heads(4, 5, 5))
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    keep[0, :, 2] = False
    mask = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -torch.inf) if additive else keep
    explicit, weights = explicit_core(q, k, v, mask, is_causal=False, scale=None)
    for got in (explicit, sdpa_core(q, k, v, mask, is_causal=False, scale=None)):
        assert (got[0, :, 2] == 0).all()
        assert got.isfinite().all()
        assert (got[1] != 0).all()
    assert (weights[0, :, 2] == 0).all()


def test_a_row_of_the_lowest_number_attends_to_all_keys_alike() -> None:
    q, k, v = heads(5, 2, 4)
    mask = torch.full((1, 1, 2, 4), LOW, dtype=torch.float64)
    mean = v.mean(dim=2, keepdim=True).expand(-1, -1, 2, -1)
    assert distance(explicit_core(q, k, v, mask, is_causal=False, scale=None)[0], mean) < ROUNDING
    assert distance(sdpa_core(q, k, v, mask, is_causal=False, scale=None), mean) < ROUNDING


def test_a_nan_that_the_data_brings_is_not_taken_for_a_masked_row() -> None:
    q, k, v = heads(6, 3, 3)
    q[0, 0, 1, 0] = torch.nan
    keep = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    got, weights = explicit_core(q, k, v, keep, is_causal=False, scale=None)
    assert got[0, 0, 1].isnan().all()
    assert weights[0, 0, 1].isnan().all()
    assert got[0, 0, 0].isfinite().all()
