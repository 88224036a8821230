"""Take out of a text what names the machine or its user, so that records can be attached to public reports."""

import getpass
import re
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

TAIL_LINES = 20
TAIL_BYTES = 2048
LINE_CHARACTERS = 600

_PATH = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:)?[\\/](?:[\w.+@~-]+[\\/])+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMON = {"root", "user", "admin", "runner", "ubuntu", "debian", "localhost", "nobody", "worker"}
"""Names that say nothing about anybody, and are words of error messages as well."""


def scrub(text: str) -> str:
    """Return `text` with absolute paths cut to base names, and the user's and the host's name left out."""
    text = _COLOUR.sub("", text)
    for folder in (str(Path.home()), tempfile.gettempdir()):  # these may hold blanks, which the pattern does not take
        if len(folder) > 1:
            text = re.sub(rf"{re.escape(folder)}(?=[\\/])", "", text)
    text = _PATH.sub("", text)
    for name, stand_in in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", stand_in, text)
    return text


def one_line(text: str) -> str:
    """Return `text` scrubbed and in one line of bearable length: its beginning and its end."""
    line = " ".join(scrub(text).split())
    if len(line) > LINE_CHARACTERS:
        half = LINE_CHARACTERS // 2
        line = f"{line[:half]} … {line[-half:]}"
    return line


def tail(data: bytes) -> str:
    """Return the last lines of an error output, scrubbed."""
    lines = scrub(data.decode(errors="replace")).splitlines()
    kept = [line.rstrip() for line in lines if line.strip() and not line.startswith("Extension modules:")]
    return "\n".join(kept[-TAIL_LINES:])[-TAIL_BYTES:]


def _names() -> Iterable[tuple[str, str]]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in the system's list, as in some containers
        user = ""
    host = socket.gethostname()
    for name, stand_in in ((user, "<user>"), (host, "<host>"), (host.partition(".")[0], "<host>")):
        if len(name) > 2 and name.lower() not in _COMMON:
            yield name, stand_in
