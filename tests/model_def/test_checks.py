import pytest
import torch

from crosshead.model_def.attention import MultiHeadAttention
from crosshead.model_def.config import AttentionConfig, FeedForwardConfig
from crosshead.model_def.errors import InputError, ModelDefError
from crosshead.model_def.feedforward import FeedForward

BOOL = torch.bool


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


QUERY = ones(2, 5, 8)

REFUSED = [
    ({"query": ones(2, 5, 7)}, "query: expected shape (batch, length, 8), got (2, 5, 7)"),
    ({"query": ones(5, 8)}, "query: expected shape (batch, length, 8), got (5, 8)"),
    ({"key": ones(2, 5, 8)}, "key: expected shape (batch, length, 6), got (2, 5, 8)"),
    ({"value": ones(2, 3, 5)}, "value: expected shape (batch, length, 6), got (2, 3, 5)"),
    ({"key": ones(1, 3, 6)}, "key: expected the query's batch size 2, got 1"),
    ({"value": ones(2, 4, 6)}, "value: expected the key's length 3, got 4"),
    (
        {"attn_mask": ones(5, 3, dtype=torch.int64)},
        "attn_mask: expected torch.bool (True may attend) or torch.float32 (added to the scores), got torch.int64",
    ),
    (
        {"attn_mask": ones(5, 3, dtype=torch.float64)},
        "attn_mask: expected torch.bool (True may attend) or torch.float32 (added to the scores), got torch.float64",
    ),
    (
        {"attn_mask": ones(2, 5, 3, dtype=BOOL)},
        "attn_mask: expected 2 axes (query length, key length) or 4 axes (batch or 1, heads or 1, query length, "
        "key length), got (2, 5, 3)",
    ),
    ({"attn_mask": ones(3, 5, dtype=BOOL)}, "attn_mask: expected shape (5 or 1, 3), got (3, 5)"),
    ({"attn_mask": ones(5, 1, dtype=BOOL)}, "attn_mask: expected shape (5 or 1, 3), got (5, 1)"),
    (
        {"attn_mask": ones(2, 3, 5, 3)},
        "attn_mask: expected shape (2 or 1, 4 or 1, 5 or 1, 3), got (2, 3, 5, 3)",
    ),
    (
        {"key_padding_mask": ones(2, 3)},
        "key_padding_mask: expected torch.bool of shape (batch, key length), True at padding, "
        "got torch.float32 of shape (2, 3)",
    ),
    (
        {"key_padding_mask": ones(2, 5, dtype=BOOL)},
        "key_padding_mask: expected shape (2, 3), batch and key length with the past, got (2, 5)",
    ),
    (
        {"past_key": ones(2, 2, 4, 2)},
        "past_key and past_value go together: expected past_value as well, got none",
    ),
    (
        {"past_key": ones(2, 4, 4, 2), "past_value": ones(2, 2, 4, 2)},
        "past_key: expected shape (batch, 2, past length, 2), got (2, 4, 4, 2)",
    ),
    (
        {"past_key": ones(2, 2, 4, 2), "past_value": ones(2, 2, 3, 2)},
        "past_value: expected past_key's length 4, got 3",
    ),
    (
        {"past_key": ones(2, 2, 4, 2), "past_value": ones(2, 2, 4, 2), "key_padding_mask": ones(2, 3, dtype=BOOL)},
        "key_padding_mask: expected shape (2, 7), batch and key length with the past, got (2, 3)",
    ),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[message.split(":")[0] for _, message in REFUSED])
def test_attention_names_what_it_expected_and_got(changed: dict[str, torch.Tensor], message: str) -> None:
    block = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=4, num_kv_heads=2, kv_dim=6))
    with pytest.raises(InputError) as caught:
        block(**({"query": QUERY, "key": ones(2, 3, 6)} | changed))
    assert str(caught.value) == message


@pytest.mark.parametrize("shape", [(5, 3), (1, 3), (1, 1, 5, 3), (2, 1, 1, 3), (1, 4, 5, 3), (2, 4, 1, 3)])
@pytest.mark.parametrize("dtype", [BOOL, torch.float32])
def test_every_legal_broadcast_is_taken(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    block = MultiHeadAttention(AttentionConfig(d_model=8, num_heads=4, kv_dim=6))
    mask = torch.ones(shape, dtype=dtype)
    mask[..., 0] = 0 if dtype == BOOL else -torch.inf
    got = block(QUERY, ones(2, 3, 6), attn_mask=mask)
    assert torch.equal(got, block(QUERY, ones(2, 3, 6), attn_mask=mask.expand(2, 4, 5, 3)))


def test_feed_forward_names_what_it_expected_and_got() -> None:
    layer = FeedForward(FeedForwardConfig(d_model=8, d_ff=16))
    with pytest.raises(InputError, match=r"^x: expected shape \(batch, length, 8\), got \(2, 5, 9\)$"):
        layer(ones(2, 5, 9))


def test_errors_are_value_errors_under_one_root() -> None:
    assert issubclass(InputError, ModelDefError)
    assert issubclass(ModelDefError, ValueError)
