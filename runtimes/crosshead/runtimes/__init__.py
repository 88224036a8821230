"""The runtimes room: one file a backend behind one small contract, and the worker processes that they run in.

Importing it imports no backend's library: neither torch nor onnxruntime nor onnx.
"""

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
    WorkerCrashedError,
    WorkerError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerTimeoutError,
)
from crosshead.runtimes.messages import Grown, Measured, Opened, Ran, Warm
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
    "Warm",
    "Worker",
    "WorkerCrashedError",
    "WorkerError",
    "WorkerMemoryError",
    "WorkerProtocolError",
    "WorkerTimeoutError",
    "get_runtime",
]
