"""A model in double precision that computes what the model given would compute without rounding."""

import contextlib
from collections.abc import Iterator, Mapping

import onnx
from onnx import TensorProto

from crosshead.export.float64._bodies import PLAIN
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64._split import strip, subgraphs, typed


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with float32, float16 and bfloat16 replaced by float64 everywhere; the model given stays.

    Function bodies are opened first (Attention, Gelu, LayerNormalization and the like, and the model's own functions),
    then initializers, constants, tensor attributes, `Cast.to` and the other dtype attributes, value infos and
    subgraphs are widened. Constants become initializers of the main graph. The scales of Resize stay float, as its
    schema wants, behind a Cast. The result passes `onnx.checker` where every operator of it takes double.

    Raises:
        FormError: a sparse constant, data that was not loaded, or bodies that cannot be opened.
    """
    return Float64Graph.of(model, PLAIN).to_model()


# Significand bits, and largest exponent, of each float type that a Cast can lead to.
_FORMATS: Mapping[int, tuple[int, int]] = {
    TensorProto.DOUBLE: (53, 1024),
    TensorProto.FLOAT: (24, 128),
    TensorProto.FLOAT16: (11, 16),
    TensorProto.BFLOAT16: (8, 128),
    TensorProto.FLOAT8E4M3FN: (4, 9),
    TensorProto.FLOAT8E4M3FNUZ: (4, 8),
    TensorProto.FLOAT8E5M2: (3, 16),
    TensorProto.FLOAT8E5M2FNUZ: (3, 16),
    TensorProto.FLOAT4E2M1: (2, 3),
}
# Attributes that round what passes through a node, and the value that stands for float32 when they are left out.
_INNER_PRECISION = ("softmax_precision", "stash_type")


def narrowing_casts(model: onnx.ModelProto) -> list[str]:
    """List, one sentence each, where the graph as given rounds to a narrower float type.

    In float64 these roundings vanish, so a deliberate one would go unseen: a Cast (or CastLike) from a wider float
    type, and a `softmax_precision` or `stash_type` narrower than the data. A Cast to bfloat16 from float16 counts, for
    it drops bits, and so does the way back, for it drops range.
    """
    light = typed(*strip(model))
    with contextlib.suppress(Exception):  # C++ raises several kinds; the types that stand in the file must do then
        light = onnx.shape_inference.infer_shapes(light)
    return list(_narrowing(light.graph, {}))


def _narrowing(graph: onnx.GraphProto, outer: Mapping[str, int]) -> Iterator[str]:
    types = dict(outer)
    for value in (*graph.input, *graph.output, *graph.value_info):
        types[value.name] = value.type.tensor_type.elem_type
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    for node in graph.node:
        name = node.name or next(iter(node.output), "")
        source = types.get(node.input[0], TensorProto.UNDEFINED) if node.input else TensorProto.UNDEFINED
        numbers = {attribute.name: attribute.i for attribute in node.attribute}
        target: int = TensorProto.UNDEFINED
        if node.op_type == "Cast":
            target = numbers.get("to", target)
        elif node.op_type == "CastLike":
            target = types.get(node.input[1], target)
        if _is_narrower(target, source):
            yield f"{node.op_type} {name!r} narrows {_dtype(source)} to {_dtype(target)}"
        for attribute in _INNER_PRECISION:
            inner = numbers.get(attribute, TensorProto.UNDEFINED)
            if _is_narrower(inner, source):
                yield f"{node.op_type} {name!r} computes in {_dtype(inner)} on {_dtype(source)} ({attribute})"
        for inner_graph in subgraphs(node):
            yield from _narrowing(inner_graph, types)


def _is_narrower(target: int, source: int) -> bool:
    if target not in _FORMATS or source not in _FORMATS:
        return False
    return any(new < old for new, old in zip(_FORMATS[target], _FORMATS[source], strict=True))


def _dtype(number: int) -> str:
    plain: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
    return plain.get(number) or str(TensorProto.DataType.Name(number)).lower()
