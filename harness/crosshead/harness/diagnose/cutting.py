"""A graph that can be cut: between two nodes of its order, or between named values.

A cut is a model of its own. Only what later nodes read becomes an output: marking every value as one would undo the
very fusions that are under suspicion.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper

from crosshead.export.artifact import FormError

_INFERENCE_BYTES = 1024  # larger constants are left out of shape inference: their values are no shapes


@dataclass(frozen=True)
class CutGraph:
    """A model taken apart by nodes.

    Attributes:
        model: the whole, data loaded.
        nodes: in topological order, Constant nodes left out.
        constants: initializers and Constant nodes, by the value they give.
        types: what is known of each value.
    """

    model: onnx.ModelProto
    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, TensorProto | onnx.NodeProto]
    types: Mapping[str, onnx.TypeProto] = field(default_factory=dict)

    @staticmethod
    def of(model: onnx.ModelProto) -> "CutGraph":
        """Take a model apart; it is not changed.

        Raises:
            FormError: the graph has sparse initializers.
        """
        graph = model.graph
        if graph.sparse_initializer:
            raise FormError("the graph has sparse initializers, and is not cut")
        constants: dict[str, TensorProto | onnx.NodeProto] = {each.name: each for each in graph.initializer}
        nodes = []
        for node in graph.node:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                constants[node.output[0]] = node
            else:
                nodes.append(node)
        return CutGraph(model, tuple(nodes), constants, _types(model))

    @property
    def input_names(self) -> tuple[str, ...]:
        """What has to be fed; initializers that old files list as inputs are left out."""
        return tuple(value.name for value in self.model.graph.input if value.name not in self.constants)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the graph's outputs, in order."""
        return tuple(value.name for value in self.model.graph.output)

    def boundary(self, first: int, last: int) -> tuple[list[str], list[str]]:
        """Return what the nodes from `first` to `last` read from outside, and what of theirs is read outside."""
        inside = self.nodes[first : last + 1]
        made = {name for node in inside for name in node.output if name}
        read = dict.fromkeys(name for node in inside for name in reads(node))
        wanted = set(self.output_names)
        for node in (*self.nodes[:first], *self.nodes[last + 1 :]):
            wanted.update(reads(node))
        inputs = [name for name in read if name not in made and name not in self.constants]
        outputs = [name for node in inside for name in node.output if name in wanted]
        return inputs, outputs or [name for node in inside[-1:] for name in node.output if name][:1]

    def between(self, inputs: Sequence[str], outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes that compute `outputs` from `inputs`.

        Raises:
            FormError: they need a value that is neither.
        """
        makers = {name: node for node in self.nodes for name in node.output if name}
        wanted, chosen, todo = set(inputs) | set(self.constants), set(), list(outputs)
        while todo:
            name = todo.pop()
            if name in wanted:
                continue
            wanted.add(name)
            if name not in makers:
                raise FormError(f"{name!r} is computed by no node between the values given")
            node = makers[name]
            if id(node) not in chosen:
                chosen.add(id(node))
                todo += reads(node)
        return [node for node in self.nodes if id(node) in chosen]

    def cut(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[str],
        outputs: Sequence[str],
        values: Mapping[str, NDArray[Any]],
    ) -> onnx.ModelProto:
        """Return the model of some nodes.

        Args:
            nodes: in topological order.
            inputs: values that they read.
            outputs: values that they give.
            values: an array for each, from which a type is taken where the graph tells none.
        """
        model = onnx.ModelProto(
            ir_version=max(self.model.ir_version, 4),
            opset_import=self.model.opset_import,
            functions=self.model.functions,
        )
        graph = model.graph
        graph.name = "cut"
        for name in dict.fromkeys(name for node in nodes for name in reads(node)):
            constant = self.constants.get(name)
            if isinstance(constant, TensorProto):
                graph.initializer.append(constant)
            elif constant is not None:
                graph.node.append(constant)
        graph.node.extend(nodes)
        graph.input.extend(self._value(name, values) for name in inputs)
        graph.output.extend(self._value(name, values) for name in outputs)
        inner = {name for node in nodes for name in node.output} - set(outputs)
        graph.value_info.extend(
            onnx.ValueInfoProto(name=name, type=self.types[name]) for name in sorted(inner) if name in self.types
        )
        return model

    def dtype(self, name: str, value: NDArray[Any]) -> np.dtype[Any]:
        """Return the dtype of a value in this graph; `value` is what float64 evaluation gave for it."""
        kind = self.types.get(name)
        if kind is not None and kind.tensor_type.elem_type:
            return helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        return self._main_float if value.dtype.kind == "f" else value.dtype

    @property
    def _main_float(self) -> np.dtype[Any]:
        elements = [each.type.tensor_type.elem_type for each in self.model.graph.output]
        elements += [each.data_type for each in self.model.graph.initializer]
        floats = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
        return helper.tensor_dtype_to_np_dtype(next((e for e in elements if e in floats), TensorProto.FLOAT))

    def _value(self, name: str, values: Mapping[str, NDArray[Any]]) -> onnx.ValueInfoProto:
        kind = self.types.get(name)
        if kind is not None and kind.tensor_type.HasField("shape"):
            return onnx.ValueInfoProto(name=name, type=kind)
        array = values[name]
        element = helper.np_dtype_to_tensor_dtype(self.dtype(name, array))
        return helper.make_tensor_value_info(name, element, [f"{name}_{axis}" for axis in range(array.ndim)])


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, those that its subgraphs take from around it included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                made = {value.name for value in (*graph.input, *graph.initializer)}
                made |= {name for inner in graph.node for name in inner.output}
                inner_reads = (name for inner in graph.node for name in reads(inner))
                yield from (name for name in (*inner_reads, *(v.name for v in graph.output)) if name not in made)


def op_of(node: onnx.NodeProto) -> str:
    """Return `domain::op`, the default domain written `ai.onnx`, as in a manifest."""
    return f"{node.domain or 'ai.onnx'}::{node.op_type}"


def name_of(node: onnx.NodeProto) -> str:
    """Return a node's name, or that of the first value it gives."""
    return node.name or next(iter(node.output), "")


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = onnx.GraphProto(name=model.graph.name, node=model.graph.node, value_info=model.graph.value_info)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    listed = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _INFERENCE_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    light.graph.CopyFrom(graph)
    light.ir_version = max(light.ir_version, 4)
    try:
        light = onnx.shape_inference.infer_shapes(light, data_prop=True)
    except Exception:  # noqa: BLE001  # C++ raises several kinds; the types that stand in the file must do then
        light = model
    values = (*light.graph.value_info, *light.graph.input, *light.graph.output)
    return {value.name: value.type for value in values if value.type.WhichOneof("value") == "tensor_type"}
