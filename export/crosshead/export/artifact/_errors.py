"""Errors of the export room, one class a stage under one root.

ExportError
├── SourceError    the source cannot be found, imported or called, or gives something unusable
├── CaptureError   the exporter refused the module; the message carries the innermost cause
├── FormError      a form, opset or precision that is not offered, or a graph that cannot take it
└── ArtifactError  an artifact is missing, truncated, changed, or of an unknown version

Each message says what was expected, what came and what to do.
"""


class ExportError(Exception):
    """Root of the errors raised by `crosshead.export`."""


class SourceError(ExportError):
    """The source cannot be found, imported or called, or what it gives cannot be used."""


class CaptureError(ExportError):
    """The exporter refused the module."""


class FormError(ExportError):
    """A form, opset or precision that is not offered, or that this graph cannot take."""


class ArtifactError(ExportError):
    """An artifact is missing, truncated, changed since it was written, or of an unknown version."""
