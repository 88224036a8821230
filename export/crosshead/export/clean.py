"""Clear a graph of everything that tells where and by whom it was made, so that equal sources give equal bytes."""

from typing import Any

import onnx


def clean(model: onnx.ModelProto) -> None:
    """Clear every `doc_string` and `metadata_props`, in place, in whatever the model holds.

    Exporters leave stack traces with local paths in them: on the model, graphs and subgraphs, functions, nodes, values,
    tensors and attributes. What a graph computes, its names, and its producer's name and version stay.
    """
    _clear(model)


def _clear(message: Any) -> None:
    """Walk one protobuf message by reflection, so that no kind of part is forgotten."""
    for field, value in message.ListFields():
        if field.name in ("doc_string", "metadata_props"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:  # a single message, or a list of them
                _clear(part)
