"""What changed in an operator between opset 17 and 23 beyond its types, and how a node is written at the older one.

One function for each operator whose meaning can be kept; it edits the node or puts others in its place. All of it is
read off https://onnx.ai/onnx/operators/ ("changes" of each operator). onnx.version_converter 1.23 has no adapter for
Split, Pad or ConstantOfShape, leaves Cast's `saturate`, does not see constants from inside a subgraph, and wants the
weights in one message of at most 2 GB, so this does without it.
"""

from collections.abc import Callable

import onnx_ir as ir

from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._shapes import rank


class Unconvertible(Exception):  # noqa: N818 - it says what the node is; `convert` makes a FormError of it
    """Why a node cannot be written at the older opset."""


Adapter = Callable[[Emitter, ir.Node], None]


def reduce_axes(emit: Emitter, node: ir.Node) -> None:
    """Below 18 the axes of a reduction are an attribute."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    without_axes = bool(node.attributes.get_int("noop_with_empty_axes", 0))
    node.attributes.pop("noop_with_empty_axes", None)
    if axes is None:
        if without_axes:
            replace(emit, node, emit.op("Identity", node.inputs[0], dtype=node.outputs[0].dtype))
        return
    constant = ir.convenience.get_const_tensor(axes)
    if constant is None:
        raise Unconvertible("its axes are computed by the graph")
    node.resize_inputs(1)
    if constant.size:
        node.attributes.add(ir.AttrInt64s("axes", [int(axis) for axis in constant.numpy()]))
    elif without_axes:
        replace(emit, node, emit.op("Identity", node.inputs[0], dtype=node.outputs[0].dtype))


def reduce_boolean(emit: Emitter, node: ir.Node) -> None:
    """Below 20 ReduceMax and ReduceMin take no booleans."""
    value = node.inputs[0]
    if value is None or value.dtype != ir.DataType.BOOL:
        return
    int32 = ir.DataType.INT32
    numbers = emit.op("Cast", value, label="as_int", dtype=int32, to=int32.value)
    attributes = list(node.attributes.values())
    reduced = emit.ops(node.op_type, numbers, *node.inputs[1:], labels=["reduced"], dtype=int32, attributes=attributes)[
        0
    ]
    boolean = ir.DataType.BOOL
    replace(emit, node, emit.op("Cast", reduced, label="as_bool", dtype=boolean, to=boolean.value))


def split_sizes(emit: Emitter, node: ir.Node) -> None:
    """Below 18 Split has no num_outputs, and without sizes it wants equal parts; from 18 on the last may be smaller."""
    parts = node.attributes.get_int("num_outputs", None)
    node.attributes.pop("num_outputs", None)
    value, int64 = node.inputs[0], ir.DataType.INT64
    if parts is None or value is None:
        return
    axes = rank(value)
    if axes is None:
        raise Unconvertible("the rank of its input is not known")
    length = emit.length(value, node.attributes.get_int("axis", 0) % axes)
    raised = emit.op("Add", length, emit.ints(parts - 1), label="raised", dtype=int64)
    part = emit.op("Div", raised, emit.ints(parts), label="part", dtype=int64)
    others = emit.op("Mul", part, emit.ints(parts - 1), label="others", dtype=int64)
    last = emit.op("Sub", length, others, label="last", dtype=int64)
    node.resize_inputs(2)
    node.replace_input_with(1, emit.concat_lengths(*[part] * (parts - 1), last))


def pad_axes(emit: Emitter, node: ir.Node) -> None:
    """Below 18 Pad has no axes: the pads are spread over all of them, 0 for those that were not named."""
    value, pads = node.inputs[:2]
    axes_input = node.inputs[3] if len(node.inputs) > 3 else None
    if axes_input is None or value is None or pads is None:
        return
    axes, constant = rank(value), ir.convenience.get_const_tensor(axes_input)
    if axes is None or constant is None:
        raise Unconvertible("its axes or the rank of its input are not known")
    named = [int(axis) % axes for axis in constant.numpy()]
    nothing = 2 * len(named)  # the place of the zero put behind the pads
    places = [
        named.index(axis) + side * len(named) if axis in named else nothing for side in (0, 1) for axis in range(axes)
    ]
    pads = emit.concat_lengths(pads, emit.ints(0))
    node.resize_inputs(3)
    node.replace_input_with(
        1, emit.op("Gather", pads, emit.ints(*places), label="pads", dtype=ir.DataType.INT64, axis=0)
    )


def no_wrapping(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """Pad has no mode `wrap` below 19."""
    if node.attributes.get_string("mode", "constant") == "wrap":
        raise Unconvertible("mode 'wrap' came with opset 19")


def no_extremes(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """Scatter operators have no reductions `max` and `min` below 18."""
    reduction = node.attributes.get_string("reduction", "none")
    if reduction in ("max", "min"):
        raise Unconvertible(f"reduction {reduction!r} came with opset 18")


def no_float8(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """`saturate` (below 19) and `round_mode` (below 24) of Cast speak of 8-bit floats, which types refuse there."""
    node.attributes.pop("saturate", None)
    node.attributes.pop("round_mode", None)


def unit_dilations(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """Pools without dilations: AveragePool below 19, LpPool below 18."""
    dilations = node.attributes.get("dilations")
    if dilations is not None and any(dilation != 1 for dilation in dilations.as_ints()):
        raise Unconvertible("its dilations are not 1")
    node.attributes.pop("dilations", None)


def grid_sample_modes(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """Below 20 GridSample is for images, and its modes have the older names."""
    value = node.inputs[0]
    if value is None or rank(value) != 4:
        raise Unconvertible("its input is not proved to be 4-D")
    mode = node.attributes.get_string("mode", "linear")
    older = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    node.attributes.add(ir.AttrString("mode", older))


def no_symmetric_pixels(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """Resize has no coordinate mode `half_pixel_symmetric` below 19."""
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel_symmetric":
        raise Unconvertible("coordinate mode 'half_pixel_symmetric' came with opset 19")


def no_transform(emit: Emitter, node: ir.Node) -> None:  # noqa: ARG001 - every adapter is called alike
    """The axis of DFT moved from an attribute to an input at 20, with another default."""
    raise Unconvertible("its axis is an input from opset 20 on and an attribute before")


def replace(emit: Emitter, node: ir.Node, value: ir.Value) -> None:
    """Put a value in the place of a node with one output."""
    emit.substitute(node.outputs[0], value)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


_NORMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
_REDUCTIONS = (*_NORMS, "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")

ADAPTERS: tuple[tuple[int, str, Adapter], ...] = (
    *((20, name, reduce_boolean) for name in ("ReduceMax", "ReduceMin")),
    *((18, name, reduce_axes) for name in _REDUCTIONS),
    (18, "Split", split_sizes),
    (18, "Pad", pad_axes),
    (19, "Pad", no_wrapping),
    (18, "ScatterElements", no_extremes),
    (18, "ScatterND", no_extremes),
    (24, "Cast", no_float8),
    (24, "CastLike", no_float8),
    (19, "AveragePool", unit_dilations),
    (18, "LpPool", unit_dilations),
    (20, "GridSample", grid_sample_modes),
    (19, "Resize", no_symmetric_pixels),
    (20, "DFT", no_transform),
)
"""Below this opset, this operator needs this adapter; in the order in which they are applied."""

REDEFINED = {"GroupNormalization": 21}
"""Operators that kept their name and signature but not their meaning: below this opset the body is written out."""
