"""Facts about shapes: what is static, what is proved equal, and filling in what an exporter left out."""

import operator
from collections.abc import Callable

import onnx_ir as ir

Sized = int | ir.SymbolicDim
Dim = Sized | None


def dim(value: ir.Value, axis: int) -> Dim:
    """The size of one axis: an int, a symbol, or None where the shape is not known."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    return value.shape[axis]


def static_dim(value: ir.Value, axis: int) -> int | None:
    """The size of one axis where it is fixed."""
    size = dim(value, axis)
    return size if isinstance(size, int) else None


def rank(value: ir.Value) -> int | None:
    """The number of axes, where known."""
    return None if value.shape is None else len(value.shape)


def proved_equal(left: Dim, right: Dim) -> bool:
    """Whether two sizes are equal at every binding of the symbols: `seq` and `seq`, `past + seq` and `seq + past`."""
    if isinstance(left, int) or isinstance(right, int):
        return left == right
    if left is None or right is None or left.value is None or right.value is None:
        return False
    return left.value == right.value or _computed(left, right, operator.sub) in (0, "0")


def added(left: Dim, right: Dim) -> Dim:
    """The sum of two sizes, None where it is not known."""
    return None if left is None or right is None else _computed(left, right, operator.add)


def _computed(left: Sized, right: Sized, operation: Callable[[Sized, Sized], Sized]) -> Dim:
    try:
        return operation(left, right)
    except ValueError:  # a name that is no expression
        return None


def infer_missing(model: ir.Model) -> None:
    """Give a type and shape to each value that has none, leaving every existing one as it is.

    Exporters leave out some (the caches of a fused RotaryEmbedding), and new nodes start without. onnx's own
    inference works on a copy, since it renames symbols that it merges; sizes that it only gives a number (`unk__3`)
    stay unknown.
    """
    from onnx_ir.passes.common.shape_inference import infer_shapes

    inferred = infer_shapes(model.clone(), strict_mode=False)
    for graph, inferred_graph in zip(model.graphs(), inferred.graphs(), strict=True):
        known = ir.convenience.create_value_mapping(inferred_graph)
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if value.type is None:
                value.type = known[name].type
            shape = known[name].shape
            if value.shape is None and shape is not None:
                value.shape = ir.Shape([None if str(size).startswith("unk__") else size for size in shape])
