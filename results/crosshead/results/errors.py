"""Errors of the results room.

ResultsError
├── StoreError     a results folder cannot be written, or a record cannot be read
└── VersionError   a record of a version that this crosshead does not read
"""


class ResultsError(Exception):
    """Root of the errors raised by `crosshead.results`."""


class StoreError(ResultsError):
    """A results folder cannot be written, or a record cannot be read."""


class VersionError(ResultsError):
    """A record of a version that this crosshead does not read."""
