"""A graph in float64 that is evaluated many times with a few arrays replaced."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

from crosshead.export.artifact import FormError
from crosshead.export.float64._bodies import KEPT, opset_of
from crosshead.export.float64._evaluator import Evaluator, Watch
from crosshead.export.float64._ops import FLOAT64_OPS
from crosshead.export.float64._split import split, subgraphs

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_NARROW_NAMES = frozenset({"float32", "float16", "bfloat16"})

_SCALES = "__scales_in_float"

# Integer attributes that hold a dtype: of a result, or of the arithmetic inside.
_DTYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type"})
# Operators whose dtype attribute stands for float32 when it is left out.
_DTYPE_DEFAULTS = {
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "SequenceEmpty": "dtype",
}


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a float type that widens to float64, or that itself."""
    return dtype == np.float64 or dtype.name in _NARROW_NAMES


def widen_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return float32, float16 and bfloat16 as float64 (exactly), anything else as it is."""
    return array.astype(np.float64) if array.dtype.name in _NARROW_NAMES else array


class _Widened(Mapping[str, NDArray[Any]]):
    """Arrays that are widened when they are looked at, some of them replaced."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], replaced: Mapping[str, NDArray[Any]] = {}) -> None:
        self._arrays = arrays
        self._replaced = replaced

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._replaced[name] if name in self._replaced else widen_array(self._arrays[name])

    def __contains__(self, name: object) -> bool:  # the one that Mapping gives looks the array up
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclass(frozen=True)
class Float64Graph:
    """A widened model whose constants stand beside it.

    Attributes:
        model: the nodes, in double; without constants.
        native: what the nodes read, in the dtype of the file.
        initializers: names of `native` that were initializers of the file's main graph.
        ops: definitions of operators that are used before those of `onnx.reference`.
    """

    model: onnx.ModelProto
    native: Mapping[str, NDArray[Any]]
    initializers: frozenset[str]
    ops: tuple[type[OpRun], ...] = FLOAT64_OPS

    @staticmethod
    def of(model: onnx.ModelProto, kept: frozenset[str] = KEPT) -> "Float64Graph":
        """Inline function bodies, then widen.

        The order matters: the body of Attention or Gelu, inlined after widening, computes its scale in float32 (1e-8).

        Args:
            model: any, with its data loaded; it is not changed.
            kept: operators whose bodies stay closed, `KEPT` or, to see the products inside Attention as nodes, `PLAIN`.

        Raises:
            FormError: the graph has sparse constants, unloaded data, or a body that cannot be inlined.
        """
        parts = split(model, kept)
        _widen_graph(parts.model.graph, opset_of(parts.model))
        for function in parts.model.functions:
            for node in function.node:
                _widen_node(node, opset_of(parts.model))
        return Float64Graph(parts.model, parts.constants, parts.initializers)

    @property
    def constants(self) -> Mapping[str, NDArray[Any]]:
        """What the nodes read, widened at each look: a large model's weights are in memory once and not three times."""
        return _Widened(self.native)

    def to_model(self) -> onnx.ModelProto:
        """Return one self-contained model, the constants as initializers."""
        model = copy.deepcopy(self.model)
        model.ir_version = max(model.ir_version, 4)  # from 4 on an initializer need not be an input
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.constants.items())
        return model

    def run(
        self,
        inputs: Mapping[str, NDArray[Any]],
        replaced: Mapping[str, NDArray[Any]] = {},
        watch: Watch | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Evaluate.

        Args:
            inputs: by graph input name, float inputs in any precision; names the graph does not have are left aside.
            replaced: constants to use instead of those of the graph, by name, in float64; each is looked up when its
                first reader comes.
            watch: shown each node with what went in and came out, function bodies opened.

        Returns:
            The graph's outputs by name, float outputs in float64.

        Raises:
            FormError: an input is missing, or an operator cannot be evaluated; the message names it.
        """
        evaluator = self._evaluator
        names = [value.name for value in self.model.graph.input]
        missing = [name for name in names if name not in inputs]
        if missing:
            given = ", ".join(inputs) or "none"
            raise FormError(f"the graph's input {missing[0]!r} has no array; given: {given}")
        feed = {name: widen_array(np.asarray(inputs[name])) for name in names}

        with np.errstate(all="ignore"):  # overflow, 0 / 0 and the like are the graph's own results
            outputs = evaluator.run(None, feed, constants=_Widened(self.native, replaced), watch=watch)
        return dict(zip(self.output_names, outputs, strict=True))

    def prepare(self) -> None:
        """Build the evaluator, which `run` does by itself, to learn whether the graph has a float64 evaluation.

        Raises:
            FormError: an operator has none; the message names its node.
        """
        _ = self._evaluator

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph's outputs, in order."""
        return tuple(value.name for value in self.model.graph.output)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator.of(self.model, self.ops)

    def with_nodes(self, model: onnx.ModelProto) -> "Float64Graph":
        """Return the same constants under other nodes."""
        return replace(self, model=model)

    def with_ops(self, ops: tuple[type[OpRun], ...]) -> "Float64Graph":
        """Return the same graph under other definitions of its operators."""
        return replace(self, ops=ops)


def _widen_graph(graph: onnx.GraphProto, opset: int) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        _widen_type(value.type)
    for tensor in graph.initializer:  # of a subgraph whose operator does not see the values around it
        if tensor.data_type in NARROW:
            tensor.CopyFrom(_widen_tensor(tensor))
    for node in graph.node:
        _widen_node(node, opset)
    _keep_scales_float(graph, opset)


def _widen_type(proto: onnx.TypeProto) -> None:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        if tensor.elem_type in NARROW:
            tensor.elem_type = TensorProto.DOUBLE
    elif kind in ("sequence_type", "optional_type"):
        _widen_type(getattr(proto, kind).elem_type)
    elif kind == "map_type":
        _widen_type(proto.map_type.value_type)


def _widen_node(node: onnx.NodeProto, opset: int) -> None:
    present = {attribute.name for attribute in node.attribute}
    if node.op_type == "ConstantOfShape" and "value" not in present:  # left out, it is float32 zero
        node.attribute.append(helper.make_attribute("value", helper.make_tensor("", TensorProto.DOUBLE, [1], [0.0])))
    default = _DTYPE_DEFAULTS.get(node.op_type)
    if default is not None and default not in present:
        node.attribute.append(helper.make_attribute(default, TensorProto.DOUBLE))
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in _DTYPE_ATTRIBUTES and attribute.i in NARROW:
            attribute.i = TensorProto.DOUBLE
        elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type in NARROW:
            attribute.t.CopyFrom(_widen_tensor(attribute.t))
        elif attribute.type == AttributeProto.TYPE_PROTO:
            _widen_type(attribute.tp)
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = np.array(helper.get_attribute_value(attribute), dtype=np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
    for graph in subgraphs(node):
        _widen_graph(graph, opset)


def _widen_tensor(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(widen_array(numpy_helper.to_array(tensor)), tensor.name)


def scale_constants(model: onnx.ModelProto) -> frozenset[str]:
    """Return the constants of a widened model that are scales of Resize: a nudge there would change a size."""
    nodes = [node for node in model.graph.node if node.op_type == "Cast" and node.output[0].endswith(_SCALES)]
    return frozenset(node.input[0] for node in nodes)


def _scales_input(node: onnx.NodeProto, opset: int) -> int | None:
    """Return which input of Resize or Upsample holds the scales, float in every opset; None for other nodes."""
    index = {"Resize": 1 if opset < 11 else 2, "Upsample": 1}.get(node.op_type)
    return index if index is not None and index < len(node.input) and node.input[index] else None


def _keep_scales_float(graph: onnx.GraphProto, opset: int) -> None:
    """Read the scales of each Resize through a Cast to float: its schema takes nothing wider, whatever the data is."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        index = _scales_input(node, opset)
        if index is not None:
            scales = node.output[0] + _SCALES
            nodes.append(helper.make_node("Cast", [node.input[index]], [scales], to=TensorProto.FLOAT))
            node.input[index] = scales
        nodes.append(node)
    if len(nodes) > len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)
