"""Errors of the harness, and which errors of all rooms a user can cause.

HarnessError
├── RequestError      the request cannot be carried out as asked (exit status 2)
└── ComparisonError   what is to be compared does not fit together
"""

from crosshead.export.artifact import ExportError
from crosshead.results import ResultsError
from crosshead.runtimes.errors import RuntimesError


class HarnessError(Exception):
    """Root of the errors raised by `crosshead.harness`."""


class RequestError(HarnessError):
    """The request cannot be carried out as asked: bad usage, or a backend that is not there."""


class ComparisonError(HarnessError):
    """What is to be compared does not fit together."""


USER_ERRORS: tuple[type[Exception], ...] = (HarnessError, ExportError, RuntimesError, ResultsError)
"""Errors whose message is meant for the person at the terminal: one line, exit status 2.

`ConfigError` of model_def stands in none of the trees, since that room imports nothing of ours; sources turn it into
a `SourceError`.
"""
