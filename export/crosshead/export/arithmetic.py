"""How much arithmetic a graph does on a case, and how many bytes it cannot do without: what a roofline needs.

Counted over the graph node by node while it is evaluated, so that every shape is known, also those that depend on
data. Only products count as arithmetic, as in the formula of a block: a softmax or a norm reads and writes as much as
it computes.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import CaseRecord
from crosshead.export.float64 import evaluate_float64

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
        self.nodes = 0
        """How many nodes it was shown."""

    def __call__(self, node: onnx.NodeProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Add the products of one node."""
        self.nodes += 1
        formula = _FORMULAS.get((node.domain, node.op_type))
        if formula is not None and any(_is_float(value) for value in inputs):
            self.flops += formula(node, [np.shape(value) for value in inputs], [np.shape(value) for value in outputs])


def count_arithmetic(model: onnx.ModelProto, inputs: _Arrays) -> Arithmetic:
    """Count over a graph.

    A causal or sliding mask takes nothing off, since the graph computes what it then masks out. Of RNN, GRU, LSTM, and
    of nodes in the subgraphs of If, Loop and Scan, nothing is counted.

    Args:
        model: with its data loaded; it is not changed.
        inputs: one array a graph input, by name.

    Raises:
        FormError: an input is missing, or an operator cannot be evaluated.
    """
    counter = Counter()
    outputs = evaluate_float64(model, inputs, watch=counter)
    return Arithmetic(counter.flops, moved_bytes(model, {**inputs, **outputs}))


def moved_bytes(model: onnx.ModelProto, arrays: _Arrays) -> int:
    """Return the sizes of a graph's inputs, outputs and initializers in the dtypes of the file.

    Args:
        model: its initializers' data may lie elsewhere.
        arrays: inputs and outputs by name, in any dtype; what is missing does not count.
    """
    values = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    moved = sum(np.size(arrays[name]) * _item_bytes(number) for name, number in values.items() if name in arrays)
    weights = sum(math.prod(each.dims) * _item_bytes(each.data_type) for each in model.graph.initializer)
    return int(moved + weights)


def with_arithmetic(
    records: Iterable[CaseRecord],
    model: onnx.ModelProto,
    inputs: Mapping[str, _Arrays],
    expected: Mapping[str, _Arrays],
    counters: Mapping[str, Counter],
    formula: Callable[[Mapping[str, _Shape]], float] | None = None,
) -> tuple[CaseRecord, ...]:
    """Note in each case what one call asks of a machine.

    Args:
        records: the cases.
        model: the graph.
        inputs: of each case, by its name.
        expected: what comes out of each case, by its name.
        counters: of those cases on which the graph was evaluated.
        formula: gives the arithmetic from the shapes of the inputs, and goes before a count.
    """
    noted = []
    for record in records:
        name = record.name
        counter = counters.get(name)
        flops = counter.flops if counter is not None and counter.nodes else None
        if formula is not None:
            flops = formula({key: array.shape for key, array in inputs[name].items()})
        moved = moved_bytes(model, {**inputs[name], **expected.get(name, {})})
        noted.append(msgspec.structs.replace(record, flops=flops, moved_bytes=moved))
    return tuple(noted)


def _item_bytes(elem_type: int) -> int:
    if elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    return int(onnx.helper.tensor_dtype_to_np_dtype(elem_type).itemsize)


def _is_float(value: object) -> bool:
    return value is not None and np.asarray(value).dtype.kind == "f"


def _matmul(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    return 2.0 * math.prod(outputs[0]) * inputs[0][-1]  # 2 |Y| K


def _fused_matmul(node: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2.0 * math.prod(outputs[0]) * inputs[0][-2 if turned else -1]


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


def _attention(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    """2 B Lq Lk (H d + H dv) of an Attention in either layout, its past included."""
    query, key, result = inputs[0], inputs[1], outputs[0]
    keys = key[-2] + (inputs[4][-2] if len(inputs) > 4 and inputs[4] else 0)  # a missing input has the shape ()
    return _core(query, result, keys)


def _multi_head_attention(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    query, key = inputs[0], inputs[1] if len(inputs) > 1 and inputs[1] else inputs[0]
    if len(query) == 5:  # (B, L, H, 3, d): query, key and value packed
        keys, heads = query[1], query[2] * query[4]
        query, key = (*query[:2], heads), (query[0], keys, heads)
    lengths = key[1] if len(key) in (3, 5) else key[2]  # (B, Lk, H d), (B, Lk, H, 2, d), or (B, H, Lk, d)
    return _core(query, outputs[0], lengths + (inputs[6][-2] if len(inputs) > 6 and inputs[6] else 0))


def _packed_attention(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    """The projections to query, key and value by one weight (D, H (2 d + dv)), then the core."""
    tokens, weight, result = inputs[0], inputs[1], outputs[0]
    past = inputs[4][-2] if len(inputs) > 4 and inputs[4] else 0  # (2, B, H, past, d)
    width = (weight[1] - result[-1]) // 2
    return 2.0 * math.prod(tokens) * weight[1] + _core((*tokens[:2], width), result, tokens[1] + past)


def _group_query_attention(_: onnx.NodeProto, inputs: Sequence[_Shape], outputs: Sequence[_Shape]) -> float:
    """Of queries as wide as the result, over all places of the present keys (B, Hkv, places, d)."""
    return _core(outputs[0], outputs[0], outputs[1][-2] if len(outputs) > 1 and outputs[1] else inputs[0][1])


def _core(query: _Shape, result: _Shape, keys: int) -> float:
    """Scores and weighted sums of (B, Lq, H d) or (B, H, Lq, d) over some keys: every element meets every key."""
    return 2.0 * keys * (math.prod(query) + math.prod(result))


_Formula = Callable[[onnx.NodeProto, Sequence[_Shape], Sequence[_Shape]], float]
_FORMULAS: Final[Mapping[tuple[str, str], _Formula]] = MappingProxyType(
    {
        ("", "MatMul"): _matmul,
        ("", "Gemm"): _gemm,
        ("", "Conv"): _conv,
        ("", "ConvTranspose"): _conv_transpose,
        ("", "Einsum"): _einsum,
        ("", "Attention"): _attention,
        ("com.microsoft", "FusedMatMul"): _fused_matmul,
        ("com.microsoft", "MultiHeadAttention"): _multi_head_attention,
        ("com.microsoft", "Attention"): _packed_attention,
        ("com.microsoft", "GroupQueryAttention"): _group_query_attention,
    }
)
