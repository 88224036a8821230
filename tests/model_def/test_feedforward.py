from typing import get_args

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import ROUNDING, distance, outputs_of, properties, scatter, weights_of

from crosshead.model_def import reference
from crosshead.model_def.config import Activation, FeedForwardConfig
from crosshead.model_def.feedforward import FeedForward


@given(
    activation=st.sampled_from(get_args(Activation)),
    bias=st.booleans(),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.integers(1, 9)),
)
@properties(60)
def test_equals_the_reference(activation: Activation, bias: bool, sizes: tuple[int, int, int, int]) -> None:
    batch, length, width, hidden = sizes
    config = FeedForwardConfig(d_model=width, d_ff=hidden, activation=activation, bias=bias)
    torch.manual_seed(0)
    layer = FeedForward(config).double()
    scatter(layer)
    x = 3 * torch.randn(batch, length, width, dtype=torch.float64)
    want = reference.feed_forward(config, weights_of(layer), x.numpy())
    assert distance(outputs_of(layer, {"x": x})[0], want) < ROUNDING


def test_positions_do_not_meet() -> None:
    torch.manual_seed(0)
    layer = FeedForward(FeedForwardConfig(d_model=4, d_ff=8)).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    alone = outputs_of(layer, {"x": x[:, 3:4]})[0]
    assert distance(outputs_of(layer, {"x": x})[0][:, 3:4], alone) < ROUNDING
