"""The two layouts of multi-head operands, and the proof that a Reshape and a Transpose only pass between them.

    split   (B, L, H*D) ─Reshape─► (B, L, H, D) ─Transpose(0, 2, 1, 3)─► (B, H, L, D)
    merge   (B, H, L, D) ─Transpose(0, 2, 1, 3)─► (B, L, H, D) ─Reshape─► (B, L, H*D)

A Reshape keeps the row-major order, so it is a split or a merge exactly when B and L stay and H and D are fixed with
H*D as the other last axis. The exporter's symbols prove that: equal names are equal sizes at every binding.
"""

from dataclasses import dataclass

import onnx_ir as ir

from crosshead.export.forms._attention import AttentionNode
from crosshead.export.forms._shapes import dim, proved_equal, rank, static_dim

_SWAP_HEADS_AND_LENGTH = (0, 2, 1, 3)


@dataclass(frozen=True)
class Split:
    """What lies before a head split: the packed value (B, L, H*D), and H."""

    packed: ir.Value
    heads: int


def find_split(value: ir.Value) -> Split | None:
    """The head split that made `value` (B, H, L, D), where it is proved to be one."""
    transpose = _producer(value, "Transpose")
    if transpose is None or transpose.inputs[0] is None or not _swaps(transpose):
        return None
    reshape = _producer(transpose.inputs[0], "Reshape")
    if reshape is None or reshape.inputs[0] is None or not _packs(reshape.inputs[0], reshape.outputs[0]):
        return None
    heads = static_dim(reshape.outputs[0], 2)
    return None if heads is None else Split(reshape.inputs[0], heads)


def find_merges(value: ir.Value) -> list[ir.Value]:
    """The packed values (B, L, H*D) that head merges make of `value` (B, H, L, D).

    Empty unless every use of `value` is proved to be a merge.
    """
    merged: list[ir.Value] = []
    for transpose in value.consumers():
        if transpose.op_type != "Transpose" or transpose.domain != "" or not _swaps(transpose):
            return []
        split = transpose.outputs[0]
        for reshape in split.consumers():
            if reshape.op_type != "Reshape" or reshape.domain != "" or reshape.inputs[0] is not split:
                return []
            if not _packs(reshape.outputs[0], split):
                return []
            merged.append(reshape.outputs[0])
        if split.is_graph_output():
            return []
    return [] if value.is_graph_output() else merged


def to_3d(attention: AttentionNode) -> list[ir.Value]:
    """Feed a 4-D Attention node the packed operands, in place, where all of it is proved.

    Returns:
        The values that its output now equals, for the caller to substitute; empty where nothing was changed.
    """
    operands = (attention.query, attention.key, attention.value)
    splits = [find_split(operand) for operand in operands]
    merged = find_merges(attention.node.outputs[0])
    query, key, value = splits
    if attention.is_3d or query is None or key is None or value is None or not merged or key.heads != value.heads:
        return []
    node = attention.node
    for index, split in enumerate((query, key, value)):
        node.replace_input_with(index, split.packed)
    node.attributes.add(ir.AttrInt64("q_num_heads", query.heads))
    node.attributes.add(ir.AttrInt64("kv_num_heads", key.heads))
    node.outputs[0].shape = merged[0].shape
    return merged


def _producer(value: ir.Value, op_type: str) -> ir.Node | None:
    node = value.producer()
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _swaps(transpose: ir.Node) -> bool:
    perm = transpose.attributes.get("perm")
    return perm is not None and tuple(perm.as_ints()) == _SWAP_HEADS_AND_LENGTH


def _packs(packed: ir.Value, split: ir.Value) -> bool:
    """Whether (B, L, H*D) and (B, L, H, D) are proved to be the shapes of these two."""
    heads, head_size = static_dim(split, 2), static_dim(split, 3)
    return (
        rank(packed) == 3
        and rank(split) == 4
        and heads is not None
        and head_size is not None
        and static_dim(packed, 2) == heads * head_size
        and all(proved_equal(dim(packed, axis), dim(split, axis)) for axis in (0, 1))
    )
