"""Operators that `onnx.reference` computes in float32, or wrongly: our float64 definitions, and the reason for each.

The evaluator reads `FLOAT64_OPS`, in which the operators of ONNX Runtime's own domain stand as well. What has no
definition there and none to be trusted in `onnx.reference` stands in `DEVIATIONS`, and is refused. Both lists come from
evaluating the ONNX standard's own node cases, 1,395 of them with float inputs, in float64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from crosshead.export.float64._attention import Attention
from crosshead.export.float64._contrib import CONTRIB_OPS, gelu, tanh_gelu
from crosshead.export.float64._contrib_attention import CONTRIB_ATTENTION_OPS
from crosshead.export.float64._erf import erf
from crosshead.export.float64._product import Multiplying

_Array = NDArray[Any]


class Erf(OpRun):
    """The error function; the reference rounds it to float32 (`np.vectorize(erf, otypes=["f"])`)."""

    def _run(self, x: _Array) -> tuple[_Array]:
        return (erf(x).astype(x.dtype),)


class Gelu(OpRun):
    """Gelu whose body stays closed, its input's type unknown; the reference divides by a float32 root of 2."""

    def _run(self, x: _Array, approximate: str = "none") -> tuple[_Array]:
        return (gelu(x) if approximate == "none" else tanh_gelu(x),)


class GatherElements(OpRun):
    """Elements by index along one axis; the reference refuses indices smaller than the data on another axis."""

    def _run(self, data: _Array, indices: _Array, axis: int = 0) -> tuple[_Array]:
        covered = tuple(
            slice(None) if number == axis % data.ndim else slice(size) for number, size in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[covered], indices, axis),)


class MatMul(Multiplying):
    """The matrix product; the reference multiplies a matrix of weights once for each entry of the batch."""

    def _run(self, a: _Array, b: _Array) -> tuple[_Array]:
        return (self.multiply(a, b),)


class Gemm(Multiplying):
    """alpha A B + beta C, A and B turned where asked."""

    def _run(
        self,
        a: _Array,
        b: _Array,
        c: _Array | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        transA: int = 0,  # noqa: N803  # the name of the attribute
        transB: int = 0,  # noqa: N803  # the name of the attribute
        broadcast: int = 0,  # noqa: ARG002  # of opset 6 and older; the shape of c says as much
    ) -> tuple[_Array]:
        product = alpha * self.multiply(a.T if transA else a, b.T if transB else b)
        return (product.astype(a.dtype) if c is None else (product + beta * c).astype(a.dtype),)


class _SoftmaxBase(OpRun):
    """Softmax over one axis, and before opset 13 over all axes from `axis` on, which the reference ignores."""

    def _centred(self, x: _Array, axis: int) -> tuple[_Array, _Array, _Array]:
        """Return x less its largest value, the exponentials of that, and their sum."""
        old = self.run_params["opsets"].get("", 13) < 13
        if old and not any(attribute.name == "axis" for attribute in self.onnx_node.attribute):
            axis = 1  # the evaluator fills in the default of today's schema, -1
        axes = tuple(range(axis % x.ndim, x.ndim)) if old else (axis,)
        centred = x - x.max(axis=axes, keepdims=True)
        exponentials = np.exp(centred)
        return centred, exponentials, exponentials.sum(axis=axes, keepdims=True)


class Softmax(_SoftmaxBase):
    """exp(x) / sum(exp(x))."""

    def _run(self, x: _Array, axis: int = -1) -> tuple[_Array]:
        if x.size == 0:
            return (x,)
        _, exponentials, total = self._centred(x, axis)
        return (exponentials / total,)


class LogSoftmax(_SoftmaxBase):
    """log(softmax(x)), without taking the logarithm of a softmax that has underflowed."""

    def _run(self, x: _Array, axis: int = -1) -> tuple[_Array]:
        if x.size == 0:
            return (x,)
        centred, _, total = self._centred(x, axis)
        return (centred - np.log(total),)


@dataclass(frozen=True)
class Deviation:
    """An operator whose evaluation in float64 would not be what the standard says.

    Attributes:
        op: operator of the standard domain.
        reason: what goes wrong.
        version: release of onnx in which it was seen.
    """

    op: str
    reason: str
    version: str


DEVIATIONS = (
    Deviation("BitCast", "the bits of a float64 are not those of the float32 that the graph means", "1.23.2"),
    Deviation("GridSample", "onnx.reference keeps the sampling positions in float32", "1.23.2"),
    Deviation("Loop", "onnx.reference joins scan outputs that are not vectors along the wrong axis", "1.23.2"),
    Deviation("TfIdfVectorizer", "onnx.reference returns float32", "1.23.2"),
)

RANDOM_OPS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def deviation(node: onnx.NodeProto) -> Deviation | None:
    """Return why a node is refused; None when it can be evaluated."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Loop":  # without scan outputs it is right
        body = next((attribute.g for attribute in node.attribute if attribute.name == "body"), onnx.GraphProto())
        carried = len(body.input) - 2
        if len(body.output) - 1 == carried:
            return None
    return next((entry for entry in DEVIATIONS if entry.op == node.op_type), None)


FLOAT64_OPS: tuple[type[OpRun], ...] = (
    Attention,
    Erf,
    GatherElements,
    Gelu,
    Gemm,
    LogSoftmax,
    MatMul,
    Softmax,
    *CONTRIB_OPS,
    *CONTRIB_ATTENTION_OPS,
)
