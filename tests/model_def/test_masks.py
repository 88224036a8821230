import pytest
import torch

from crosshead.model_def.masks import causal_keep, combine_masks, padding_keep, row_keeps, window_keep


@pytest.mark.parametrize(("first", "queries", "keys"), [(0, 5, 5), (0, 2, 6), (0, 6, 2), (3, 2, 5), (4, 1, 5)])
def test_causal_keeps_no_later_key(first: int, queries: int, keys: int) -> None:
    keep = causal_keep(torch.arange(queries) + first, torch.arange(keys))
    assert keep.tolist() == [[j <= first + i for j in range(keys)] for i in range(queries)]


@pytest.mark.parametrize("window", [1, 2, 3, 10])
@pytest.mark.parametrize("first", [0, 3])
def test_window_keeps_keys_closer_than_it(window: int, first: int) -> None:
    keep = window_keep(torch.arange(4) + first, torch.arange(7), window)
    assert keep.tolist() == [[abs(first + i - j) < window for j in range(7)] for i in range(4)]


def test_causal_window_is_the_last_tokens_including_its_own() -> None:
    positions = torch.arange(6)
    keep = causal_keep(positions, positions) & window_keep(positions, positions, 3)
    assert keep.sum(dim=-1).tolist() == [1, 2, 3, 3, 3, 3]
    assert keep[5].tolist() == [False, False, False, True, True, True]


def test_padding_is_turned_over() -> None:
    padding = torch.tensor([[False, False, True], [False, True, True]])
    keep = padding_keep(padding)
    assert keep.shape == (2, 1, 1, 3)
    assert keep[:, 0, 0].tolist() == [[True, True, False], [True, False, False]]


def test_nothing_combines_to_nothing() -> None:
    assert combine_masks([], None, 3) is None


def test_keeps_are_met_and_the_query_axis_is_written_out() -> None:
    a, b = torch.rand(4, 5) < 0.5, torch.rand(2, 1, 1, 5) < 0.5
    combined = combine_masks([a, b], None, 4)
    assert combined is not None
    assert combined.dtype == torch.bool
    assert torch.equal(combined, (a & b).expand(2, 1, 4, 5))


@pytest.mark.parametrize("shape", [(1, 5), (4, 5), (1, 3, 1, 5), (2, 1, 4, 5)])
def test_a_bias_is_minus_infinite_where_not_kept(shape: tuple[int, ...]) -> None:
    bias, keep = torch.randn(shape), torch.rand(2, 1, 1, 5) < 0.5
    combined = combine_masks([keep], bias, 4)
    assert combined is not None
    assert combined.dim() == 4
    assert combined.shape[2:] == (4, 5)
    want = torch.where(keep, bias, float("-inf"))
    assert torch.equal(combined, want.expand(combined.shape))


def test_a_bias_alone_is_not_changed() -> None:
    bias = torch.randn(4, 5)
    combined = combine_masks([], bias, 4)
    assert combined is not None
    assert torch.equal(combined, bias[None, None])


def test_fully_masked_rows_are_named_from_the_mask_alone() -> None:
    low = torch.finfo(torch.float32).min
    bias = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf], [low, low], [torch.nan, -torch.inf]])
    assert row_keeps(bias).tolist() == [[True], [False], [True], [True]]
    assert row_keeps(torch.tensor([[True, False], [False, False]])).tolist() == [[True], [False]]
