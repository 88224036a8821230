"""What a person should know about a graph or a case beyond its verdict."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from torch import nn

from crosshead.export._records import floating_dtype
from crosshead.export.artifact import ArtifactNotice
from crosshead.export.case import Case, keeps_nothing
from crosshead.export.source import LoadedSource

MASKS = ("attn_mask", "key_padding_mask")


def source_findings(loaded: LoadedSource, canonical: ir.Model, cases: Sequence[Case]) -> list[ArtifactNotice]:
    """Look at the canonical graph and the cases."""
    return [
        *upper_left_causal(canonical),
        *dropped_inputs(canonical),
        *fully_masked_rows(loaded, cases),
        *masks_like_booleans(loaded, cases),
    ]


def masks_like_booleans(loaded: LoadedSource, cases: Sequence[Case]) -> list[ArtifactNotice]:
    """Find floating masks of nothing but 0 and 1: added to the scores, as floating masks are, they hide nothing."""
    found: dict[str, list[str]] = {}
    for case in cases:
        for name, array in case.inputs.items():
            if loaded.roles.get(name) not in MASKS or not floating_dtype(array.dtype):
                continue
            values = array.astype(np.float32)
            if (values == 1).any() and ((values == 0) | (values == 1)).all():  # all 0 is a mask that hides nothing
                found.setdefault(name, []).append(case.name)
    return [
        ArtifactNotice(
            code="mask-looks-boolean",
            message=(
                f"mask {name!r} is {loaded.inputs[name].dtype.name} and holds only 0 and 1 ({', '.join(where)}): a "
                "floating mask is added to the scores, where 0 and 1 hide nothing; give booleans, or 0 and -inf"
            ),
            where=name,
        )
        for name, where in found.items()
    ]


def upper_left_causal(canonical: ir.Model) -> list[ArtifactNotice]:
    """Find causal attention whose queries and keys may differ in number and have no past to align them.

    There, query i sees keys 0 to i; with a cache in front of the keys, a new token would miss most of it
    (onnxruntime#29020).
    """
    notices = []
    for node in ir.traversal.RecursiveGraphIterator(canonical.graph):
        if node.op_type != "Attention" or node.domain not in ("", "ai.onnx"):
            continue
        attribute = node.attributes.get("is_causal")
        past = len(node.inputs) > 4 and node.inputs[4] is not None
        if attribute is None or not attribute.as_int() or past:
            continue
        query, key = (_length(value) for value in node.inputs[:2])
        if query is None or query != key:
            message = (
                f"causal attention over {_told(query)} queries and {_told(key)} keys is aligned upper-left: "
                "query i sees keys 0 to i, which is rarely meant for decoding with a cache"
            )
            notices.append(ArtifactNotice(code="upper-left-causal", message=message, where=str(node.name)))
    return notices


def _length(value: ir.Value | None) -> int | str | None:
    """Return the sequence length of a query or key: axis 1 of 3-D, axis 2 of 4-D."""
    if value is None or value.shape is None or value.shape.rank() not in (3, 4):
        return None
    dim = value.shape[value.shape.rank() - 2]
    return dim if isinstance(dim, int) else dim.value


def _told(length: int | str | None) -> str:
    return "an unknown number of" if length is None else str(length)


def dropped_inputs(canonical: ir.Model) -> list[ArtifactNotice]:
    """Find inputs that nothing in the graph reads; they stay in its signature and are bound by name."""
    read = {
        id(value)
        for node in ir.traversal.RecursiveGraphIterator(canonical.graph)
        for value in node.inputs
        if value is not None
    }
    returned = set(map(id, canonical.graph.outputs))
    return [
        ArtifactNotice(
            code="dropped-input",
            message=f"input {value.name!r} does not reach any output; it is kept in the graph's signature",
            where=str(value.name),
        )
        for value in canonical.graph.inputs
        if id(value) not in read | returned
    ]


def fully_masked_rows(loaded: LoadedSource, cases: Sequence[Case]) -> list[ArtifactNotice]:
    """Find masks that leave some query without any key: frameworks and kernels differ there."""
    blocked = blocks_where_true(loaded)
    found: dict[str, list[str]] = {}
    for case in cases:
        for name, array in case.inputs.items():
            if keeps_nothing(array, loaded.roles.get(name), true_is_blocked=blocked):
                found.setdefault(name, []).append(case.name)
    return [
        ArtifactNotice(
            code="fully-masked-row",
            message=f"mask {name!r} keeps no key in some row ({', '.join(where)}); runtimes differ there",
            where=name,
        )
        for name, where in found.items()
    ]


def blocks_where_true(loaded: LoadedSource) -> bool:
    """Whether a boolean attn_mask blocks where it is true, as in `nn.MultiheadAttention`."""
    return loaded.block is None and any(isinstance(part, nn.MultiheadAttention) for part in loaded.module.modules())


def missing_attention(form: str, ops: Mapping[str, int]) -> list[ArtifactNotice]:
    """Say when the standard form holds no Attention node: the source's attention is written out in other operators."""
    if form != "standard" or "ai.onnx::Attention" in ops:
        return []
    message = (
        "no Attention operator in this graph: the module writes its attention out in other operators, or has none; "
        "scaled_dot_product_attention would be exported as one"
    )
    return [ArtifactNotice(code="no-attention-op", message=message)]
