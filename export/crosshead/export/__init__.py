"""From a module to an artifact: load a source, make its cases, export it in several forms, prove each in float64.

Importing this package pulls in neither torch nor onnx; each name is imported where it is first used. What travels to
machines without torch is `crosshead.export.artifact`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.export.artifact import (
        Artifact,
        ArtifactError,
        CaptureError,
        ExportError,
        FormError,
        SourceError,
    )
    from crosshead.export.build import export_source
    from crosshead.export.case import Case, cases_for
    from crosshead.export.error import relative_l2, relative_l2_row
    from crosshead.export.forms import DEFAULT_OPSETS, FORM_OPSETS, check_form, lower
    from crosshead.export.onnx_file import against_onnx_file, export_onnx_file, onnx_cases, onnx_signature
    from crosshead.export.source import LoadedSource, load_source
    from crosshead.export.user_cases import with_given_cases

_HOMES = {
    "Artifact": "artifact",
    "ArtifactError": "artifact",
    "CaptureError": "artifact",
    "Case": "case",
    "DEFAULT_OPSETS": "forms",
    "ExportError": "artifact",
    "FORM_OPSETS": "forms",
    "FormError": "artifact",
    "LoadedSource": "source",
    "SourceError": "artifact",
    "against_onnx_file": "onnx_file",
    "cases_for": "case",
    "check_form": "forms",
    "export_onnx_file": "onnx_file",
    "export_source": "build",
    "load_source": "source",
    "lower": "forms",
    "onnx_cases": "onnx_file",
    "onnx_signature": "onnx_file",
    "relative_l2": "error",
    "relative_l2_row": "error",
    "with_given_cases": "user_cases",
}

__all__ = [
    "DEFAULT_OPSETS",
    "FORM_OPSETS",
    "Artifact",
    "ArtifactError",
    "CaptureError",
    "Case",
    "ExportError",
    "FormError",
    "LoadedSource",
    "SourceError",
    "against_onnx_file",
    "cases_for",
    "check_form",
    "export_onnx_file",
    "export_source",
    "load_source",
    "lower",
    "onnx_cases",
    "onnx_signature",
    "relative_l2",
    "relative_l2_row",
    "with_given_cases",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
