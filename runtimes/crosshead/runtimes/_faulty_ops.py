"""Operators of the reference evaluator with the faults of `_faults` in them. Imports onnx; for `fake` alone.

A fault replaces one method of an operator of `_right_ops`, so that a decomposed graph, a fused one and a subgraph cut
out of either show the same fault.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_concat import Concat
from onnx.reference.ops.op_layer_normalization import LayerNormalization
from onnx.reference.ops.op_rms_normalization import RMSNormalization
from onnx.reference.ops.op_rotary_embedding import RotaryEmbedding

from crosshead.runtimes._right_ops import (
    Array,
    Attention,
    Gemm,
    LessOrEqual,
    MatMul,
    Product,
    Softmax,
    SoftmaxBase,
    Where,
    is_floating,
    wide,
)

_Ops = tuple[type[OpRun], ...]
_Operands = tuple[Any, ...]
_Attributes = dict[str, Any]
_Call = tuple[_Operands, _Attributes]
_LEAK: Final = -30.0
_WRONG_EPS: Final = 1e-3


def _masks(x: Array) -> bool:
    """Whether x is what masked scores are set to: one number, at or near minus infinity."""
    return x.size == 1 and is_floating(x) and float(x.reshape(())) < -1e4


def _with(bases: _Ops, **members: Any) -> _Ops:
    """Return operators with methods replaced; the evaluator knows them by their names."""
    return tuple(type(base.__name__, (base,), members) for base in bases)


def _named(**ops: type[OpRun]) -> _Ops:
    """Return operators under the names by which the evaluator looks them up."""
    return tuple(type(name, (base,), {}) for name, base in ops.items())


def _called(base: Any, change: Callable[[_Operands, _Attributes], _Call]) -> _Ops:
    """Return an operator of the evaluator that is called with other operands or attributes than it was given."""
    run: Callable[..., Any] = base._run  # onnx annotates none of them

    def _run(self: Any, *operands: Array, **attributes: Any) -> Any:
        operands, attributes = change(operands, attributes)
        return run(self, *operands, **attributes)

    return _with((base,), _run=_run)


def _attention(**members: Any) -> _Ops:
    return _with((Attention,), **members)


def _softmax_ops(softmax: Callable[[Any, Array, int], Array]) -> _Ops:
    return _with((Softmax, Attention), softmax=softmax)


def _product_ops(product: Callable[[Any, Array, Array], Array]) -> _Ops:
    return _with((MatMul, Gemm, Attention), product=product)


def _over_the_axis_before(self: Any, x: Array, axis: int) -> Array:
    return SoftmaxBase.softmax(self, x, axis % x.ndim - 1 if x.ndim > 1 else axis)


def _without_max(self: Any, x: Array, axis: int) -> Array:  # noqa: ARG001  # a method
    exponentials = np.exp(x)
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def _swallowing_nan(self: Any, x: Array, axis: int) -> Array:
    return np.nan_to_num(SoftmaxBase.softmax(self, x, axis), nan=0.0)


def _wrong_eps(operands: _Operands, attributes: _Attributes) -> _Call:
    return operands, attributes | {"epsilon": _WRONG_EPS}


def _no_bias(operands: _Operands, attributes: _Attributes) -> _Call:
    return operands[:2], attributes


def _other_rotary(operands: _Operands, attributes: _Attributes) -> _Call:
    return operands, attributes | {"interleaved": int(not attributes.get("interleaved"))}


def _empty_cache(operands: _Operands, attributes: _Attributes) -> _Call:
    if len(operands) == 2 and operands[0].ndim == 4 and attributes["axis"] % 4 == 2:  # (B, G, P, D), (B, G, S, D)
        operands = (np.zeros_like(operands[0]), operands[1])
    return operands, attributes


_erf: Final = np.vectorize(math.erf, otypes=[np.float64])


def _bend(x: Array) -> Array:
    """Return what gelu's tanh approximation has for erf(x / sqrt(2)), float64."""
    return np.asarray(np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


class _ErfByTanh(OpRun):
    def _run(self, x: Array) -> tuple[Array]:
        return (_bend(np.sqrt(2.0) * x.astype(np.float64)).astype(x.dtype),)


class _OtherGelu(OpRun):
    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        wide = x.astype(np.float64)
        bent = _bend(wide) if approximate == "none" else _erf(wide / np.sqrt(2.0))
        return ((wide / 2 * (1 + bent)).astype(x.dtype),)


def _repeating_a_row(self: Any, a: Array, b: Array) -> Array:
    result = Product.product(self, a, b)
    if result.ndim > 1:
        rows = result.reshape(-1, result.shape[-1])  # (…, m, n) -> (… m, n)
        if len(rows) > 1:
            rows[len(rows) // 2] = rows[len(rows) // 2 - 1]
    return result


def _without_last_term(self: Any, a: Array, b: Array) -> Array:
    if b.ndim == 1:
        return Product.product(self, a[..., :-1], b[:-1])
    return Product.product(self, a[..., :-1], b[..., :-1, :])


class _InvertedWhere(Where):
    def _run(self, condition: Array, x: Array, y: Array) -> tuple[Array]:
        return super()._run(~condition if _masks(x) or _masks(y) else condition, x, y)


class _LeakingWhere(Where):
    def _run(self, condition: Array, x: Array, y: Array) -> tuple[Array]:
        x, y = (np.full_like(side, _LEAK) if _masks(side) else side for side in (x, y))
        return super()._run(condition, x, y)


class _SwappedWhere(Where):
    def _run(self, condition: Array, x: Array, y: Array) -> tuple[Array]:
        return super()._run(condition, y, x)


class _LowerRightLessOrEqual(LessOrEqual):
    """Places of keys (…, T) against those of queries (…, L, 1) that start at 0."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        counts_from_0 = b.ndim >= 2 and b.shape[-1] == 1 and b.size > 0 and b.flat[0] == 0
        if counts_from_0 and a.dtype.kind == "i" and a.ndim >= 1:
            b = b + (a.shape[-1] - b.shape[-2])
        return super()._run(a, b)


class _TwiceDiv(OpRun):
    def _run(self, a: Array, b: Array) -> tuple[Array]:
        if a.ndim == 4 and b.ndim == 0 and is_floating(a):  # of heads, by a number: their scale, or their cap
            a = (wide(a) / wide(b)).astype(a.dtype)
        if a.dtype.kind in "iu":
            return (np.asarray(np.trunc(a / b)).astype(a.dtype),)
        return ((wide(a) / wide(b)).astype(a.dtype),)


def _lower_right(self: Any, queries: int, keys: int, past: int) -> Array:  # noqa: ARG001  # a method
    return np.tri(queries, keys, keys - queries, dtype=bool)  # (L, T)


def _swap_first_heads(output: Array) -> Array:
    if output.ndim != 4 or output.shape[1] < 2:
        return output
    return np.concatenate((output[:, 1:2], output[:, :1], output[:, 2:]), axis=1)


class _SwappedHeadsMatMul(MatMul):
    """Of two products of heads only the second, whose left factor is probabilities: a swap in both may cancel."""

    def _run(self, a: Array, b: Array) -> tuple[Array]:
        (result,) = super()._run(a, b)
        return (_swap_first_heads(result) if a.ndim == b.ndim == 4 and not np.any(wide(a) < 0) else result,)


class _TiledExpand(OpRun):
    """Heads (B, G, 1, T, D) expanded to (B, G, H/G, T, D), in the order that makes them tiled when merged."""

    def _run(self, x: Array, shape: Array) -> tuple[Array]:
        result = np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))
        if x.ndim == 5 and x.shape[2] == 1 and result.shape[2] > 1:
            heads = result.shape[1] * result.shape[2]
            order = np.arange(heads) % x.shape[1]  # head h reads key/value head h mod G
            result = x[:, order, 0].reshape(result.shape)  # (B, H, T, D) -> (B, G, H/G, T, D)
        return (result,)


def _capped_after_mask(self: Any, scores: Array, bias: Array, cap: float) -> tuple[Array, Array]:  # noqa: ARG001  # a method
    biased = scores + bias
    capped = cap * np.tanh(biased / cap) if cap > 0 else biased
    return capped, capped


def _last_for_first(x: Array) -> Array:
    return np.concatenate((x[-1:], x[1:]), axis=0)


class _CrosstalkMatMul(MatMul):
    def _run(self, a: Array, b: Array) -> tuple[Array]:
        return super()._run(a, _last_for_first(b) if a.ndim == b.ndim == 4 else b)


class _TransposedMatMul(MatMul):
    def _run(self, a: Array, b: Array) -> tuple[Array]:
        (result,) = super()._run(a, b)
        square = b.ndim == 2 and result.ndim >= 2 and result.shape[-1] == result.shape[-2]
        return (np.ascontiguousarray(result.swapaxes(-1, -2)) if square else result,)


def _stale(self: Any, a: Array, b: Array) -> Array:
    fresh = Product.product(self, a, b)
    before, self.before = getattr(self, "before", fresh), fresh
    return before if before.shape == fresh.shape else fresh


def to_mantissa(x: Array, bits: int) -> Array:
    """Round float32 to so many explicit bits of mantissa, to nearest even; NaN and Inf stay."""
    raw, dropped = np.ascontiguousarray(x, np.float32).view(np.uint32), np.uint32(23 - bits)
    odd = (raw >> dropped) & np.uint32(1)
    rounded = (raw + np.uint32((1 << (22 - bits)) - 1) + odd) & np.uint32((0xFFFFFFFF << (23 - bits)) & 0xFFFFFFFF)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def _rounding(to: Callable[[Array], Array]) -> Callable[[Any, Array, Array], Array]:
    def product(self: Any, a: Array, b: Array) -> Array:
        return Product.product(self, to(a), to(b))

    return product


def _through(dtype: Any) -> Callable[[Array], Array]:
    return lambda x: x.astype(dtype).astype(np.float32)


def _summed_in_half(self: Any, a: Array, b: Array) -> Array:
    a, b = (x.astype(np.float16).astype(np.float32) for x in (a, b))
    if a.ndim < 2 or b.ndim < 2:
        return Product.product(self, a, b)
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for k in range(a.shape[-1]):
        total += a[..., :, k, np.newaxis] * b[..., np.newaxis, k, :]  # (…, m, 1) (…, 1, n) -> (…, m, n)
        total = total.astype(np.float16).astype(np.float32)
    return total


class _DroppingMatMul(MatMul):
    def _run(self, a: Array, b: Array) -> tuple[Array]:
        (result,) = super()._run(a, b)
        if not is_floating(result):
            return (result,)
        keep = np.random.default_rng().random(result.shape) >= 0.1  # from the system's entropy: others each call
        return (np.where(keep, wide(result) / np.float32(0.9), np.float32(0)).astype(result.dtype),)


def _in_random_order(self: Any, a: Array, b: Array) -> Array:
    if b.ndim < 2:
        return Product.product(self, a, b)
    order = np.random.default_rng().permutation(a.shape[-1])  # from the system's entropy
    total: Array = np.zeros((), np.float32)
    for part in np.array_split(order, min(8, len(order)) or 1):
        total = (total + Product.product(self, a[..., part], b[..., part, :])).astype(ml_dtypes.bfloat16)
        total = total.astype(np.float32)
    return np.asarray(total)


_FAULTY_OPS: Final[Mapping[str, _Ops]] = MappingProxyType(
    {
        "softmax-axis": _softmax_ops(_over_the_axis_before),
        "softmax-no-max": _softmax_ops(_without_max),
        "softmax-swallows-nan": _softmax_ops(_swallowing_nan),
        "norm-eps": (*_called(LayerNormalization, _wrong_eps), *_called(RMSNormalization, _wrong_eps)),
        "norm-no-bias": _called(LayerNormalization, _no_bias),
        "gelu-swapped": _named(Gelu=_OtherGelu, Erf=_ErfByTanh),
        "matmul-row": _with((MatMul, Gemm), product=_repeating_a_row),
        "matmul-last-k": _product_ops(_without_last_term),
        "mask-inverted": (*_named(Where=_InvertedWhere), *_attention(kept=lambda _, keep: ~keep)),
        "causal-lower-right": (
            *_named(LessOrEqual=_LowerRightLessOrEqual),
            *_attention(frontier=_lower_right),
        ),
        "scale-squared": (
            *_named(Div=_TwiceDiv),
            *_attention(factor=lambda self, size, given: Attention.factor(self, size, given) ** 2),
        ),
        "heads-swapped": (
            *_named(MatMul=_SwappedHeadsMatMul),
            *_attention(heads=lambda _, output: _swap_first_heads(output)),
        ),
        "kv-heads-tiled": (
            *_named(Expand=_TiledExpand),
            *_attention(repeat=lambda _, x, group: np.tile(x, (1, group, 1, 1))),  # (B, G, T, D) -> (B, H, T, D)
        ),
        "softcap-after-mask": _attention(masked=_capped_after_mask),
        "past-ignored": (*_called(Concat, _empty_cache), *_attention(past=lambda _, x: np.zeros_like(x))),
        "batch-crosstalk": (*_named(MatMul=_CrosstalkMatMul), *_attention(members=lambda _, x: _last_for_first(x))),
        "padding-leak": (*_named(Where=_LeakingWhere), *_attention(drop=_LEAK)),
        "transposed": _named(MatMul=_TransposedMatMul),
        "where-swapped": _named(Where=_SwappedWhere),
        "rotary-pairs": _called(RotaryEmbedding, _other_rotary),
        "stale-output": _with((MatMul, Gemm), product=_stale),
        "tf32": _product_ops(_rounding(lambda x: to_mantissa(x, 10))),
        "bf16-products": _product_ops(_rounding(_through(ml_dtypes.bfloat16))),
        "fp16-products": _product_ops(_rounding(_through(np.float16))),
        "fp16-accumulation": _product_ops(_summed_in_half),
        "dropout": _named(MatMul=_DroppingMatMul),
        "atomics": _with((MatMul,), product=_in_random_order),
    }
)


def faulty_ops(fault: str) -> list[type[OpRun]]:
    """Return the operators of a fault, for `new_ops` of the reference evaluator."""
    return list(_FAULTY_OPS[fault])
