"""Inputs and outputs as files of a person's own (`--save-inputs`, `--save-outputs`): an `.npz` a case, one a cell."""

import re
from collections.abc import Sequence
from pathlib import Path

from crosshead.export.artifact import Artifact, write_whole
from crosshead.harness.accuracy import Visit
from crosshead.harness.errors import RequestError

_UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+-]+")


class SavedFiles:
    """Writes into one folder, under names that every file system takes; no file of one call replaces another."""

    def __init__(self, folder: Path) -> None:
        """Make the folder.

        Raises:
            RequestError: it cannot be made or written.
        """
        self._folder = folder
        self._taken: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RequestError(f"cannot write into {folder}: {error.strerror or error}; give another folder") from error

    def take(self, parts: Sequence[str], source: Path) -> None:
        """Copy an `.npz` to a name made of parts.

        Raises:
            RequestError: it cannot be written.
        """
        plain = "--".join(_UNSAFE.sub("-", part).strip("-.") or "unnamed" for part in parts)[:150]
        name, count = plain, 2
        while name.lower() in self._taken:
            name, count = f"{plain}-{count}", count + 1
        self._taken.add(name.lower())
        try:
            write_whole(self._folder / f"{name}.npz", source.read_bytes())
        except OSError as error:
            raise RequestError(f"cannot write {name}.npz: {error.strerror or error}; is the disk full?") from error


def save_inputs(folder: Path, artifacts: Sequence[Artifact]) -> None:
    """Write the inputs of every case: `<case>.npz`, or `<case>--<precision>.npz` where there are several precisions.

    The stress set is among them, as `stress--<case>.npz`. Each can be given again with `--inputs`.

    Raises:
        RequestError: the folder cannot be written.
    """
    files = SavedFiles(folder)
    one_each = {artifact.manifest.precision: artifact for artifact in reversed(artifacts)}
    seen: set[tuple[str, str]] = set()
    for artifact in artifacts:
        if one_each[artifact.manifest.precision] is not artifact:
            continue
        suffix = [artifact.manifest.precision] if len(one_each) > 1 else []
        for before, cases in (([], artifact.manifest.cases), (["stress"], artifact.manifest.stress_cases)):
            for case in cases:
                if (case.name, case.inputs_sha256) not in seen:
                    seen.add((case.name, case.inputs_sha256))
                    files.take([*before, case.name, *suffix], artifact.inputs_path(case.name))


def save_outputs(folder: Path, visits: Sequence[Visit]) -> None:
    """Write what every cell gave: `<case>--<backend>--<artifact>.npz`.

    Raises:
        RequestError: the folder cannot be written.
    """
    files = SavedFiles(folder)
    for visited in visits:
        if visited.outputs is not None:
            files.take([visited.cell.case, visited.cell.runtime.name, visited.cell.artifact.id], visited.outputs)
