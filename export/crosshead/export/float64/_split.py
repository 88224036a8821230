"""A model taken apart: the nodes with every function body opened, and every constant beside them as an array.

Constants become plain arrays so that a draw of `literals` or `sensitivity` replaces a few arrays instead of building a
model again, and so that no protobuf message has to hold the weights (a message ends at 2 GB).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from crosshead.export.artifact import FormError
from crosshead.export.float64._bodies import KEPT, STANDARD, open_bodies

_SMALL_BYTES = 1024  # constants that shape inference may need the values of: shapes, axes, starts and ends
_SEES_OUTER = {"If", "Loop", "Scan"}  # operators whose subgraphs the evaluator shows the values around them
_LIFTED = {"value", "value_float", "value_floats", "value_int", "value_ints"}


@dataclass(frozen=True)
class SplitModel:
    """A model without constants, and its constants in the dtype of the file.

    Attributes:
        model: the nodes, function bodies opened; no initializers, no numeric Constant nodes.
        constants: by value name, visible in every subgraph.
        initializers: the names among them that the file had as initializers of its main graph.
    """

    model: onnx.ModelProto
    constants: Mapping[str, NDArray[Any]]
    initializers: frozenset[str]


def split(model: onnx.ModelProto, kept: frozenset[str] = KEPT) -> SplitModel:
    """Take a model apart; the model given is not changed.

    Args:
        model: any, with its data loaded.
        kept: operators whose bodies stay closed.

    Raises:
        FormError: a sparse constant, data that was not loaded, or a body that cannot be inlined.
    """
    bare, constants = strip(model)
    initializers = frozenset(constants)
    lift(bare.graph, constants)
    opened = _open(bare, constants, kept)
    lift(opened.graph, constants)
    return SplitModel(opened, constants, initializers)


def strip(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """Return a copy of the model without its initializers, and those as arrays.

    Raises:
        FormError: a sparse initializer, or data that was not loaded.
    """
    graph = model.graph
    if graph.sparse_initializer:
        raise FormError("the graph has sparse initializers; expected dense ones: convert them before the export")
    constants = {initializer.name: _to_array(initializer) for initializer in graph.initializer}
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.input.extend(value for value in graph.input if value.name not in constants)  # IR 3 lists them there too
    bare.graph.output.extend(graph.output)
    bare.graph.value_info.extend(graph.value_info)
    return bare, constants


def typed(bare: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """Return a copy for shape inference: small constants in full, of large ones the type alone, as inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(bare)
    model.ir_version = max(bare.ir_version, 4)  # from 4 on an initializer need not be an input
    for name, array in constants.items():
        if array.nbytes <= _SMALL_BYTES:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(helper.make_tensor_value_info(name, dtype, array.shape))
    return model


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that stand in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _open(bare: onnx.ModelProto, constants: Mapping[str, NDArray[Any]], kept: frozenset[str]) -> onnx.ModelProto:
    try:
        opened = open_bodies(typed(bare, constants), kept)
    except Exception as error:  # the C++ of onnx raises several kinds, RuntimeError among them
        problem = str(error).strip().splitlines()[0]
        raise FormError(f"the functions of this graph cannot be opened: {problem}; is the graph valid?") from error
    opened.ir_version = bare.ir_version
    del opened.graph.initializer[:]
    inputs = [value for value in opened.graph.input if value.name not in constants]
    del opened.graph.input[:]
    opened.graph.input.extend(inputs)
    return opened


def lift(graph: onnx.GraphProto, constants: dict[str, NDArray[Any]]) -> None:
    """Move the constants of a graph and of its subgraphs to `constants`, renamed where two branches share a name."""
    _lift_scope(graph, constants, {})


def _lift_scope(graph: onnx.GraphProto, constants: dict[str, NDArray[Any]], outer: Mapping[str, str]) -> None:
    own = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
    renames = {old: new for old, new in outer.items() if old not in own}

    def move(name: str, array: NDArray[Any]) -> None:
        new, count = name, 0
        while new in constants:
            count += 1
            new = f"{name}__{count}"
        constants[new] = array
        renames[name] = new

    for initializer in graph.initializer:
        move(initializer.name, _to_array(initializer))
    nodes = []
    for node in graph.node:
        array = _constant_value(node)
        if array is None:
            nodes.append(node)
        else:
            move(node.output[0], array)
    for node in nodes:
        for index, name in enumerate(node.input):
            node.input[index] = renames.get(name, name)
        for inner in subgraphs(node) if node.op_type in _SEES_OUTER else ():
            _lift_scope(inner, constants, renames)
    outputs = [output.name for output in graph.output if output.name in renames]
    # A constant that is an output keeps its name through an Identity.
    nodes += [helper.make_node("Identity", [renames[name]], [name]) for name in outputs]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)


def _constant_value(node: onnx.NodeProto) -> NDArray[Any] | None:
    """Return the number or numbers of a Constant node; None for any other node, and for strings."""
    if node.op_type != "Constant" or node.domain not in STANDARD or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "sparse_value":
        raise FormError(f"Constant node {node.name or node.output[0]!r} is sparse; expected a dense one")
    if attribute.name not in _LIFTED or attribute.ref_attr_name:
        return None
    if attribute.name == "value":
        return _to_array(attribute.t) if attribute.t.data_type != TensorProto.STRING else None
    dtype = np.float32 if attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS) else np.int64
    return np.array(helper.get_attribute_value(attribute), dtype=dtype)


def _to_array(tensor: TensorProto) -> NDArray[Any]:
    if tensor.data_location == TensorProto.EXTERNAL and not tensor.HasField("raw_data"):
        raise FormError(f"the data of {tensor.name!r} lies in another file; load the model together with its data")
    return numpy_helper.to_array(tensor)
