"""What each form is offered at. Data only: a command line can check a request without loading onnx."""

from typing import Literal

from crosshead.export.artifact import Form, FormError

Exporter = Literal["dynamo", "torchscript"]
"""Which of torch's exporters makes the graph; the second is deprecated there."""

EXPORTER_FORMS: dict[Exporter, tuple[Form, ...]] = {
    "dynamo": ("standard", "decomposed"),
    # It writes attention out: there is no Attention operator to lower.
    "torchscript": ("decomposed",),
}
"""The forms that each exporter's graph can be lowered to."""

FORM_OPSETS: dict[Form, range] = {
    # Attention entered ai.onnx at 23.
    "standard": range(23, 26),
    # LayerNormalization entered at 17. Gelu, RMSNormalization and RotaryEmbedding are written out where missing.
    "decomposed": range(17, 26),
}
"""The opsets of ai.onnx that a form can be lowered to."""

DEFAULT_OPSETS: dict[Form, int] = {
    # The first that has the op. ONNX Runtime 1.32 has kernels for Attention 23 and 24, and runs 25 by its body, slower.
    "standard": 23,
    # Attention is the same nodes at each opset, so what counts is reach: the translations of the dynamo exporter are
    # themselves written in 18. Below it axes of reductions become attributes, above it Gelu is one node again.
    "decomposed": 18,
}
"""The opset of a form when none is asked for."""


def check_form(form: str, opset: int, exporter: Exporter = "dynamo") -> None:
    """Refuse a form that does not exist, or an opset or exporter that it is not offered with.

    Raises:
        FormError: in one line, what is offered and what came.
    """
    offered: range | None = {str(name): opsets for name, opsets in FORM_OPSETS.items()}.get(form)
    if offered is None:
        raise FormError(f"unknown form {form!r}: expected one of {', '.join(FORM_OPSETS)}")
    if opset not in offered:
        raise FormError(f"form {form!r} is offered at opset {offered[0]} to {offered[-1]}, got opset {opset}")
    if form not in EXPORTER_FORMS[exporter]:
        raise FormError(
            f"form {form!r} is made of the Attention operator, which the {exporter} exporter does not write: "
            f"ask for --form {EXPORTER_FORMS[exporter][0]}, or --exporter dynamo"
        )
