"""The form `standard`: the Attention op of ai.onnx, arranged so that ONNX Runtime's kernels take it.

What those kernels refuse or change is written down with a test for each in tests/export/forms/test_kernels.py:
masks of which an axis is broadcast, a past without present outputs, a scale of 0 or below, rows of the lowest number.
"""

import onnx_ir as ir

from crosshead.export.artifact import FormError
from crosshead.export.forms import _masks
from crosshead.export.forms._attention import AttentionNode, attention_nodes
from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._layout import to_3d
from crosshead.export.forms._rotary import expand_caches


def to_standard(model: ir.Model, emit: Emitter) -> None:
    """Lower a canonical model at opset 23 in place."""
    expand_caches(model, emit)
    for node in attention_nodes(model):
        for merged in to_3d(AttentionNode.read(node)):
            reshape = merged.producer()
            assert reshape is not None
            emit.before(reshape).substitute(merged, node.outputs[0])
        attention = AttentionNode.read(node)
        _complete_mask(emit.before(node), attention)
        _fold_scale(emit, attention)
        _name_present(emit, attention)


def _complete_mask(emit: Emitter, attention: AttentionNode) -> None:
    mask = attention.mask
    if mask is None:
        return
    if mask.dtype is not None and mask.dtype.is_floating_point():
        mask = _masks.above_lowest(emit, mask)
    attention.node.replace_input_with(3, _masks.expanded(emit, attention, mask))


def _fold_scale(emit: Emitter, attention: AttentionNode) -> None:
    """Move a scale of 0 or below into the query: the op takes its square root, the kernels refuse it."""
    if attention.scale is None or attention.scale > 0:
        return
    dtype = attention.query.dtype
    if dtype is None:
        raise FormError(f"Attention node {attention.node.name!r}: the type of the query is not known")
    scale = emit.constant(attention.scale, dtype, "scale")
    attention.node.replace_input_with(0, emit.op("Mul", attention.query, scale, label="query_scaled", dtype=dtype))
    attention.node.attributes.add(ir.AttrFloat32("scale", 1.0))


def _name_present(emit: Emitter, attention: AttentionNode) -> None:
    """Name the present outputs of a node that takes a past; the kernels write the joined keys and values there."""
    node = attention.node
    if attention.past_key is None:
        return
    if len(node.outputs) < 3:
        node.resize_outputs(3)
    for value, label, operand in zip(
        node.outputs[1:3], ("key", "value"), (attention.key, attention.value), strict=True
    ):
        if not value.name:
            value.name = emit.fresh(f"{node.name}_present_{label}")
            value.type = operand.type
