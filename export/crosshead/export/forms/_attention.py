"""One node of the Attention op of ai.onnx, read into the field's own words."""

from dataclasses import dataclass

import onnx_ir as ir

from crosshead.export.artifact import FormError
from crosshead.export.forms._shapes import dim, rank, static_dim


@dataclass(frozen=True)
class AttentionNode:
    """An Attention node of opset 23 and its operands.

    Shapes, with B batch, H heads, G key/value heads, L queries, S new keys, P past keys, D and E head sizes:
    query (B, H, L, D) or (B, L, H*D); key (B, G, S, D) or (B, S, G*D); value (B, G, S, E) or (B, S, G*E);
    mask broadcasts to (B, H, L, P+S); past_key (B, G, P, D); past_value (B, G, P, E).
    Source: https://onnx.ai/onnx/operators/onnx__Attention.html
    """

    node: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    mask: ir.Value | None
    past_key: ir.Value | None
    past_value: ir.Value | None
    is_causal: bool
    scale: float | None
    softcap: float
    weights_mode: int
    softmax_precision: int | None

    @classmethod
    def read(cls, node: ir.Node) -> "AttentionNode":
        """Read a node.

        Raises:
            FormError: query, key and value are not all 3-D or all 4-D.
        """
        inputs = [*node.inputs, *[None] * (6 - len(node.inputs))]
        query, key, value = inputs[:3]
        if query is None or key is None or value is None or {rank(x) for x in (query, key, value)} not in ({3}, {4}):
            raise FormError(f"Attention node {node.name!r}: query, key and value must all be 3-D or all be 4-D")
        attributes = node.attributes
        return cls(
            node=node,
            query=query,
            key=key,
            value=value,
            mask=inputs[3],
            past_key=inputs[4],
            past_value=inputs[5],
            is_causal=bool(attributes.get_int("is_causal", 0)),
            scale=attributes.get_float("scale", None),
            softcap=attributes.get_float("softcap", 0.0),
            weights_mode=attributes.get_int("qk_matmul_output_mode", 0),
            softmax_precision=attributes.get_int("softmax_precision", None),
        )

    @property
    def is_3d(self) -> bool:
        """Whether heads lie in the last axis, with their number in attributes."""
        return rank(self.query) == 3

    @property
    def length_axis(self) -> int:
        """The axis of query, key and value that counts tokens."""
        return 1 if self.is_3d else 2

    @property
    def num_heads(self) -> int:
        """H."""
        return self._heads(self.query, "q_num_heads")

    @property
    def num_kv_heads(self) -> int:
        """G."""
        return self._heads(self.key, "kv_num_heads")

    @property
    def head_size(self) -> int:
        """D, the head size of query and key."""
        return self.head_size_of(self.query, self.num_heads)

    def head_size_of(self, value: ir.Value, heads: int) -> int:
        """The head size of one operand that has so many heads."""
        last = static_dim(value, -1)
        if last is None:
            raise FormError(f"Attention node {self.node.name!r}: the head size must be fixed, got {dim(value, -1)}")
        return last // heads if self.is_3d else last

    def output(self, index: int) -> ir.Value | None:
        """Output `index` (0 Y, 1 present_key, 2 present_value, 3 weights) where something uses it."""
        if index >= len(self.node.outputs):
            return None
        value = self.node.outputs[index]
        return value if value.uses() or value.is_graph_output() else None

    def _heads(self, value: ir.Value, attribute: str) -> int:
        heads: int | None = self.node.attributes.get_int(attribute, 0) if self.is_3d else static_dim(value, 1)
        if not heads:
            raise FormError(f"Attention node {self.node.name!r}: the number of heads must be fixed, got {heads}")
        return heads


def attention_nodes(model: ir.Model) -> list[ir.Node]:
    """Every Attention node of ai.onnx, in order, those of subgraphs included."""
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    return [node for node in nodes if node.op_type == "Attention" and node.domain == ""]
