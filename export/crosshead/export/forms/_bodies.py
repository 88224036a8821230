"""Operators written out in older ones, where the opset asked does not have them.

Gelu, RMSNormalization and RotaryEmbedding, which attention models hold, have bodies of our own: the standard's carry
casts, computed shapes and axes that runtimes do not fuse and that opset 17 cannot take. Every other operator with a
body in the standard uses that one.
"""

import math
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir

from crosshead.export.forms._adapters import Unconvertible, replace
from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._shapes import rank, static_dim


def gelu(emit: Emitter, node: ir.Node) -> None:
    """x/2 (1 + erf(x/sqrt(2))), or its tanh approximation. Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    Written as ONNX Runtime's fusion knows it; sqrt(2) is taken by the graph, exact at every precision.
    """
    value, dtype = _typed_input(node)
    one, half = emit.constant(1, dtype, "one"), emit.constant(0.5, dtype, "half")
    if node.attributes.get_string("approximate", "none") == "none":
        root = emit.op("Sqrt", emit.constant(2, dtype, "two"), label="root", dtype=dtype)
        bent = emit.op("Erf", emit.op("Div", value, root, label="over_root", dtype=dtype), dtype=dtype)
    else:
        cube = emit.op("Pow", value, emit.constant(3, dtype, "three"), label="cube", dtype=dtype)
        third = emit.op("Mul", cube, emit.constant(0.044715, dtype, "gelu_cubic"), label="third", dtype=dtype)
        inner = emit.op("Add", value, third, label="inner", dtype=dtype)
        slope = emit.constant(math.sqrt(2 / math.pi), dtype, "gelu_slope")
        bent = emit.op("Tanh", emit.op("Mul", inner, slope, label="sloped", dtype=dtype), dtype=dtype)
    twice = emit.op("Mul", value, emit.op("Add", bent, one, label="plus_one", dtype=dtype), label="twice", dtype=dtype)
    replace(emit, node, emit.op("Mul", twice, half, label="gelu", dtype=dtype))


def rms_normalization(emit: Emitter, node: ir.Node) -> None:
    """Scale · x / sqrt(mean(x²) + eps) over the last axes. Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467."""
    value, dtype = _typed_input(node)
    axes = rank(value)
    if axes is None:
        raise Unconvertible("the rank of its input is not known")
    inside = ir.DataType(node.attributes.get_int("stash_type", 1))
    if inside.itemsize < dtype.itemsize:
        inside = dtype  # the standard narrows float64 to float32 here; nothing asks for that loss
    x = _cast(emit, value, dtype, inside, "wide")
    first = node.attributes.get_int("axis", -1) % axes
    over = emit.ints(*range(first, axes))
    square = emit.op("Mul", x, x, label="square", dtype=inside)
    mean = emit.op("ReduceMean", square, over, label="mean", dtype=inside, keepdims=1)
    epsilon = emit.constant(node.attributes.get_float("epsilon", 1e-5), inside, "epsilon")
    root = emit.op("Sqrt", emit.op("Add", mean, epsilon, label="raised", dtype=inside), label="rms", dtype=inside)
    normal = _cast(emit, emit.op("Div", x, root, label="normalized", dtype=inside), inside, dtype, "narrow")
    replace(emit, node, emit.op("Mul", normal, node.inputs[1], label="scaled", dtype=dtype))


def rotary_embedding(emit: Emitter, node: ir.Node) -> None:
    """Rotate the halves (or the even and odd members) of each head's first R numbers by the angles of the caches.

    Su et al. 2021, https://arxiv.org/abs/2104.09864. x is (B, H, L, D), or (B, L, H*D) with num_heads;
    caches are (B or 1, L, R/2), or (positions, R/2) with position_ids (B, L).
    """
    x, dtype = _typed_input(node)
    packed, int64 = x, ir.DataType.INT64
    heads = node.attributes.get_int("num_heads", 0)
    is_packed = rank(x) == 3
    width = static_dim(x, -1)
    if width is None or rank(x) not in (3, 4) or (is_packed and not heads):
        raise Unconvertible("the head size is not fixed")
    size = width // heads if is_packed else width
    rotated = node.attributes.get_int("rotary_embedding_dim", 0) or size
    if is_packed:
        sizes = emit.concat_lengths(emit.length(x, 0), emit.length(x, 1), emit.ints(heads, size))
        x = emit.op("Reshape", x, sizes, label="split", dtype=dtype, allowzero=1)  # (B, L, H*D) -> (B, L, H, D)
    rest: list[ir.Value] = []
    if rotated < size:
        x, kept = emit.ops(
            "Split",
            x,
            emit.ints(rotated, size - rotated),
            labels=["turned", "kept"],
            dtype=dtype,
            attributes=[_axis(-1)],
        )
        rest = [kept]
    first, second = _pair(emit, node, x, rotated, dtype)  # (…, R/2) each
    heads_axis = emit.ints(2 if is_packed else 1)
    positions = node.inputs[3] if len(node.inputs) > 3 else None
    waves = []
    for cache, label in zip(node.inputs[1:3], ("cos", "sin"), strict=True):
        if positions is not None:
            cache = emit.op("Gather", cache, positions, label=f"{label}_at", dtype=dtype, axis=0)  # (B, L, R/2)
        waves.append(emit.op("Unsqueeze", cache, heads_axis, label=label, dtype=dtype))  # a heads axis of 1
    cos, sin = waves
    real = emit.op("Sub", _times(emit, first, cos), _times(emit, second, sin), label="real", dtype=dtype)
    imaginary = emit.op("Add", _times(emit, first, sin), _times(emit, second, cos), label="imaginary", dtype=dtype)
    if node.attributes.get_int("interleaved", 0):
        last = emit.ints(-1)
        pair = [emit.op("Unsqueeze", part, last, label="column", dtype=dtype) for part in (real, imaginary)]
        woven = emit.op("Concat", *pair, label="pairs", dtype=dtype, axis=-1)  # (…, R/2, 2)
        lengths = emit.op("Shape", x, label="turned_shape", dtype=int64)
        turned = emit.op("Reshape", woven, lengths, label="woven", dtype=dtype, allowzero=1)  # (…, R)
        result = turned if not rest else emit.op("Concat", turned, *rest, label="joined", dtype=dtype, axis=-1)
    else:
        result = emit.op("Concat", real, imaginary, *rest, label="joined", dtype=dtype, axis=-1)  # (…, D)
    if is_packed:
        lengths = emit.op("Shape", packed, label="packed_shape", dtype=int64)
        result = emit.op("Reshape", result, lengths, label="merged", dtype=dtype, allowzero=1)  # (B, L, H*D)
    replace(emit, node, result)


OWN_BODIES: dict[str, Callable[[Emitter, ir.Node], None]] = {
    "Gelu": gelu,
    "RMSNormalization": rms_normalization,
    "RotaryEmbedding": rotary_embedding,
}
"""Operators of opset 23 with a body written here; its nodes are of opset 23 as well."""


def write_out(emit: Emitter, node: ir.Node, schema: onnx.defs.OpSchema) -> int:
    """Put the standard's own body in the place of a node.

    Returns:
        The opset that the nodes of the body are of.
    """
    body, opset = _standard_body(node, schema)
    given = {attribute.name: ir.to_proto(attribute) for attribute in node.attributes.values()}
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    values: dict[str, ir.Value | None] = {"": None}
    values.update(zip(body.input, [*node.inputs, *[None] * (len(body.input) - len(node.inputs))], strict=True))
    for inner in body.node:
        attributes = []
        for attribute in inner.attribute:
            source = attribute
            if attribute.ref_attr_name:
                found = given.get(attribute.ref_attr_name) or defaults.get(attribute.ref_attr_name)
                if found is None:
                    continue
                source = onnx.AttributeProto()
                source.CopyFrom(found)
                source.name = attribute.name
            if source.HasField("g"):
                raise Unconvertible("its body holds a subgraph")
            attributes.append(ir.serde.deserialize_attribute(source))
        outputs = emit.ops(
            inner.op_type, *(values[name] for name in inner.input), labels=list(inner.output), attributes=attributes
        )
        values.update(zip(inner.output, outputs, strict=True))
    for old, name in zip(node.outputs, body.output, strict=False):
        value = values[name]
        assert value is not None
        emit.substitute(old, value)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    return opset


def _standard_body(node: ir.Node, schema: onnx.defs.OpSchema) -> tuple[onnx.FunctionProto, int]:
    body = onnx.FunctionProto()
    source: Any = schema  # onnx's stubs leave out what a schema says about its body
    if source.has_function:
        opset = max(source.function_opset_versions)
        body.ParseFromString(source.get_function_with_opset_version(opset))
    elif source.has_context_dependent_function:
        opset = max(source.context_dependent_function_opset_versions)
        types = [onnx.TypeProto() if value is None else _type_proto(value) for value in node.inputs]
        serialized = [proto.SerializeToString() for proto in types]
        call = ir.to_proto(node).SerializeToString()
        body.ParseFromString(source.get_context_dependent_function_with_opset_version(opset, call, serialized))
    else:
        raise Unconvertible("it came with a later opset and has no body in older operators")
    return body, opset


def _type_proto(value: ir.Value) -> onnx.TypeProto:
    proto: onnx.TypeProto = ir.to_proto(value).type
    return proto


def _typed_input(node: ir.Node) -> tuple[ir.Value, ir.DataType]:
    value = node.inputs[0]
    if value is None or value.dtype is None:
        raise Unconvertible("the type of its input is not known")
    return value, value.dtype


def _cast(emit: Emitter, value: ir.Value, dtype: ir.DataType, to: ir.DataType, label: str) -> ir.Value:
    return value if to == dtype else emit.op("Cast", value, label=label, dtype=to, to=to.value)


def _axis(axis: int) -> ir.Attr:
    return ir.AttrInt64("axis", axis)


def _times(emit: Emitter, left: ir.Value, right: ir.Value) -> ir.Value:
    return emit.op("Mul", left, right, label="product", dtype=left.dtype)


def _pair(emit: Emitter, node: ir.Node, x: ir.Value, rotated: int, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
    """The two members of each rotated pair: halves of the axis, or even and odd places."""
    if not node.attributes.get_int("interleaved", 0):
        half = emit.ints(rotated // 2, rotated // 2)
        first, second = emit.ops("Split", x, half, labels=["first", "second"], dtype=dtype, attributes=[_axis(-1)])
        return first, second
    last, two, end = emit.ints(-1), emit.ints(2), emit.ints(rotated)
    even, odd = (
        emit.op("Slice", x, emit.ints(start), end, last, two, label=label, dtype=dtype)
        for start, label in ((0, "even"), (1, "odd"))
    )
    return even, odd
