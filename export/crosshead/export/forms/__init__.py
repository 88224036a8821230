"""Forms: lowerings of one canonical graph, each a small rewrite with its own checks.

    canonical ──► standard      the Attention op of ai.onnx, in the layout and with the masks that kernels take
              └─► decomposed    MatMul, Softmax, MatMul, for any runtime from opset 17 on

What is offered (`FORM_OPSETS`, `check_form`) is data and imports nothing; `lower` brings in onnx and onnx_ir when it is
first asked for.
"""

from typing import TYPE_CHECKING

from crosshead.export.forms._offer import DEFAULT_OPSETS, EXPORTER_FORMS, FORM_OPSETS, Exporter, check_form

if TYPE_CHECKING:
    from crosshead.export.forms._lower import bring_up, lower

__all__ = ["DEFAULT_OPSETS", "EXPORTER_FORMS", "FORM_OPSETS", "Exporter", "bring_up", "check_form", "lower"]


def __getattr__(name: str) -> object:
    if name in ("bring_up", "lower"):
        from crosshead.export.forms import _lower

        return getattr(_lower, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
