"""What each form is offered at. Data only: a command line can check a request without loading onnx."""

from crosshead.export.artifact import Form, FormError

FORM_OPSETS: dict[Form, range] = {
    # Attention entered ai.onnx at 23; 25 is the last opset that released runtimes read.
    "standard": range(23, 26),
    # LayerNormalization entered at 17, and rotary caches, Gelu and RMSNormalization are written out below 23.
    "decomposed": range(17, 26),
}
"""The opsets of ai.onnx that a form can be lowered to."""

DEFAULT_OPSETS: dict[Form, int] = {
    # The first opset that has the op; ONNX Runtime 1.32 has kernels for Attention 23 and 24, and runs 25 by its body.
    "standard": 23,
    # The exporter's own default, and old enough for every runtime in use; nothing above it makes this form faster.
    "decomposed": 18,
}
"""The opset of a form when none is asked for."""


def check_form(form: str, opset: int) -> None:
    """Refuse a form that does not exist, or an opset that it is not offered at.

    Raises:
        FormError: in one line, what is offered and what came.
    """
    offered: range | None = {str(name): opsets for name, opsets in FORM_OPSETS.items()}.get(form)
    if offered is None:
        raise FormError(f"unknown form {form!r}: expected one of {', '.join(FORM_OPSETS)}")
    if opset not in offered:
        raise FormError(f"form {form!r} is offered at opset {offered[0]} to {offered[-1]}, got opset {opset}")
