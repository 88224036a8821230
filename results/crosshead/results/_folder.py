"""The folder that a run is written into: its own, and each file in it whole or not at all."""

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from crosshead.results.errors import StoreError


def make_folder(out: Path, name: str) -> tuple[Path, list[Path]]:
    """Make `<out>/<name>`, or with `-2`, `-3` … where that is there already, and return it and the folders made for it.

    Raises:
        StoreError: it cannot be made, in one line.
    """
    try:
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        out.mkdir(parents=True, exist_ok=True)
        return _make_unique(out / name), made
    except OSError as error:
        raise StoreError(
            f"cannot make a results folder in {out}: {why(error)}; give another folder with --out"
        ) from error


class RunFolder:
    """A folder that is open for writing."""

    def __init__(self, path: Path, *, made: Sequence[Path] = ()) -> None:
        """Take a folder.

        Args:
            path: it exists.
            made: folders around it that were made for it.
        """
        self.path = path
        """The run's folder."""
        self._made = made

    @property
    def run_id(self) -> str:
        """Name of the folder, and the `id` of every record written."""
        return self.path.name

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or leave the one that was there.

        Raises:
            StoreError: it cannot be written, in one line.
        """
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            try:
                temporary.write_bytes(data)
                temporary.replace(self.path / name)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(
                f"cannot write {name} into {self.path}: {why(error)}; what was written before is still there"
            ) from error

    def discard(self) -> None:
        """Remove the folder with all that is in it, and those around it that were made for it; never fails."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()  # only if nothing else is there


def _make_unique(path: Path) -> Path:
    names = itertools.chain([path.name], (f"{path.name}-{number}" for number in itertools.count(2)))
    while True:
        candidate = path.with_name(next(names))
        with contextlib.suppress(FileExistsError):
            candidate.mkdir()
            return candidate


def why(error: OSError) -> str:
    """Say in a few words what an error of the operating system means."""
    reasons = {
        errno.ENOSPC: "the disk is full",
        errno.EACCES: "permission denied",
        errno.EROFS: "the file system is read-only",
        errno.ENOTDIR: "a file is in the way",
        errno.EEXIST: "a file is in the way",
        errno.ENOENT: "it is not there",
        errno.EISDIR: "it is a folder",
    }
    number = error.errno if error.errno is not None else 0
    return reasons.get(number) or error.strerror or str(error)
