"""The folder of a run: `run.json`, `samples.npz` and whatever else the run writes beside them.

Each file is written whole or not at all (a temporary file beside it, then a rename), so that whoever looks while the
run goes on, or after it was interrupted, finds the last finished state. Nothing is forced to the disk: that takes
time in the middle of measuring, and only a power cut could tell.
"""

import contextlib
import errno
import io
import itertools
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.results.encoding import decode_run, encode_run
from crosshead.results.errors import StoreError, VersionError
from crosshead.results.records import RunRecord

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.npz"
SUMMARY_FILE = "summary.md"

_LONGEST_NAME = 40
_SAMPLE_NAME = re.compile(r"cell(\d+)_process(\d+)")


def new_run_id(now: datetime, source: str) -> str:
    """Return an id such as `2026-11-30T20-15-03-mha`, which sorts by time and names a folder on any system.

    Args:
        now: with its time zone; written in UTC.
        source: block, `path.py:factory`, `package.module:factory` or `model.onnx`; folders are left out.

    Raises:
        ValueError: `now` has no time zone.
    """
    if now.tzinfo is None:
        raise ValueError("the time of a run needs a time zone, got a naive datetime")
    base = re.split(r"[\\/]", source)[-1]
    base = re.sub(r"\.(py|onnx)(?=:|$)", "", base)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", base).strip("-.")[:_LONGEST_NAME].strip("-.")
    return f"{now.astimezone(UTC):%Y-%m-%dT%H-%M-%S}-{slug or 'run'}"


class RunStore:
    """One run on disk, open for writing. Make it with `create`."""

    def __init__(self, path: Path, record: RunRecord, *, made: Sequence[Path] = ()) -> None:
        self.path = path
        """The run's folder."""
        self._record = record
        self._made = made
        self._samples: dict[tuple[int, int], list[float]] = {}
        self._samples_changed = False

    @classmethod
    def create(cls, out: Path, run_id: str, record: RunRecord) -> Self:
        """Make the folder `<out>/<run_id>` and write the first record.

        Where that folder is there already (two runs within a second), `-2`, `-3` … is added, also in the record's id.

        Raises:
            StoreError: the folder cannot be made or written, in one line.
        """
        try:
            made = [folder for folder in (out, *out.parents) if not folder.exists()]
            out.mkdir(parents=True, exist_ok=True)
            path = _make_unique(out / run_id)
        except OSError as error:
            raise StoreError(
                f"cannot make a results folder in {out}: {_why(error)}; give another folder with --out"
            ) from error
        store = cls(path, record, made=made)
        try:
            store.update(record)
        except BaseException:
            store.discard()  # an empty folder is no run
            raise
        return store

    @property
    def run_id(self) -> str:
        """Name of the folder, and the `id` of every record written."""
        return self.path.name

    @property
    def record(self) -> RunRecord:
        """The record last written, with the run's id in it."""
        return self._record

    def update(self, record: RunRecord) -> None:
        """Replace `run.json`, and `samples.npz` if samples were added; a write that fails leaves the old file.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        record = msgspec.structs.replace(record, id=self.run_id)
        if self._samples_changed:
            self._write(SAMPLES_FILE, _pack(self._samples))
            self._samples_changed = False
        self._write(RUN_FILE, encode_run(record))
        self._record = record

    def add_samples(self, cell_index: int, process_index: int, samples_s: Sequence[float]) -> None:
        """Append raw samples in the order they were taken; the next `update` writes them.

        Args:
            cell_index: place of the cell in the record's `cells`.
            process_index: which process of the cell, from 0.
            samples_s: seconds a call.
        """
        self._samples.setdefault((cell_index, process_index), []).extend(samples_s)
        self._samples_changed = True

    def write_summary(self, text: str) -> None:
        """Write `summary.md`; see `crosshead.results.summary`.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        self._write(SUMMARY_FILE, text.encode("utf-8", "replace"))

    def discard(self) -> None:
        """Remove the run's folder with all that is in it, and those around it that `create` made; never fails."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for folder in self._made:
                folder.rmdir()  # only if nothing else is there

    def _write(self, name: str, data: bytes) -> None:
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
                f"cannot write {name} into {self.path}: {_why(error)}; what was written before is still there"
            ) from error


def read_run(folder_or_file: Path) -> RunRecord:
    """Return the record of a run.

    Args:
        folder_or_file: a run's folder, or its `run.json` under any name.

    Raises:
        VersionError: the record has another schema version; the message says what to do.
        StoreError: nothing there, or the record is damaged.
    """
    path = folder_or_file / RUN_FILE if folder_or_file.is_dir() else folder_or_file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {_why(error)}; expected a run's folder or its {RUN_FILE}") from error
    try:
        return decode_run(data)
    except VersionError as error:
        raise VersionError(f"{path}: {error}") from error
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def read_samples(folder: Path) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Return the raw samples of a run, seconds a call, by place of the cell in the record and process.

    A run that timed nothing has none.

    Raises:
        StoreError: the file is damaged or holds something else.
    """
    path = folder / SAMPLES_FILE
    if not path.exists():
        return {}
    samples: dict[tuple[int, int], NDArray[np.float64]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                place = _SAMPLE_NAME.fullmatch(name)
                if place is not None:
                    samples[int(place[1]), int(place[2])] = arrays[name].astype(np.float64)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} is damaged and its samples cannot be read: {error}") from error
    return samples


def _pack(samples: dict[tuple[int, int], list[float]]) -> bytes:
    arrays = {f"cell{cell}_process{process}": np.asarray(samples_s) for (cell, process), samples_s in samples.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for `allow_pickle`
    return buffer.getvalue()


def _make_unique(path: Path) -> Path:
    names = itertools.chain([path.name], (f"{path.name}-{number}" for number in itertools.count(2)))
    while True:
        candidate = path.with_name(next(names))
        with contextlib.suppress(FileExistsError):
            candidate.mkdir()
            return candidate


def _why(error: OSError) -> str:
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
