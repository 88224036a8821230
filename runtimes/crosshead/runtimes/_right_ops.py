"""Operators of the reference evaluator written out by their definitions, in small methods that a fault can replace.

Right as they stand. Half-precision operands are widened to float32 inside and rounded once, as kernels do it. Imports
onnx; for `_faulty_ops` alone.
"""

from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]
_HALF: Final = ("float16", "bfloat16")


def is_floating(x: Array) -> bool:
    """Whether x holds floating-point numbers, bfloat16 among them."""
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"


def wide(x: Array) -> Array:
    """Return half-precision numbers as float32, others as they are."""
    return x.astype(np.float32) if x.dtype.name in _HALF else x


class Product:
    """What forms matrix products."""

    def product(self, a: Array, b: Array) -> Array:
        """Return (…, m, k) times (…, k, n), both float32 or wider."""
        return np.asarray(np.matmul(a, b))

    def multiply(self, a: Array, b: Array) -> Array:
        """Return the product at the operands' precision; whole numbers are multiplied as they are."""
        if not is_floating(a):
            return np.asarray(np.matmul(a, b))
        return self.product(wide(a), wide(b)).astype(a.dtype)


class SoftmaxBase:
    """What turns scores into probabilities."""

    def softmax(self, x: Array, axis: int) -> Array:
        """Return exp(x) / sum(exp(x)) over an axis; NaN where all of it is -inf."""
        exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


class MatMul(Product, OpRun):
    """The matrix product."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        return (self.multiply(a, b),)


class Gemm(Product, OpRun):
    """alpha A B + beta C, A and B turned where asked."""

    def _run(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: int = 0,  # noqa: N803  # the name of the attribute
        transB: int = 0,  # noqa: N803  # the name of the attribute
    ) -> tuple[Array]:
        result = alpha * wide(self.multiply(a.T if transA else a, b.T if transB else b))
        return ((result if c is None else result + beta * wide(c)).astype(a.dtype),)


class Softmax(SoftmaxBase, OpRun):
    """Softmax over one axis, as from opset 13 on."""

    def _run(self, x: Array, axis: int = -1) -> tuple[Array]:
        return (self.softmax(wide(x), axis).astype(x.dtype) if x.size else x,)


class Attention(Product, SoftmaxBase, OpRun):
    """Attention of opsets 23 and 24, by https://onnx.ai/onnx/operators/onnx__Attention.html.

    query (B, H, L, D), key (B, G, S, D), value (B, G, S, E), or 3-D with heads in the last axis; mask broadcasts to
    (B, H, L, T) with T keys in all, and may end before T.
    """

    def frontier(self, queries: int, keys: int, past: int) -> Array:
        """Return which key each query may see when causal, (L, T)."""
        return cast("Array", np.arange(keys) <= np.arange(queries)[:, np.newaxis] + past)  # (T,), (L, 1) -> (L, T)

    def repeat(self, x: Array, group: int) -> Array:
        """Repeat grouped heads for their queries, (B, G, T, D) -> (B, H, T, D)."""
        return np.repeat(x, group, axis=1)

    def factor(self, size: int, given: float | None) -> float:
        """Return what scores are multiplied by."""
        return 1.0 / float(np.sqrt(size)) if given is None else float(given)

    def kept(self, keep: Array) -> Array:
        """Return what a boolean mask keeps."""
        return keep

    def past(self, x: Array) -> Array:
        """Return the cached keys or values, (B, G, P, D), as attention reads them."""
        return x

    def heads(self, output: Array) -> Array:
        """Return the output, (B, H, L, E), with its heads where they belong."""
        return output

    def members(self, x: Array) -> Array:
        """Return keys or values, (B, H, T, D), with each member of the batch where it belongs."""
        return x

    def masked(self, scores: Array, bias: Array, cap: float) -> tuple[Array, Array]:
        """Return the capped scores, and those under the mask, both (B, H, L, T)."""
        capped = cap * np.tanh(scores / cap) if cap > 0 else scores
        return capped, capped + bias

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        nonpad: Array | None = None,
        *,
        is_causal: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
        q_num_heads: int | None = None,
        kv_num_heads: int | None = None,
        qk_matmul_output_mode: int = 0,
        softmax_precision: int | None = None,  # noqa: ARG002  # it is float32 at least, which is enough
        left_window_size: int = -1,
        right_window_size: int = -1,
    ) -> tuple[Array, ...]:
        if nonpad is not None or left_window_size >= 0 or right_window_size >= 0:
            raise NotImplementedError("Attention with nonpad_kv_seqlen or a window has no faulty definition")
        dtype, packed = query.dtype, query.ndim == 3
        if packed:
            query, key, value = (
                _split(x, heads) for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
            )
        present_key = key if past_key is None else np.concatenate((past_key, key), axis=2)  # (B, G, T, D)
        present_value = value if past_value is None else np.concatenate((past_value, value), axis=2)
        if past_key is not None and past_value is not None:
            key = np.concatenate((self.past(past_key), key), axis=2)  # (B, G, S, D) -> (B, G, T, D)
            value = np.concatenate((self.past(past_value), value), axis=2)
        group = query.shape[1] // key.shape[1]
        keys, values = (self.members(wide(self.repeat(x, group) if group > 1 else x)) for x in (key, value))
        factor = self.factor(query.shape[-1], scale)
        scores = self.product(wide(query) * np.float32(factor), keys.swapaxes(-1, -2))  # (B, H, L, T)
        bias = self._bias(mask, scores, 0 if past_key is None else past_key.shape[2], bool(is_causal))
        capped, masked = self.masked(scores, bias, softcap or 0.0)
        probabilities = self.softmax(masked, -1)
        empty = np.isneginf(bias).all(axis=-1, keepdims=True)  # a query without a key: 0
        probabilities = np.where(empty, np.float32(0), probabilities)
        output = self.heads(self.product(probabilities, values))  # (B, H, L, E)
        if packed:
            output = output.swapaxes(1, 2).reshape(output.shape[0], output.shape[2], -1)  # -> (B, L, H*E)
        weights = (scores, capped, masked, probabilities)[qk_matmul_output_mode or 0]
        return output.astype(dtype), present_key, present_value, weights.astype(dtype)

    def _bias(self, mask: Array | None, scores: Array, past: int, is_causal: bool) -> Array:
        """Return what is added to the scores, (B or 1, H or 1, L, T)."""
        queries, keys = scores.shape[-2:]
        bias = np.zeros((1, 1, queries, keys), np.float32)
        if mask is not None:
            short = keys - mask.shape[-1]
            if short and mask.shape[-1] != 1:
                fill = False if mask.dtype == bool else -np.inf
                mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=fill)
            added = self._fill(self.kept(mask)) if mask.dtype == bool else wide(mask)
            bias = bias + np.asarray(added, np.float32)
        if is_causal:
            bias = bias + self._fill(self.kept(self.frontier(queries, keys, past)))
        return bias

    def _fill(self, keep: Array) -> Array:
        return np.where(keep, np.float32(0), np.float32(self.drop))

    drop: float = -np.inf


def _split(x: Array, heads: int | None) -> Array:
    if not heads:
        raise ValueError("3-D Attention needs q_num_heads and kv_num_heads")
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)  # (B, L, H*D) -> (B, H, L, D)


class Where(OpRun):
    """X where the condition holds, else y."""

    def _run(self, condition: Array, x: Array, y: Array) -> tuple[Array]:
        return (np.where(condition, x, y).astype(x.dtype),)


class LessOrEqual(OpRun):
    """Whether a <= b."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        return (np.asarray(a <= b),)
