import cmath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model_def.strategies import ROUNDING, properties

from crosshead.model_def.config import RotaryConfig
from crosshead.model_def.rotary import rotary_tables, turn

CONFIGS = [RotaryConfig(), RotaryConfig(base=500_000.0), RotaryConfig(dim=4)]


def turned(x: torch.Tensor, config: RotaryConfig, first: int) -> torch.Tensor:
    positions = torch.arange(x.shape[2]) + first
    return turn(x, *rotary_tables(config, positions, x.shape[-1], x.dtype))


@pytest.mark.parametrize("config", CONFIGS)
def test_pairs_are_half_split_and_turn_as_complex_numbers(config: RotaryConfig) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    got = turned(x, config, first=3)
    dim = config.dim or 8
    for row in range(5):
        for i in range(dim // 2):
            angle = (row + 3) * config.base ** (-2 * i / dim)
            want = complex(x[0, 0, row, i], x[0, 0, row, i + dim // 2]) * cmath.exp(1j * angle)
            assert abs(complex(got[0, 0, row, i], got[0, 0, row, i + dim // 2]) - want) < ROUNDING
    assert torch.equal(got[..., dim:], x[..., dim:])


@given(shift=st.integers(0, 500), config=st.sampled_from(CONFIGS), seed=st.integers(0, 2**31))
@properties(40)
def test_a_score_depends_on_the_distance_alone(shift: int, config: RotaryConfig, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 2, 5, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    near = turned(q, config, 0) @ turned(k, config, 0).mT
    far = turned(q, config, shift) @ turned(k, config, shift).mT
    assert torch.allclose(near, far, rtol=0, atol=1e-10)  # angles of up to 500 turns round at 500 · 2^-53


def test_position_zero_stays_and_lengths_are_kept() -> None:
    x = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    got = turned(x, RotaryConfig(), 0)
    assert torch.equal(got[:, :, 0], x[:, :, 0])
    assert torch.allclose(got.norm(dim=-1), x.norm(dim=-1), rtol=ROUNDING, atol=0)


def test_angles_of_half_precision_are_computed_in_float32() -> None:
    positions = torch.tensor([2048, 2049])
    cos, _ = rotary_tables(RotaryConfig(), positions, 8, torch.float16)
    assert cos.dtype == torch.float16
    exact, _ = rotary_tables(RotaryConfig(), positions, 8, torch.float64)
    assert (cos.double() - exact).abs().max() < 1e-3  # float16 cannot count to 2049, and would be off by 1
