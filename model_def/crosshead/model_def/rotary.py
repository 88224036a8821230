"""Rotary positions: the angle between a query and a key comes to depend on their distance alone.

Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding" (arXiv:2104.09864). The features of a
head are paired *half-split*, feature i with feature i + dim/2, as Llama's released weights have it; the paper and
GPT-J pair neighbours (2i with 2i + 1). The two differ by a fixed permutation of the features of query and key.

    turn(x, p)[i]         = x[i] cos(p f_i) - x[i + dim/2] sin(p f_i)
    turn(x, p)[i + dim/2] = x[i + dim/2] cos(p f_i) + x[i] sin(p f_i)      f_i = base^(-2i/dim), i < dim/2

Everything is real arithmetic on a position range made anew in each call: no table is kept on a module, so a graph
exported from one length is right at every other.
"""

import torch
from torch import Tensor

from crosshead.model_def.config import RotaryConfig


def rotary_tables(config: RotaryConfig, positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles.

    Args:
        config: base and the number of features to turn.
        positions: (L,) whole numbers, absolute.
        head_dim: width of one head, used where config.dim is None.
        dtype: of the result. Angles are computed in float64 for float64 and in float32 otherwise: half precision
            cannot tell position 2049 from 2048.

    Returns:
        cos and sin, (L, dim/2) each, of `dtype`.
    """
    dim = head_dim if config.dim is None else config.dim
    work = torch.float64 if dtype == torch.float64 else torch.float32
    frequencies = torch.tensor(
        [config.base ** (-2 * i / dim) for i in range(dim // 2)], dtype=work, device=positions.device
    )
    angles = positions.to(work).unsqueeze(-1) * frequencies  # (L,) -> (L, dim/2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first features of each head by their position's angles; the rest pass through.

    Args:
        x: (B, H, L, head_dim), real.
        cos: (L, dim/2), with dim at most head_dim.
        sin: (L, dim/2).

    Returns:
        (B, H, L, head_dim).
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    parts = turned if 2 * half == x.shape[-1] else (*turned, rest)
    return torch.cat(parts, dim=-1)  # 2 x (B, H, L, dim/2) and the rest -> (B, H, L, head_dim)
