"""Rotary caches: one for each batch member, as ONNX Runtime's kernel wants them."""

import onnx_ir as ir

from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._shapes import dim, proved_equal


def expand_caches(model: ir.Model, emit: Emitter) -> None:
    """Expand the (1, L, D/2) caches of every RotaryEmbedding that has no position_ids to (B, L, D/2), in place.

    The op's body broadcasts a batch of 1; ONNX Runtime's kernel refuses it at batch 2 and more.
    """
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "RotaryEmbedding" or node.domain != "" or node.inputs[3:4] not in ((), (None,)):
            continue
        value = node.inputs[0]
        assert value is not None
        emit.before(node)
        for index, label in ((1, "cos"), (2, "sin")):
            cache = node.inputs[index]
            if cache is None or proved_equal(dim(cache, 0), dim(value, 0)):
                continue
            target = emit.concat_lengths(emit.length(value, 0), emit.ints(1, 1))
            # (1, L, D/2) -> (B, L, D/2)
            node.replace_input_with(index, emit.op("Expand", cache, target, label=label, dtype=cache.dtype))
