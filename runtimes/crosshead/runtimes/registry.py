"""The backends that are built in: one explicit tuple."""

import difflib

from crosshead.runtimes.base import Runtime
from crosshead.runtimes.errors import UnknownBackendError
from crosshead.runtimes.fake import Fake
from crosshead.runtimes.onnx_reference import OnnxReference
from crosshead.runtimes.ort import OrtCpu
from crosshead.runtimes.ort_cuda import OrtCuda
from crosshead.runtimes.torch_compile import TorchCompile
from crosshead.runtimes.torch_eager import TorchEager

RUNTIMES: tuple[Runtime, ...] = (TorchEager(), TorchCompile(), OnnxReference(), OrtCpu(), OrtCuda(), Fake())
"""In the order in which they are listed."""

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
    for runtime in RUNTIMES:
        if runtime.name == name:
            return runtime
    known = [runtime.name for runtime in RUNTIMES]
    if name in RESERVED:
        raise UnknownBackendError(
            f"backend {name!r} is reserved for a later version of crosshead; this one has: {', '.join(known)}"
        )
    close = difflib.get_close_matches(name, [*known, *RESERVED], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UnknownBackendError(f"there is no backend {name!r}{hint} (known: {', '.join(known)})")
