"""The runtimes room: one file a backend behind one small contract, and the worker processes that they run in.

Importing it imports no backend's library (neither torch nor onnxruntime nor onnx), and nothing at all until a name is
asked for: a worker process comes up with what it needs and no more.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.runtimes.base import (
        Available,
        Capabilities,
        Deviation,
        Placement,
        ProviderShare,
        Runtime,
        Session,
        Settings,
        Unavailable,
    )
    from crosshead.runtimes.errors import (
        BackendError,
        InputError,
        PlacementError,
        RuntimesError,
        SessionClosedError,
        UnknownBackendError,
        UnsupportedError,
        VoidError,
        WorkerCrashedError,
        WorkerError,
        WorkerMemoryError,
        WorkerProtocolError,
        WorkerTimeoutError,
    )
    from crosshead.runtimes.messages import Grown, Measured, Opened, Peaked, Ran, Warm
    from crosshead.runtimes.registry import RESERVED, RUNTIMES, get_runtime
    from crosshead.runtimes.worker import CAN_PAUSE, Worker

__all__ = [
    "CAN_PAUSE",
    "RESERVED",
    "RUNTIMES",
    "Available",
    "BackendError",
    "Capabilities",
    "Deviation",
    "Grown",
    "InputError",
    "Measured",
    "Opened",
    "Peaked",
    "Placement",
    "PlacementError",
    "ProviderShare",
    "Ran",
    "Runtime",
    "RuntimesError",
    "Session",
    "SessionClosedError",
    "Settings",
    "Unavailable",
    "UnknownBackendError",
    "UnsupportedError",
    "VoidError",
    "Warm",
    "Worker",
    "WorkerCrashedError",
    "WorkerError",
    "WorkerMemoryError",
    "WorkerProtocolError",
    "WorkerTimeoutError",
    "get_runtime",
]

_HOMES = {
    "base": [
        "Available",
        "Capabilities",
        "Deviation",
        "Placement",
        "ProviderShare",
        "Runtime",
        "Session",
        "Settings",
        "Unavailable",
    ],
    "messages": ["Grown", "Measured", "Opened", "Peaked", "Ran", "Warm"],
    "registry": ["RESERVED", "RUNTIMES", "get_runtime"],
    "worker": ["CAN_PAUSE", "Worker"],
}
"""Which module holds which name; `errors` holds the others."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "errors")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
