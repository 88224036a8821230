"""What a graph asks of attention, read off its node: mask, causal, cached keys, soft capping and the like.

A rule about a kernel holds for every graph with these features, whatever its case is called.
"""

from typing import TYPE_CHECKING, Any, Final

from crosshead.results import FeatureRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from crosshead.results.conformity import Heads

ATTENTION_OPS: Final = ("Attention", "FlexAttention", "LinearAttention")
"""Operators of the standard that are attention. The features are those of the first; others have some of them."""

_CACHE: Final = {"Attention": (4, 5), "LinearAttention": (3,)}
"""By operator, the places of what it keeps from earlier calls among its inputs."""


def read_features(model: "onnx.ModelProto") -> list[FeatureRecord]:
    """Return the features of each attention node of a model, in the order of its nodes.

    Args:
        model: with the shapes of its values, or with those that shape inference can find.
    """
    import onnx

    if not any(node.op_type in ATTENTION_OPS for node in model.graph.node):
        return []
    graph = onnx.shape_inference.infer_shapes(model).graph
    versions = {entry.domain: entry.version for entry in model.opset_import}
    values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    dtypes = {name: value.type.tensor_type.elem_type for name, value in values.items()}
    shapes = {
        name: tuple(axis.dim_value if axis.HasField("dim_value") else -1 for axis in value.type.tensor_type.shape.dim)
        for name, value in values.items()
    }
    for tensor in graph.initializer:
        dtypes[tensor.name], shapes[tensor.name] = tensor.data_type, tuple(tensor.dims)
    return [
        node_features(node, versions.get(node.domain, 0), dtypes, shapes)
        for node in graph.node
        if node.op_type in ATTENTION_OPS
    ]


def node_features(
    node: "onnx.NodeProto", opset: int, dtypes: "Mapping[str, int]", shapes: "Mapping[str, tuple[int, ...]]"
) -> FeatureRecord:
    """Return the features of one node.

    Args:
        node: an operator of `ATTENTION_OPS`; of any other one, operator and dtype alone are told.
        opset: version of its domain.
        dtypes: ONNX element types of its values, by name; 0 or none where it is not known.
        shapes: shapes of its values, by name; an axis without a fixed size is -1.
    """
    import onnx

    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    inputs = [*node.input, *[""] * 8]
    outputs = [*node.output, *[""] * 4]
    name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
    first = next((each for each in node.input if dtypes.get(each)), "")
    dtype = _dtype_name(dtypes[first]) if first else ""
    if node.op_type not in ATTENTION_OPS:
        return FeatureRecord(op=name, opset=opset, dtype=dtype)
    plain = node.op_type == "Attention"
    query, key, value = (shapes.get(each, ()) for each in inputs[:3])
    query_heads, key_heads = _head_counts(query, key, attributes)
    mask = inputs[3] if plain else ""
    cache = [inputs[place] for place in _CACHE.get(node.op_type, ())]
    kept = outputs[1:3] if plain else outputs[1:2] if node.op_type == "LinearAttention" else []
    windows = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    precision = attributes.get("softmax_precision", 0)
    return FeatureRecord(
        op=name,
        opset=opset,
        dtype=dtype,
        layout={3: "3-D", 4: "4-D"}.get(len(query), ""),
        heads=_heads(query_heads, key_heads),
        mask="none" if not mask else "bool" if dtypes.get(mask) == onnx.TensorProto.BOOL else "additive",
        mask_rank=len(shapes.get(mask, ())),
        mask_broadcast=_broadcast(shapes.get(mask, ()), query, query_heads, _total(key, shapes, inputs)),
        causal=bool(attributes.get("is_causal", 0)),
        window=any(size >= 0 for size in windows),
        past=any(cache),
        present=any(kept),
        padded_kv=bool(plain and inputs[6]),
        softcap=bool(attributes.get("softcap", 0.0)),
        scale="scale" in attributes,
        value_size=_head_size(value, key_heads) != _head_size(key, key_heads),
        qk_output=int(attributes.get("qk_matmul_output_mode", 0)) if plain and outputs[3] else None,
        softmax_precision=_dtype_name(precision) if precision else "",
    )


def _dtype_name(element: int) -> str:
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(element).name)


def _head_counts(query: "tuple[int, ...]", key: "tuple[int, ...]", attributes: "Mapping[str, Any]") -> tuple[int, int]:
    """Return how many query heads and key/value heads there are: 4-D inputs show it, others need the attributes."""
    if len(query) == 4 and len(key) == 4:
        return query[1], key[1]
    return int(attributes.get("q_num_heads", 0)), int(attributes.get("kv_num_heads", 0))


def _heads(query_heads: int, key_heads: int) -> "Heads":
    if query_heads == key_heads:
        return "equal"
    return "single" if key_heads == 1 else "grouped"


def _head_size(shape: "tuple[int, ...]", heads: int) -> int:
    """Return the size of a head: (batch, heads, length, size), or (batch, length, heads x size)."""
    if len(shape) == 4:
        return shape[3]
    return shape[2] // heads if len(shape) == 3 and heads > 0 else 0


def _total(key: "tuple[int, ...]", shapes: "Mapping[str, tuple[int, ...]]", inputs: "Sequence[str]") -> int:
    """Return how many keys there are, cached ones included; 0 where a size is not fixed."""
    past = shapes.get(inputs[4], ())
    lengths = [key[2] if len(key) == 4 else key[1] if len(key) == 3 else -1, past[2] if len(past) == 4 else 0]
    return sum(lengths) if min(lengths) >= 0 else 0


def _broadcast(mask: "tuple[int, ...]", query: "tuple[int, ...]", heads: int, keys: int) -> list[str]:
    """Return the axes along which a mask is repeated: it has size 1 there, or no such axis, and the scores have more.

    A mask shorter than the keys is not repeated but padded.
    """
    if not mask or not query:
        return []
    queries = query[2] if len(query) == 4 else query[1]
    full = dict(zip(("batch", "heads", "queries", "keys"), (query[0], heads, queries, keys), strict=True))
    has = dict(zip(("batch", "heads", "queries", "keys"), (*[1] * (4 - len(mask)), *mask), strict=True))
    return [axis for axis, size in full.items() if has[axis] == 1 and size not in (0, 1)]
