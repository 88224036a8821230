"""The backends that are built in: one explicit table. A worker imports the file of its own backend alone."""

import difflib
import functools
import importlib
from typing import TYPE_CHECKING

from crosshead.runtimes.base import Runtime
from crosshead.runtimes.errors import UnknownBackendError

if TYPE_CHECKING:
    RUNTIMES: tuple[Runtime, ...]
    """In the order in which they are listed."""

_CLASSES = {
    "torch-eager": "torch_eager.TorchEager",
    "torch-compile": "torch_compile.TorchCompile",
    "onnx-reference": "onnx_reference.OnnxReference",
    "ort-cpu": "ort.OrtCpu",
    "ort-cuda": "ort_cuda.OrtCuda",
    "fake": "fake.Fake",
}

RESERVED = (
    "endpoint",
    "executorch",
    "iree",
    "openvino",
    "openvino-bf16",
    "ort-node",
    "ort-openvino",
    "ort-tensorrt",
    "ort-web",
    "ort-webgpu",
    "torch-aot",
    "tract",
)
"""Names that later versions give to backends of their own; nobody else's backend should take them."""


def get_runtime(name: str) -> Runtime:
    """Return the backend of that name.

    Raises:
        UnknownBackendError: there is none; the message says whether the name is reserved, or which one is close.
    """
    if name in _CLASSES:
        return _made(name)
    known = list(_CLASSES)
    if name in RESERVED:
        raise UnknownBackendError(
            f"backend {name!r} is reserved for a later version of crosshead; this one has: {', '.join(known)}"
        )
    close = difflib.get_close_matches(name, [*known, *RESERVED], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UnknownBackendError(f"there is no backend {name!r}{hint} (known: {', '.join(known)})")


@functools.cache
def _made(name: str) -> Runtime:
    file, _, cls = _CLASSES[name].partition(".")
    runtime: Runtime = getattr(importlib.import_module(f"crosshead.runtimes.{file}"), cls)()
    return runtime


def __getattr__(name: str) -> object:
    if name != "RUNTIMES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(map(_made, _CLASSES))
