"""Keep other people's chatter off the terminal: the exporter's, and what a user's factory prints."""

import contextlib
import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard warnings, log records, and what Python or C writes to the standard streams.

    Exporters log through handlers of their own, print graphs, and warn from C++. It holds for the whole process, so a
    progress display on another thread stands still for as long.
    """
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            with (
                open(os.devnull, "w") as nowhere,  # noqa: PTH123  # no path, a device
                _pointed(STDOUT, nowhere.fileno()),
                _pointed(STDERR, nowhere.fileno()),
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                yield
        finally:
            logging.disable(disabled)


@contextlib.contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Send what is printed to standard output to standard error, where it cannot spoil a record on standard output."""
    with _pointed(STDOUT, STDERR), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _pointed(descriptor: int, target: int) -> Iterator[None]:
    """Let `descriptor` lead where `target` leads; a process without that stream is left alone."""
    try:
        saved = os.dup(descriptor)
    except OSError:
        yield
        return
    _flush()
    try:
        with contextlib.suppress(OSError):
            os.dup2(target, descriptor)
        yield
    finally:
        _flush()
        os.dup2(saved, descriptor)
        os.close(saved)


def _flush() -> None:
    """Empty the buffers of Python and of the C library, so that each text goes where it was meant to go."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):  # no C library to be had by name, as on Windows
        ctypes.CDLL(None).fflush(None)
