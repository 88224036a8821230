"""Operators of ONNX Runtime's own domain that its optimiser writes, in float64; those that attend stand beside them.

By https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md, and held against its kernels by tests.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from crosshead.export.float64._erf import erf
from crosshead.export.float64._product import Multiplying

_Array = NDArray[Any]
DOMAIN = "com.microsoft"


class Contrib(OpRun):
    """An operator of the domain; some share their names with operators of the standard, whose schemas do not apply."""

    op_domain = DOMAIN
    op_schema: ClassVar[Any] = None


class FusedMatMul(Contrib, Multiplying):
    """alpha A B, with the last two axes turned, or the first axis moved before the last, where asked."""

    def _run(
        self,
        a: _Array,
        b: _Array,
        *,
        alpha: float = 1.0,
        transA: int = 0,  # noqa: N803  # the name of the attribute
        transB: int = 0,  # noqa: N803  # the name of the attribute
        transBatchA: int = 0,  # noqa: N803  # the name of the attribute
        transBatchB: int = 0,  # noqa: N803  # the name of the attribute
    ) -> tuple[_Array]:
        left, right = _turned(a, transA, transBatchA), _turned(b, transB, transBatchB)
        return (float(alpha) * self.multiply(left, right),)


def _turned(x: _Array, last: int, batch: int) -> _Array:
    if batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)  # (m, …, k) -> (…, m, k)
    return x.swapaxes(-1, -2) if last and x.ndim > 1 else x


def gelu(x: _Array) -> _Array:
    """Return x times the normal distribution function of x."""
    return x * (1.0 + erf(x / np.sqrt(2.0))) / 2.0


def tanh_gelu(x: _Array) -> _Array:
    """Return its approximation by tanh."""
    return np.asarray(x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))) / 2.0)


class Gelu(Contrib):
    """Gelu by erf."""

    def _run(self, x: _Array) -> tuple[_Array]:
        return (gelu(x),)


class BiasGelu(Contrib):
    """Gelu of a sum, by erf."""

    def _run(self, x: _Array, bias: _Array) -> tuple[_Array]:
        return (gelu(x + bias),)


class FastGelu(Contrib):
    """Gelu of a sum, by tanh."""

    def _run(self, x: _Array, bias: _Array | None = None) -> tuple[_Array]:
        return (tanh_gelu(x if bias is None else x + bias),)


class QuickGelu(Contrib):
    """x sigmoid(alpha x)."""

    def _run(self, x: _Array, alpha: float = float(np.float32(1.702))) -> tuple[_Array]:
        return (x / (1.0 + np.exp(-float(alpha) * x)),)


class _Normalizing(OpRun):
    """What scales rows, the last axes from `axis` on, to a mean square of 1."""

    def normalize(
        self, x: _Array, gain: _Array, bias: _Array | None, epsilon: float, *, axis: int = -1, centre: bool = True
    ) -> tuple[_Array, _Array, _Array]:
        """Return the normalized rows, their means and what they were multiplied by, axes kept."""
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = x.mean(axis=axes, keepdims=True) if centre else np.zeros((*x.shape[: axes[0]], *[1] * len(axes)))
        factor = 1.0 / np.sqrt(((x - mean) ** 2).mean(axis=axes, keepdims=True) + float(np.float32(epsilon)))
        normal = (x - mean) * factor * gain
        return normal if bias is None else normal + bias, mean, factor


class LayerNormalization(_Normalizing):
    """The standard's, which ONNX Runtime also writes into models of opsets that have none."""

    op_schema: ClassVar[Any] = None

    def _run(
        self,
        x: _Array,
        gain: _Array,
        bias: _Array | None = None,
        *,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,  # noqa: ARG002  # nothing is rounded here
    ) -> tuple[_Array, ...]:
        return self.normalize(x, gain, bias, epsilon, axis=axis)


class RMSNormalization(_Normalizing):
    """The standard's, whose body stays closed where the type of its input is not known."""

    op_schema: ClassVar[Any] = None

    def _run(
        self,
        x: _Array,
        gain: _Array,
        *,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,  # noqa: ARG002  # nothing is rounded here
    ) -> tuple[_Array, ...]:
        normal, _, factor = self.normalize(x, gain, None, epsilon, axis=axis, centre=False)
        return normal, factor


class SimplifiedLayerNormalization(RMSNormalization):
    """The same before the standard had it; ONNX Runtime writes it into the standard's domain."""


class SkipLayerNormalization(Contrib, _Normalizing):
    """The norm of a sum of two inputs and a bias; the sum is the fourth output."""

    def _run(
        self,
        x: _Array,
        skip: _Array,
        gain: _Array,
        shift: _Array | None = None,
        bias: _Array | None = None,
        *,
        epsilon: float = 1e-12,
    ) -> tuple[_Array, ...]:
        total = x + skip if bias is None else x + skip + bias
        return (*self.normalize(total, gain, shift, epsilon), total)


class SkipSimplifiedLayerNormalization(Contrib, _Normalizing):
    """The same without mean and shift."""

    def _run(
        self, x: _Array, skip: _Array, gain: _Array, bias: _Array | None = None, *, epsilon: float = 1e-12
    ) -> tuple[_Array, ...]:
        total = x + skip if bias is None else x + skip + bias
        return (*self.normalize(total, gain, None, epsilon, centre=False), total)


class EmbedLayerNormalization(Contrib, _Normalizing):
    """The norm of a sum of embeddings; the sum is the third output."""

    def _run(
        self,
        ids: _Array,
        segments: _Array | None,
        words: _Array,
        places: _Array,
        segment_table: _Array | None,
        gain: _Array,
        shift: _Array,
        mask: _Array | None = None,
        place_ids: _Array | None = None,
        *,
        epsilon: float = 1e-12,
        mask_index_type: int = 1,  # noqa: ARG002  # both types count the kept tokens
    ) -> tuple[_Array, ...]:
        total = words[ids] + places[np.arange(ids.shape[1]) if place_ids is None else place_ids]  # -> (B, L, D)
        if segments is not None and segment_table is not None:
            total = total + segment_table[segments]
        kept = np.zeros(len(ids), np.int32) if mask is None else mask.sum(axis=1).astype(np.int32)  # (B, L) -> (B,)
        return self.normalize(total, gain, shift, epsilon)[0], kept, total


def rotate(x: _Array, cos: _Array, sin: _Array, *, interleaved: bool) -> _Array:
    """Turn the first features of x (B, H, L, D) by angles whose cosines are (…, L, R/2): halves, or neighbours.

    Features beyond the first R stay.
    """
    half = cos.shape[-1]
    turned = x.copy()
    one, other = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    turned[..., one] = x[..., one] * cos - x[..., other] * sin
    turned[..., other] = x[..., one] * sin + x[..., other] * cos
    return turned


class RotaryEmbedding(Contrib):
    """Rotary positions of (B, L, H D) or (B, H, L, D), by tables of cosines and sines (places, R/2)."""

    def _run(
        self,
        x: _Array,
        places: _Array,
        cos: _Array,
        sin: _Array,
        *,
        interleaved: int = 0,
        num_heads: int = 0,
        rotary_embedding_dim: int = 0,
        is_packed_batching: int = 0,
        scale: float = 1.0,
    ) -> tuple[_Array]:
        if is_packed_batching or scale != 1.0:
            raise ValueError("is_packed_batching and scale are not defined here")
        heads = x
        if x.ndim == 3:
            size = x.shape[2] // num_heads if rotary_embedding_dim and num_heads else 2 * cos.shape[-1]
            heads = x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2)  # (B, L, H D) -> (B, H, L, D)
        length = heads.shape[2]
        used = places.reshape(-1, 1) + np.arange(length) if places.size == 1 else places  # (1,) -> (1, L)
        turned = rotate(heads, cos[used][:, np.newaxis], sin[used][:, np.newaxis], interleaved=bool(interleaved))
        return (turned.swapaxes(1, 2).reshape(x.shape) if x.ndim == 3 else turned,)  # (B, H, L, D) -> (B, L, H D)


CONTRIB_OPS: tuple[type[OpRun], ...] = (
    BiasGelu,
    EmbedLayerNormalization,
    FastGelu,
    FusedMatMul,
    Gelu,
    LayerNormalization,
    QuickGelu,
    RMSNormalization,
    RotaryEmbedding,
    SimplifiedLayerNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
