"""Inputs for a bare .onnx: sizes for its symbolic axes, arrays from an .npz, and the rest drawn. Free of torch."""

from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from crosshead.export._graph_file import nodes_of
from crosshead.export._records import floating_dtype
from crosshead.export.artifact import Arrays, SourceError, TensorSpec
from crosshead.export.case import Shape

# Nodes that hand whole numbers on as they are.
_PASSING = {"Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}

_Range = tuple[int, int]


def resolve_shapes(
    file: str, specs: Sequence[TensorSpec], given: Mapping[str, NDArray[np.generic]], wanted: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Return the shape of every input, from the arrays given and the shapes asked for.

    Raises:
        SourceError: a shape that does not fit, or an axis that has no size yet; the message names it and the option.
    """
    known = ", ".join(spec.name for spec in specs)
    by_name = {spec.name: spec for spec in specs}
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in {**wanted, **{name: array.shape for name, array in given.items()}}.items():
        if name not in by_name:
            raise SourceError(f"{file} has no input {name!r}; inputs: {known}")
        spec = by_name[name]
        expected = f"({', '.join(map(str, spec.shape))})"
        if len(shape) != len(spec.shape):
            raise SourceError(f"input {name!r}: expected shape {expected}, got {tuple(shape)}")
        for axis, (want, size) in enumerate(zip(spec.shape, shape, strict=True)):
            bound, where = (want, "") if isinstance(want, int) else sizes.setdefault(want, (size, name))
            if bound != size:
                told = f"fixed at {bound}" if isinstance(want, int) else f"{want!r}, which is {bound} in {where!r}"
                raise SourceError(
                    f"input {name!r}: expected shape {expected}, got {tuple(shape)}; axis {axis} is {told}"
                )
    shapes: dict[str, Shape] = {}
    for spec in specs:
        unknown = [str(want) for want in spec.shape if not isinstance(want, int) and want not in sizes]
        if unknown:
            pattern = "x".join(f"<{want}>" if want in unknown else str(_size(want, sizes)) for want in spec.shape)
            raise SourceError(
                f"input {spec.name!r} of {file} leaves {', '.join(dict.fromkeys(unknown))} open; "
                f"give its sizes with --shape {spec.name}={pattern}"
            )
        shapes[spec.name] = tuple(_size(want, sizes) for want in spec.shape)
    return shapes


def _size(want: int | str, sizes: Mapping[str, tuple[int, str]]) -> int:
    return want if isinstance(want, int) else sizes[want][0]


def draw_inputs(
    file: str, specs: Sequence[TensorSpec], shapes: Mapping[str, Shape], ranges: Mapping[str, _Range], seed: int
) -> Arrays:
    """Draw inputs: standard normal numbers, fair booleans, whole numbers from the table they index.

    Args:
        file: for the message.
        specs: the inputs to draw.
        shapes: of each.
        ranges: lowest and highest allowed value of whole-number inputs, by name.
        seed: each input has a stream of its own.

    Raises:
        SourceError: a whole-number input whose range nothing tells, or text.
    """
    inputs: Arrays = {}
    for stream, spec in enumerate(specs):
        generator, shape, dtype = np.random.default_rng((seed, stream)), shapes[spec.name], np.dtype(spec.dtype)
        if floating_dtype(dtype):
            inputs[spec.name] = generator.standard_normal(shape).astype(dtype)
        elif dtype.kind == "b":
            inputs[spec.name] = generator.random(shape) < 0.5
        elif dtype.kind in "iu" and spec.name in ranges:
            low, high = ranges[spec.name]
            inputs[spec.name] = generator.integers(low, high, shape, dtype=dtype, endpoint=True)
        else:
            raise SourceError(
                f"input {spec.name!r} of {file} holds {spec.dtype}, and no table that it indexes tells its range; "
                "give it with --inputs file.npz"
            )
    return inputs


def index_ranges(model: onnx.ModelProto) -> dict[str, _Range]:
    """Return the range of each whole-number input that does nothing but index tables of a known size.

    An input is followed through nodes that hand it on; whatever else reads it speaks against a guess.
    """
    sizes = _known_shapes(model)
    opaque = {name for node in nodes_of(model.graph) for name in _captured(node)}
    ranges: dict[str, _Range] = {}
    for value in model.graph.input:
        limits: list[int] = []
        if value.name not in opaque and _follow(model.graph, value.name, sizes, limits) and limits:
            ranges[value.name] = (0, min(limits) - 1)
    return ranges


def _follow(graph: onnx.GraphProto, start: str, shapes: Mapping[str, Sequence[int | None]], limits: list[int]) -> bool:
    """Collect the sizes of the tables that `start` indexes; False where something else depends on its values."""
    names, seen = [start], {start}
    while names:
        name = names.pop()
        if any(output.name == name for output in graph.output):
            return False
        for node in graph.node:
            for position, read in enumerate(node.input):
                if read != name:
                    continue
                if node.op_type == "Shape":
                    continue
                table = _table(node, position)
                if table is not None:
                    source, axis = table
                    size = _axis_size(shapes.get(node.input[source]), axis)
                    if not size:
                        return False
                    limits.append(size)
                elif node.op_type in _PASSING and position == 0:
                    names += [output for output in node.output if output not in seen]
                    seen.update(node.output)
                else:
                    return False
    return True


def _table(node: onnx.NodeProto, position: int) -> tuple[int, int] | None:
    """Return which input of `node` the input at `position` indexes, and along which axis."""
    if node.op_type == "Gather" and position == 1:
        return 0, next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    if node.op_type == "EmbedLayerNormalization" and position in (0, 1):
        return (2 if position == 0 else 4), 0  # input_ids index word embeddings, segment_ids segment embeddings
    return None


def _axis_size(shape: Sequence[int | None] | None, axis: int) -> int | None:
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _known_shapes(model: onnx.ModelProto) -> dict[str, Sequence[int | None]]:
    """Return the sizes of initializers, constants and inferred values; None for an axis without a fixed size."""
    shapes: dict[str, Sequence[int | None]] = {each.name: list(each.dims) for each in model.graph.initializer}
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                shapes[node.output[0]] = numpy_helper.to_array(attribute.t).shape
    for value in model.graph.value_info:
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes.setdefault(value.name, [dim.dim_value if dim.HasField("dim_value") else None for dim in dims])
    return shapes


def _captured(node: onnx.NodeProto) -> set[str]:
    """Return the names that the graphs inside a node read."""
    inner = [graph for each in node.attribute for graph in (*([each.g] if each.HasField("g") else []), *each.graphs)]
    return {name for graph in inner for each in nodes_of(graph) for name in each.input}
