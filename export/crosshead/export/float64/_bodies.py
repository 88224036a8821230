"""Open the function bodies of a graph: the model's own functions, and what the operators' schemas define.

`onnx.inliner` can open schema bodies by itself, but stops at a call that leaves out an optional input (an Attention
with past and no mask) and loses default attributes (onnx 1.23.2). So each call gets its body as a function of its own,
and the inliner, which renames and binds well, opens those.
"""

from collections.abc import Mapping
from typing import Any

import onnx
import onnx.inliner
from onnx import AttributeProto, FunctionProto, TypeProto

# Bodies that stay closed: the implementation of each is exact in float64, and the body is only slower (Range's is a
# Loop) or needs to know a type that the implementation sees at run time. That of Attention takes a mask with one key
# for the mask of the first key.
KEPT = frozenset(
    {
        "Attention",
        "CastLike",
        "CenterCropPad",
        "Clip",
        "DepthToSpace",
        "GreaterOrEqual",
        "LessOrEqual",
        "LogSoftmax",
        "PRelu",
        "Range",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceSumSquare",
        "Relu",
        "SequenceMap",
        "Softmax",
        "SpaceToDepth",
    }
)
PLAIN = KEPT - {"Attention"}
"""The same, but for the operator that multiplies inside."""
STANDARD = ("", "ai.onnx")
_DOMAIN = "crosshead.body"


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a model imports."""
    return next((entry.version for entry in model.opset_import if entry.domain in STANDARD), 1)


def open_bodies(model: onnx.ModelProto, kept: frozenset[str] = KEPT) -> onnx.ModelProto:
    """Return the model with every function body opened but those of the operators `kept`.

    A body that cannot be had (a type that inference does not find) stays closed; the operator is then evaluated by its
    reference implementation, as a whole.

    Raises:
        Exception: the C++ of onnx refuses the model.
    """
    model = onnx.inliner.inline_local_functions(model)
    while True:  # a body may call further operators that have one
        model = onnx.shape_inference.infer_shapes(model)
        functions: list[FunctionProto] = []
        _call_bodies(model.graph, {}, opset_of(model), functions, kept)
        if not functions:
            return model
        model.functions.extend(functions)
        model.opset_import.add(domain=_DOMAIN, version=1)
        model = onnx.inliner.inline_local_functions(model)
        imports = [entry for entry in model.opset_import if entry.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(imports)


def _call_bodies(
    graph: onnx.GraphProto,
    outer: Mapping[str, TypeProto],
    opset: int,
    functions: list[FunctionProto],
    kept: frozenset[str],
) -> None:
    """Turn each node that has a body into a call of a function of its own."""
    types = dict(outer)
    types.update((value.name, value.type) for value in (*graph.input, *graph.output, *graph.value_info))
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                _call_bodies(inner, types, opset, functions, kept)
        if node.domain in STANDARD and node.op_type not in kept:
            body = _body(node, types, opset)
            if body is not None:
                body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(functions)}"
                node.domain, node.op_type = body.domain, body.name
                functions.append(body)


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def _body(node: onnx.NodeProto, types: Mapping[str, TypeProto], opset: int) -> FunctionProto | None:
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    if not (schema.has_function or schema.has_context_dependent_function):
        return None
    present = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in present and attribute.default_value.type != AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)
    if schema.has_function:
        versions = [version for version in schema.function_opset_versions if version <= opset]
        data = schema.get_function_with_opset_version(versions[-1]) if versions else b""
    elif any(name and name not in types for name in node.input):
        return None
    else:
        versions = [version for version in schema.context_dependent_function_opset_versions if version <= opset]
        given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
        call = node.SerializeToString(), given
        data = schema.get_context_dependent_function_with_opset_version(versions[-1], *call) if versions else b""
    if not data:
        return None
    body = FunctionProto()
    body.ParseFromString(data)
    del body.opset_import[:]
    body.opset_import.add(domain="", version=opset)
    try:
        onnx.checker.check_function(body)
    except onnx.checker.ValidationError:  # written for an older opset, and an operator has changed since
        return None
    return body
