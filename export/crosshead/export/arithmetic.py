"""How much arithmetic a graph does on a case, and how many bytes it cannot do without: what a roofline needs.

Counted over the graph node by node while it is evaluated, so that every shape is known, also those that depend on
data. Only products count as arithmetic, as in the formula of a block: a softmax or a norm reads and writes as much as
it computes.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.float64._bodies import PLAIN
from crosshead.export.float64._graph import Float64Graph

_Arrays = Mapping[str, NDArray[Any]]
_Shape = tuple[int, ...]


class Arithmetic(NamedTuple):
    """What one call asks of a machine.

    Attributes:
        flops: floating-point operations of all products, a multiply and an add counted as two.
        bytes: sizes of inputs, outputs and weights, each once, in the dtypes of the file: what has to move even where
            every result in between stays in a cache.
    """

    flops: float
    bytes: int


class Counter:
    """Adds up the products of a graph; a `Watch` of the float64 evaluator, shown every node with its values."""

    def __init__(self) -> None:
        self.flops = 0.0

    def __call__(self, node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Add the products of one node."""
        formula = _FORMULAS.get((node.domain, node.op_type))
        if formula is not None and any(_is_float(value) for value in inputs):
            self.flops += formula(node, [np.shape(value) for value in inputs], [np.shape(value) for value in outputs])


def count_arithmetic(model: onnx.ModelProto, inputs: _Arrays) -> Arithmetic:
    """Count over a graph.

    Bodies of Attention and other functions are opened; a causal or sliding mask takes nothing off, since the graph
    computes what it then masks out. Of RNN, GRU, LSTM, and of nodes in the subgraphs of If, Loop and Scan, nothing is
    counted.

    Args:
        model: with its data loaded; it is not changed.
        inputs: one array a graph input, by name.

    Raises:
        FormError: an input is missing, or an operator cannot be evaluated.
    """
    graph, counter = Float64Graph.of(model, PLAIN), Counter()
    outputs = graph.run(inputs, watch=counter)
    return Arithmetic(counter.flops, moved_bytes(model, graph.native, inputs, outputs))


def moved_bytes(model: onnx.ModelProto, weights: _Arrays, inputs: _Arrays, outputs: _Arrays) -> int:
    """Return the sizes of a graph's inputs, outputs and weights in the dtypes of the file.

    Args:
        model: for the dtypes of inputs and outputs.
        weights: what its nodes read besides, in the dtype of the file.
        inputs: by name, in any dtype.
        outputs: by name, in any dtype.
    """
    values = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    arrays = {**inputs, **outputs}
    moved = sum(np.size(arrays[name]) * _item_bytes(number) for name, number in values.items() if name in arrays)
    return int(moved + sum(array.nbytes for array in weights.values()))


def _item_bytes(elem_type: int) -> int:
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    return int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)


def _is_float(value: object) -> bool:
    return value is not None and np.asarray(value).dtype.kind == "f"


def _matmul(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    return 2.0 * math.prod(outputs[0]) * inputs[0][-1]  # 2 |Y| K


def _gemm(node: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2.0 * math.prod(outputs[0]) * inputs[0][0 if turned else 1]  # (M, K), or (K, M) when turned


def _conv(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    weight = inputs[1]  # (Cout, Cin / groups, *kernel)
    return 2.0 * math.prod(outputs[0]) * math.prod(weight[1:])


def _conv_transpose(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:  # noqa: ARG001
    weight = inputs[1]  # (Cin, Cout / groups, *kernel)
    return 2.0 * math.prod(inputs[0]) * math.prod(weight[1:])


def _einsum(node: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:  # noqa: ARG001
    """Multiply-adds over every index of the equation; of one operand there is no product."""
    equation = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "equation"), "")
    if len(inputs) < 2 or "..." in equation:  # broadcast axes are not named in it
        return 0.0
    sizes: dict[str, int] = {}
    for term, shape in zip(equation.split("->")[0].replace(" ", "").split(","), inputs, strict=False):
        sizes.update(zip(term, shape, strict=False))
    return 2.0 * (len(inputs) - 1) * math.prod(sizes.values())


_Formula = Callable[[onnx.NodeProto, Sequence[_Shape], Sequence[_Shape]], float]
_FORMULAS: Final[Mapping[tuple[str, str], _Formula]] = MappingProxyType(
    {
        ("", "MatMul"): _matmul,
        ("", "Gemm"): _gemm,
        ("", "Conv"): _conv,
        ("", "ConvTranspose"): _conv_transpose,
        ("", "Einsum"): _einsum,
    }
)
