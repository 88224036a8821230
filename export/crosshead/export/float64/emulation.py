"""Evaluate a graph as a math mode would: in float64, but for the products, whose factors are rounded first.

TF32, bfloat16 and float16 matrix units round both factors of each product and sum in float32, so nearly all of their
error is the rounding of factors, and that is the same on every device: it follows from the data. A backend's error that
agrees with it, element by element, is that mode, whatever its settings say.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv import Conv
from onnx.reference.ops.op_conv_transpose import ConvTranspose
from onnx.reference.ops.op_einsum import Einsum

from crosshead.export.artifact import FormError
from crosshead.export.float64._formats import cut_to_bits, sum_in_float16, to_bits, to_float16
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64._ops import FLOAT64_OPS
from crosshead.export.float64._product import Multiplying, multiply

MathMode = Literal["fp32", "tf32", "tf32-truncated", "bf16", "fp16", "fp16-accumulation", "fp16-accumulation-pairwise"]
"""How products are formed. `fp32` rounds nothing; the next four round the two factors and sum exactly, and the last two
round them to float16 and sum in float16, one term after the other or by pairs."""

MATH_MODES: Final[tuple[MathMode, ...]] = get_args(MathMode)

_Array = NDArray[Any]
_Round = Callable[[_Array], _Array]

_ROUNDINGS: Final[Mapping[str, _Round]] = MappingProxyType(
    {
        "tf32": partial(to_bits, bits=10),
        "tf32-truncated": partial(cut_to_bits, bits=10),
        "bf16": partial(to_bits, bits=7),
        "fp16": to_float16,
        "fp16-accumulation": to_float16,
        "fp16-accumulation-pairwise": to_float16,
    }
)


class ModeShare(NamedTuple):
    """How much of an error a math mode explains.

    Attributes:
        mode: the mode.
        correlation: cosine of the angle between the error and the one that the mode makes, -1 to 1.
        explained: 1 - |error - the mode's error|^2 / |error|^2: the share of the error's energy that is gone once
            the mode's own error is taken away; negative when that makes it larger.
    """

    mode: MathMode
    correlation: float
    explained: float


def emulate(model: onnx.ModelProto, inputs: Mapping[str, _Array], mode: MathMode) -> dict[str, NDArray[np.generic]]:
    """Return what a graph computes in float64 when its products are formed in a math mode, by output name.

    Both factors of every product of MatMul, Gemm, Conv, ConvTranspose, Einsum (all operands) and of the products inside
    Attention and the contrib operators are rounded; biases, sums, softmax and norms are not. RNN, GRU and LSTM are left
    as they are. In the modes that sum in float16, Conv, ConvTranspose and Einsum round their sums once.

    Args:
        model: any model with its data loaded; it is not changed.
        inputs: as for `evaluate_float64`.
        mode: one of `MATH_MODES`.

    Raises:
        FormError: no such mode, or as `evaluate_float64`.
    """
    return _under(Float64Graph.of(model), mode).run(inputs)


def explain_by_mode(
    got: Mapping[str, _Array], want: Mapping[str, _Array], model: onnx.ModelProto, inputs: Mapping[str, _Array]
) -> list[ModeShare]:
    """Return how much of a backend's error each math mode explains, the best first.

    The errors of all float outputs count, each over the size of its output. Elements that are NaN or Inf on any side
    are left out. Where nothing is left or there is no error, correlation and share are 0.

    `tf32` and `fp16` keep the same bits, so within the range of fp16 both explain an error, and which of them stands
    first says nothing. In an fp16 graph the inputs and weights are rounded already, and so are results between products
    in the backend, which the modes leave alone: only the modes that sum in float16 can stand out there.

    Args:
        got: the backend's outputs by name.
        want: `evaluate_float64` of the same graph and inputs, or the module's float64 outputs.
        model: the graph that the backend ran, with its data loaded.
        inputs: by graph input name.

    Raises:
        FormError: as `evaluate_float64`.
    """
    graph = Float64Graph.of(model)
    names = [name for name in want if name in got and np.asarray(want[name]).dtype.kind == "f"]
    shares = []
    for mode in MATH_MODES:
        if mode != "fp32":
            made = _under(graph, mode).run(inputs)
            shares.append(ModeShare(mode, *_compare(*_errors(got, made, want, names))))
    return sorted(shares, key=lambda share: (share.explained, share.correlation), reverse=True)


def _errors(
    got: Mapping[str, _Array], made: Mapping[str, _Array], want: Mapping[str, _Array], names: list[str]
) -> tuple[_Array, _Array]:
    """Return the error of the backend and of the mode, of all outputs in one vector each."""
    pieces = []
    for name in names:
        theirs, ours, oracle = (np.asarray(arrays[name]).astype(np.float64) for arrays in (got, made, want))
        if not theirs.shape == ours.shape == oracle.shape:
            continue
        used = np.isfinite(theirs) & np.isfinite(ours) & np.isfinite(oracle)
        size = float(np.linalg.norm(oracle[used])) or 1.0
        pieces.append(np.stack([theirs[used] - oracle[used], ours[used] - oracle[used]]) / size)  # -> (2, elements)
    both = np.concatenate(pieces, axis=1) if pieces else np.zeros((2, 0))
    return both[0], both[1]


def _compare(error: _Array, mode: _Array) -> tuple[float, float]:
    """Return correlation and explained share."""
    size, own = float(np.linalg.norm(error)), float(np.linalg.norm(mode))
    if size == 0 or own == 0:
        return 0.0, 0.0
    return float(error @ mode) / (size * own), 1.0 - (float(np.linalg.norm(error - mode)) / size) ** 2


def _under(graph: Float64Graph, mode: str) -> Float64Graph:
    if mode not in MATH_MODES:
        raise FormError(f"unknown math mode {mode!r}: expected one of {', '.join(MATH_MODES)}")
    return graph if mode == "fp32" else graph.with_ops(_operators(mode))


def _operators(mode: str) -> tuple[type[OpRun], ...]:
    """Return the definitions of the float64 evaluator with their products formed in a mode."""
    rounded = _ROUNDINGS[mode]
    sums = to_float16 if mode.startswith("fp16-accumulation") else None

    def product(_: Multiplying, a: _Array, b: _Array) -> _Array:
        if a.dtype != np.float64:  # whole numbers, of shapes
            return multiply(a, b)
        if sums is not None:
            return sum_in_float16(a, b, pairwise=mode.endswith("pairwise"))
        return multiply(rounded(a), rounded(b))

    def made(definition: type[OpRun]) -> type[OpRun]:
        if not issubclass(definition, Multiplying):
            return definition
        return type(definition.__name__, (definition,), {"multiply": product})

    return (*map(made, FLOAT64_OPS), *_by_the_reference(rounded, sums or (lambda x: x)))


def _by_the_reference(rounded: _Round, summed: _Round) -> list[type[OpRun]]:
    """Return the operators whose loops are those of `onnx.reference`, with their factors and their sums rounded."""

    def convolution(base: Any) -> type[OpRun]:
        run: Callable[..., tuple[_Array]] = base._run  # onnx annotates none of them

        def _run(self: Any, x: _Array, w: _Array, b: _Array | None = None, **attributes: Any) -> tuple[_Array]:
            product = summed(run(self, rounded(x), rounded(w), **attributes)[0])  # (batch, channels, …)
            return (product if b is None else product + b.reshape(-1, *[1] * (product.ndim - 2)),)  # (c,) -> (c, 1, …)

        return type(base.__name__, (base,), {"_run": _run})

    def einsum(base: Any) -> type[OpRun]:
        run: Callable[..., tuple[_Array]] = base._run

        def _run(self: Any, *operands: _Array, equation: str | None = None) -> tuple[_Array]:
            if len(operands) == 1 or operands[0].dtype != np.float64:  # there is no product, or it is of whole numbers
                return run(self, *operands, equation=equation)
            return (summed(run(self, *map(rounded, operands), equation=equation)[0]),)

        return type(base.__name__, (base,), {"_run": _run})

    return [convolution(Conv), convolution(ConvTranspose), einsum(Einsum)]
