"""Round float64 arrays to what a product unit reads, and sum products as one with a half-precision accumulator does.

Sources: IEEE 754-2019 (binary16, round to nearest even); NVIDIA A100 whitepaper (2020) for TF32: the exponent of
float32 and 10 explicit bits of significand; Intel, BFLOAT16 Hardware Numerics Definition (2018).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]
_BITS = 52  # explicit bits of significand of float64


def to_float32(x: _Array) -> _Array:
    """Round to float32, in which a factor arrives; the result is float64 again."""
    return x.astype(np.float32).astype(np.float64)


def to_float16(x: _Array) -> _Array:
    """Round to float16: 10 explicit bits, infinity beyond 65504, steps of 2^-24 below 2^-14."""
    return x.astype(np.float16).astype(np.float64)


def to_bits(x: _Array, bits: int) -> _Array:
    """Round the significand to some explicit bits, to nearest even, under the exponent of float32."""
    raw = to_float32(x).view(np.uint64)
    dropped = np.uint64(_BITS - bits)
    odd = (raw >> dropped) & np.uint64(1)
    below_half = np.uint64((1 << (_BITS - bits - 1)) - 1)
    return ((raw + below_half + odd) & _kept(bits)).view(np.float64)


def cut_to_bits(x: _Array, bits: int) -> _Array:
    """Drop all but some explicit bits of the significand, as a unit does that reads float32 without converting it."""
    return (to_float32(x).view(np.uint64) & _kept(bits)).view(np.float64)


def _kept(bits: int) -> np.uint64:
    return np.uint64((1 << 64) - (1 << (_BITS - bits)))


def sum_in_float16(a: _Array, b: _Array, *, pairwise: bool) -> _Array:
    """Return the product of (…, m, k) and (…, k, n), or of vectors, every sum of two terms rounded to float16.

    The products of two factors are exact, as in a fused multiply-add, but for a sum that float32 rounds first. Time is
    k steps over an (…, m, n) array: 0.1 s for (128, 512) by (512, 512).

    Args:
        a: rounded to float16 first.
        b: likewise.
        pairwise: add neighbours, then neighbours of sums; else one term after the other, to a 0.
    """
    left = a[np.newaxis, :] if a.ndim == 1 else a  # (k,) -> (1, k)
    right = b[:, np.newaxis] if b.ndim == 1 else b  # (k,) -> (k, 1)
    left, right = (to_float16(factor).astype(np.float32) for factor in (left, right))  # products are exact in float32
    result = np.zeros(
        (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1]), dtype=np.float32
    )
    waiting: list[tuple[int, _Array]] = []  # sums of 2^level terms, largest first
    for k in range(left.shape[-1]):
        total, level = left[..., :, k, np.newaxis] * right[..., np.newaxis, k, :], 0  # (…, m, 1) (…, 1, n) -> (…, m, n)
        if not pairwise:
            result = _half_sum(result, total)
            continue
        while waiting and waiting[-1][0] == level:
            total, level = _half_sum(waiting.pop()[1], total), level + 1
        waiting.append((level, total))
    for _, total in reversed(waiting):
        result = _half_sum(total, result)
    if a.ndim == 1:
        result = result[..., 0, :]  # (…, 1, n) -> (…, n)
    return (result[..., 0] if b.ndim == 1 else result).astype(np.float64)  # (…, m, 1) -> (…, m)


def _half_sum(a: _Array, b: _Array) -> _Array:
    return (a + b).astype(np.float16).astype(np.float32)
