"""Judge from per-node evidence which execution provider computed a graph. Pure logic; docs/method.md, "Placement".

A provider's name in a session's list proves nothing: it can be listed while every node stands on the CPU. So evidence
is taken a node at a time, weighed by the arithmetic of each, and anything but shape arithmetic that ran elsewhere is
named.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from crosshead.runtimes.base import Placement, ProviderShare
from crosshead.runtimes.errors import PlacementError

SMALL_ELEMENTS = 64
"""Tensors of whole numbers up to this size are shapes, axes and offsets."""

_SHAPE_READERS = {"Shape", "Size"}
_CONSTANTS = {"Constant", "ConstantOfShape"}
_COPIES = {"MemcpyFromHost", "MemcpyToHost"}
_ATTENTION = {"Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"}
_PRODUCTS = {"MatMul", "FusedMatMul", "MatMulInteger", "Gemm", "FusedGemm", "TransposeMatMul"}
ARITHMETIC = _ATTENTION | _PRODUCTS | {"Conv", "FusedConv", "Softmax", "LayerNormalization", "QAttention"}
"""Operators that are never shape arithmetic, whatever their sizes."""


class Tensor(msgspec.Struct, frozen=True):
    """Type and shape of one input or output of a node: `float` or `int64`, as ONNX names types."""

    type: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one node: who ran it, on what.

    Attributes:
        name: name of the node in the graph that was run (after the optimiser).
        op_type: its operator.
        provider: the execution provider that it was given to.
        inputs: those whose shapes are known; a profile leaves out packed constants.
        outputs: the same of the outputs.
    """

    name: str
    op_type: str
    provider: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


def flops(node: Node) -> float:
    """Estimate the arithmetic of a node: multiply-adds × 2 of products and attention, else elements.

    Products: `2·|Y|·K`. Attention core: `4·B·H·Sq·Sk·d`, which is `4·|Q|·Sk`. Convolution: `2·|Y|·|W|/Cout`.
    Causal masks are not taken off: this weighs nodes of one graph against each other.
    """
    if node.op_type in _COPIES | _CONSTANTS | _SHAPE_READERS or not node.outputs:
        return 0.0
    first = node.inputs[0] if node.inputs else None
    written = float(max(tensor.elements for tensor in node.outputs))
    if first is None or not first.shape:
        return written
    if node.op_type in _PRODUCTS:
        rows = node.outputs[0].shape[-2] if len(node.outputs[0].shape) > 1 else 1
        transposed = len(first.shape) > 1 and first.shape[-2] != rows and first.shape[-1] == rows
        return 2.0 * written * first.shape[-2 if transposed else -1]
    if node.op_type in _ATTENTION:
        return _attention_flops(node, first)
    if node.op_type in {"Conv", "FusedConv"} and len(node.inputs) > 1 and len(node.inputs[1].shape) > 2:
        weight = node.inputs[1]  # (Cout, Cin / groups, *kernel)
        return 2.0 * written * weight.elements / weight.shape[0]
    return written


def _attention_flops(node: Node, query: Tensor) -> float:
    if len(node.inputs) > 1 and len(node.inputs[1].shape) == 2 and len(query.shape) == 3:
        # com.microsoft.Attention with packed weights: query is (B, S, D), weights are (D, 3·D')
        length, projected = query.shape[-2], node.inputs[1].shape[-1]
        return 2.0 * query.elements * projected + 4.0 * query.shape[0] * length * length * projected / 3
    key = node.inputs[1] if len(node.inputs) > 1 and len(node.inputs[1].shape) > 2 else query
    total = max(  # a present key is longer by the past
        [key.shape[-2], *(tensor.shape[-2] for tensor in node.outputs[1:3] if len(tensor.shape) == 4)]
    )
    return 4.0 * query.elements * total


def is_shape_arithmetic(node: Node) -> bool:
    """Whether a node only reckons with shapes: such nodes stay on the CPU on purpose, where their results are needed.

    True of `Shape`, `Size` and constants; of nodes whose inputs and outputs are whole numbers or booleans of at most
    `SMALL_ELEMENTS` elements; and of nodes between single numbers (a scale worked out from a length). Nothing is known
    of a node without shapes, so it is not.
    """
    if node.op_type in _SHAPE_READERS | {"Constant"}:
        return True
    if node.op_type in ARITHMETIC or not node.outputs:
        return False
    tensors = (*node.inputs, *node.outputs)
    if all(tensor.elements == 1 for tensor in tensors):
        return True
    whole = all(tensor.type.startswith(("int", "uint", "bool")) for tensor in tensors)
    return whole and all(tensor.elements <= SMALL_ELEMENTS for tensor in tensors)


def judge(nodes: Sequence[Node], asked: str, proof: str, contradicted: Iterable[str] = ()) -> Placement:
    """Return who computed how much.

    Args:
        nodes: evidence, one entry a node and run; entries of one node are counted once and their arithmetic is added.
        asked: the provider that was asked for.
        proof: how it is known.
        contradicted: names of nodes that another witness puts elsewhere; they count as fallen back.
    """
    doubted = set(contradicted)
    seen: dict[str, set[tuple[str, str]]] = {}
    arithmetic: dict[str, float] = {}
    fallen_back: dict[str, None] = {}
    for node in nodes:
        seen.setdefault(node.provider, set()).add((node.op_type, node.name))
        arithmetic[node.provider] = arithmetic.get(node.provider, 0.0) + flops(node)
        elsewhere = node.provider != asked or node.name in doubted
        if elsewhere and node.op_type not in _COPIES and not is_shape_arithmetic(node):
            fallen_back[f"{node.op_type} {node.name}"] = None
    total = sum(arithmetic.values())
    count = sum(map(len, seen.values()))
    shares = {
        provider: ProviderShare(
            nodes=len(names), flops_share=arithmetic[provider] / total if total else len(names) / count
        )
        for provider, names in seen.items()
    }
    return Placement(providers=shares, fallen_back=tuple(fallen_back), proof=proof)


def enforce(placement: Placement, asked: str, *, allow_fallback: bool) -> None:
    """Raise unless the provider asked for did the work.

    Args:
        placement: who did what.
        asked: the provider asked for.
        allow_fallback: accept that others did a part; a provider that ran no node at all is refused all the same.

    Raises:
        PlacementError: names the provider, the nodes and their share of the arithmetic.
    """
    others = sorted(provider for provider in placement.providers if provider != asked)
    if asked not in placement.providers:
        raise PlacementError(f"no node ran on {asked}; all of them ran on {', '.join(others) or 'nothing'}")
    if placement.fallen_back and not allow_fallback:
        share = sum(placement.providers[other].flops_share for other in others)
        some = ", ".join(placement.fallen_back[:4]) + (", …" if len(placement.fallen_back) > 4 else "")
        raise PlacementError(
            f"{len(placement.fallen_back)} nodes besides shape arithmetic ({share:.1%} of the arithmetic) ran on "
            f"{', '.join(others) or 'another provider'} instead of {asked}: {some} "
            "(allow_fallback accepts that)"
        )
