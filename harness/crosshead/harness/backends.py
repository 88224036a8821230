"""`crosshead backends`: what is here, what is missing, and the command that adds it."""

import sys

import msgspec

from crosshead.results import render_backends
from crosshead.runtimes import RUNTIMES, Available


class BackendLine(msgspec.Struct, frozen=True, kw_only=True):
    """One backend as it stands on this machine.

    Attributes:
        name: what `--backend` takes.
        available: whether it can be used here.
        version: version of the library that does the work; empty when missing.
        detail: build or device when available, else why it is not.
        remedy: the command or step that would add it; empty when available.
        in_all: whether `--backend all` includes it.
    """

    name: str
    available: bool
    version: str = ""
    detail: str = ""
    remedy: str = ""
    in_all: bool = True


def list_backends() -> list[BackendLine]:
    """Probe every backend."""
    lines = []
    for runtime in RUNTIMES:
        found = runtime.probe()
        in_all = runtime.capabilities.in_all
        if isinstance(found, Available):
            line = BackendLine(
                name=runtime.name, available=True, version=found.version, detail=found.detail, in_all=in_all
            )
        else:
            line = BackendLine(
                name=runtime.name, available=False, detail=found.reason, remedy=found.remedy, in_all=in_all
            )
        lines.append(line)
    return lines


def show_backends(as_json: bool) -> None:
    """Print the list, as a table or as JSON."""
    lines = list_backends()
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(lines), indent=2).decode() + "\n")
        return
    from rich.console import Console

    rows = [
        (line.name, "available" if line.available else "missing", f"{line.version} {line.detail}".strip(), line.remedy)
        for line in lines
    ]
    render_backends(rows, Console())
