"""Take from free text what names a person or a machine, so that a record can be attached to a public report.

Error messages, worker output and sources carry absolute paths. The base name is what helps to understand them; the
folders before it say where somebody works. A node name such as `/attn/MatMul` looks like a path and is shortened too.
"""

import contextlib
import functools
import getpass
import os
import re
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

RecordT = TypeVar("RecordT", bound=msgspec.Struct)

USER_MARK, HOST_MARK = "<user>", "<host>"

# Names that half of all machines use say nothing of anybody, and some of them are common words.
_COMMON = {"admin", "administrator", "build", "builder", "ci", "docker", "guest", "home", "host", "localhost"}
_COMMON |= {"nobody", "root", "runner", "ubuntu", "user", "vm"}

_FREE_TEXT = frozenset(("detail", "message", "placement_proof", "reason", "source", "stderr_tail", "where"))
_FREE_MAPPINGS = frozenset(("details", "options", "settings", "tunables"))

# What may end a path in prose. A space inside a path is only seen where the whole is quoted.
_END = r"\s'\"`<>|,;:()\[\]{}*?"
# What may stand before a path: not what makes the slash a division, a relative path or a closing tag; but `-I/usr/…`.
_BEFORE = r"(?: (?<! [\w.)\]~\\/%<] ) | (?<= \s-[A-Za-z] ) | (?<= ^-[A-Za-z] ) )"
_PATH = re.compile(
    rf"""
      (?P<web> \b(?:https?|ftp)://[^{_END}]+ )                      # kept; what a web address says is public
    | (?P<quote> ['"`] )
      (?P<quoted> (?:file:)? (?: ~[\w.-]*/ | / | [A-Za-z]:[\\/] | \\\\[^\\'"`\n] ) [^'"`\n]* )
      (?P=quote)
    | (?:\bfile:)? {_BEFORE} (?P<posix> (?: ~[\w.-]* )? /+ [^{_END}/\\] [^{_END}]* )
    | (?<! [A-Za-z0-9] ) (?P<windows> [A-Za-z]:[\\/]+ [^{_END}]* )
    | (?<! [\w\\] ) (?P<share> \\\\+ [\w.$-]+ \\+ [^{_END}]* )      # \\server\share\name
    """,
    re.VERBOSE,
)
_HOME = re.compile(r"^(?:file:)?(?:/+(?:home|Users)|[A-Za-z]:[\\/]+Users)[\\/]+[^\\/]+[\\/]*$")


@dataclass(frozen=True)
class Identity:
    """What there is to hide.

    Attributes:
        folders: absolute folders to cut off first, since they may hold spaces.
        users: names of the user.
        hosts: names of the machine.
    """

    folders: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> "Identity":
        """Return the names of this machine and user, and the folders that are in use."""
        home = os.path.expanduser("~")  # noqa: PTH111  # Path.home() raises where there is none
        users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")} | {Path(home).name}
        with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name, as in many containers
            users.add(getpass.getuser())
        try:
            folder = str(Path.cwd())
        except OSError:
            folder = ""  # the working folder was removed
        host = socket.gethostname()
        return cls(
            folders=_longest_first({home, folder, tempfile.gettempdir()}, least=2),
            users=_longest_first(users - _COMMON, least=2),
            hosts=_longest_first({host, host.partition(".")[0]} - _COMMON, least=2),
        )


def scrub(text: str, identity: Identity | None = None) -> str:
    """Return the text with absolute paths cut to their base names, and without user and host names.

    Posix, Windows and network paths, also quoted ones with spaces; relative paths, web addresses and all else stay.
    Scrubbing again changes nothing.

    Args:
        text: free text, e.g. an error message.
        identity: whose names; None means those of this machine and user.
    """
    known = identity if identity is not None else _here()
    while True:
        scrubbed = _scrub_once(text, known)
        if scrubbed == text:
            return text
        text = scrubbed


def scrub_record(record: RecordT) -> RecordT:
    """Return the record with its free text scrubbed; names that its parts refer to each other by stay."""
    return msgspec.convert(scrub_tree(msgspec.to_builtins(record)), type(record))


def _scrub_once(text: str, known: Identity) -> str:
    for folder in known.folders:
        if folder in text:
            text = re.sub(rf"(?<![\w.~\\/]){re.escape(folder)}[\\/]+([^{_END}]*)", _last_part, text)
    text = _PATH.sub(_base_name, text)
    for names, mark in ((known.users, USER_MARK), (known.hosts, HOST_MARK)):
        for name in names:
            if name in text:
                text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", mark, text)
    return text


def _last_part(match: re.Match[str]) -> str:
    return re.split(r"[\\/]+", match[1].rstrip("\\/"))[-1]


def _base_name(match: re.Match[str]) -> str:
    if match["web"] is not None:
        return match["web"]
    quote = match["quote"] or ""
    path = match["quoted"] if quote else match["posix"] or match["windows"] or match["share"]
    if _HOME.match(path):
        return f"{quote}~{quote}"
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    return f"{quote}{parts[-1]}{quote}" if parts else match[0]


def scrub_tree(value: Any, key: str = "", free: bool = False) -> Any:
    """Return plain lists and dicts with the free text in them scrubbed: of the fields whose names say that it is."""
    if isinstance(value, str):
        return scrub(value) if free or key in _FREE_TEXT else value
    if isinstance(value, list):
        return [scrub_tree(item, key, free) for item in value]
    if isinstance(value, dict):
        return {name: scrub_tree(item, name, free or key in _FREE_MAPPINGS) for name, item in value.items()}
    return value


@functools.cache
def _here() -> Identity:
    return Identity.here()


def _longest_first(names: set[str], least: int) -> tuple[str, ...]:
    return tuple(sorted((name for name in names if len(name) >= least), key=lambda name: (-len(name), name)))
