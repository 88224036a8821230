"""The one way from the canonical graph to a form: copy, rewrite, take to the opset, check."""

from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass, InlinePass

from crosshead.export.artifact import Form, FormError
from crosshead.export.forms._attention import attention_nodes
from crosshead.export.forms._decomposed import to_decomposed
from crosshead.export.forms._emitter import Emitter
from crosshead.export.forms._offer import check_form
from crosshead.export.forms._opset import convert
from crosshead.export.forms._shapes import infer_missing
from crosshead.export.forms._standard import to_standard
from crosshead.export.forms._unused import remove_unused

CANONICAL_OPSET = 23
"""The opset of the canonical graph: the first that has Attention, RMSNormalization and RotaryEmbedding."""

_REWRITES: dict[Form, Callable[[ir.Model, Emitter], None]] = {"standard": to_standard, "decomposed": to_decomposed}


def lower(canonical: ir.Model, form: Form, opset: int) -> ir.Model:
    """Lower a canonical model to a form at an opset of ai.onnx.

    The argument is never changed; weights are shared with it, not copied. Inputs and outputs keep their names, order,
    types and symbolic shapes. The same model gives the same graph, names included. What the exporter itself left
    decomposed (an explicit softmax, attention whose weights are an output) stays as it is in both forms.

    Args:
        canonical: the dynamo exporter's graph at opset 23, attention as the op of ai.onnx.
        form: `standard` or `decomposed`.
        opset: one of `FORM_OPSETS[form]`; the result is of exactly this opset.

    Raises:
        FormError: a form or an opset that is not offered, a model that is not at opset 23, or an operator that cannot
            go to the opset asked, by name.
    """
    check_form(form, opset)
    given = canonical.opset_imports.get("")
    if given != CANONICAL_OPSET:
        raise FormError(f"lowering starts from a graph of opset {CANONICAL_OPSET}, got one of opset {given}")
    model = canonical.clone()
    if model.functions:
        InlinePass()(model)
        model.functions.clear()
    infer_missing(model)
    emit = Emitter(model.graph)
    _REWRITES[form](model, emit)
    remove_unused(model)
    infer_missing(model)
    convert(model, emit, opset)
    remove_unused(model)
    infer_missing(model)
    _check(model, canonical, form, opset)
    return model


def bring_up(model: ir.Model) -> None:
    """Take a graph of an older opset to that of the canonical graph, in place, keeping what it computes.

    Raises:
        FormError: an operator that cannot go there, by name.
    """
    infer_missing(model)
    convert(model, Emitter(model.graph), CANONICAL_OPSET)
    infer_missing(model)


def _check(model: ir.Model, canonical: ir.Model, form: Form, opset: int) -> None:
    """What holds after every lowering; a breach is a fault of the lowering, said in one line."""
    if model.opset_imports[""] != opset or model.functions:
        raise FormError(f"the {form} form is not a plain graph of opset {opset}")
    if form == "decomposed" and attention_nodes(model):
        raise FormError("the decomposed form still holds an Attention op")
    for side, before, after in (
        ("inputs", canonical.graph.inputs, model.graph.inputs),
        ("outputs", canonical.graph.outputs, model.graph.outputs),
    ):
        if _signature(before) != _signature(after):
            raise FormError(f"the {form} form changed the {side}: {_signature(before)} became {_signature(after)}")
    try:
        CheckerPass(full_check=True)(model)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split())
        raise FormError(f"the {form} form at opset {opset} does not pass onnx.checker: {reason}") from error


def _signature(values: Sequence[ir.Value]) -> list[tuple[str | None, str, str]]:
    return [(value.name, str(value.type), str(value.shape)) for value in values]
