"""Errors of the runtimes room.

RuntimesError
├── BackendError            the backend refused or failed; raised inside a session
│   ├── UnsupportedError    the backend does not take this artifact: op and dtype, or precision, or opset
│   ├── PlacementError      something else than the provider asked for would do the work
│   ├── InputError          a name, shape or dtype of an input does not fit the artifact
│   ├── VoidError           it ran, but what was measured means nothing
│   └── SessionClosedError  the session was closed before
├── UnknownBackendError     no backend of that name
└── WorkerError             a worker process ended or misbehaved
    ├── WorkerCrashedError  it ended: exit status or signal, with the tail of its error output
    ├── WorkerTimeoutError  it did not answer in time and was killed
    ├── WorkerMemoryError   it grew over its memory limit and was killed
    └── WorkerProtocolError it answered with something that is no message
"""


class RuntimesError(Exception):
    """Root of the errors raised by `crosshead.runtimes`."""


class BackendError(RuntimesError):
    """The backend refused or failed."""


class UnsupportedError(BackendError):
    """The backend does not take this artifact."""


class PlacementError(BackendError):
    """Something else than the provider asked for would do the work."""


class InputError(BackendError):
    """A name, shape or dtype of an input does not fit the artifact."""


class VoidError(BackendError):
    """It ran, but what was measured means nothing: the machine was suspended, the clock went back, no time was left."""


class SessionClosedError(BackendError):
    """The session was closed before."""


class UnknownBackendError(RuntimesError):
    """No backend of that name."""


class WorkerError(RuntimesError):
    """A worker process ended or misbehaved.

    Attributes:
        stderr_tail: the last lines of the worker's error output.
    """

    def __init__(self, message: str, stderr_tail: str = "") -> None:
        super().__init__(message)
        self.stderr_tail = stderr_tail


class WorkerCrashedError(WorkerError):
    """The worker ended by itself: exit status or signal."""


class WorkerTimeoutError(WorkerError):
    """The worker did not answer in time and was killed."""


class WorkerMemoryError(WorkerError):
    """The worker grew over its memory limit and was killed."""


class WorkerProtocolError(WorkerError):
    """The worker answered with something that is no message."""
