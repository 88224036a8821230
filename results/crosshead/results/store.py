"""The folder of a run: `run.json`, `samples.npz` and whatever else the run writes beside them.

Each file is written whole or not at all (a temporary file beside it, then a rename), so that whoever looks while the
run goes on, or after it was interrupted, finds the last finished state. Nothing is forced to the disk: that takes
time in the middle of measuring, and only a power cut could tell.
"""

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.results._folder import RunFolder, make_folder, why
from crosshead.results.encoding import decode_run, encode_run
from crosshead.results.errors import StoreError, VersionError
from crosshead.results.records import RunRecord
from crosshead.results.turns import TurnRow, pack_turns, unpack_turns

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.npz"
TURNS_FILE = "turns.npz"
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


class RunStore(RunFolder):
    """One run on disk, open for writing. Make it with `create`."""

    def __init__(self, path: Path, record: RunRecord, *, made: Sequence[Path] = ()) -> None:
        super().__init__(path, made=made)
        self._record = record
        self._samples: dict[tuple[int, int], list[float]] = {}
        self._samples_changed = False
        self._turns: dict[tuple[int, int], list[TurnRow]] = {}

    @classmethod
    def create(cls, out: Path, run_id: str, record: RunRecord) -> Self:
        """Make the folder `<out>/<run_id>` and write the first record.

        Where that folder is there already (two runs within a second), `-2`, `-3` … is added, also in the record's id.

        Raises:
            StoreError: the folder cannot be made or written, in one line.
        """
        path, made = make_folder(out, run_id)
        store = cls(path, record, made=made)
        try:
            store.update(record)
        except BaseException:
            store.discard()  # an empty folder is no run
            raise
        return store

    @property
    def record(self) -> RunRecord:
        """The record last written, with the run's id in it."""
        return self._record

    def update(self, record: RunRecord) -> None:
        """Replace `run.json`, and the files of samples and turns if some were added; a write that fails leaves the old.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        record = msgspec.structs.replace(record, id=self.run_id)
        if self._samples_changed:
            self.write(SAMPLES_FILE, _pack({place: np.asarray(values) for place, values in self._samples.items()}))
            self.write(TURNS_FILE, _pack({place: pack_turns(rows) for place, rows in self._turns.items()}))
            self._samples_changed = False
        self.write(RUN_FILE, encode_run(record))
        self._record = record

    def add_samples(
        self, cell_index: int, process_index: int, samples_s: Sequence[float], turns: Sequence[TurnRow] = ()
    ) -> None:
        """Append raw samples in the order they were taken, and the turns that gave them; the next `update` writes them.

        Args:
            cell_index: place of the cell in the record's `cells`.
            process_index: which process of the cell, from 0.
            samples_s: seconds a call.
            turns: what went on around each turn.
        """
        self._samples.setdefault((cell_index, process_index), []).extend(samples_s)
        self._turns.setdefault((cell_index, process_index), []).extend(turns)
        self._samples_changed = True

    def write_summary(self, text: str) -> None:
        """Write `summary.md`; see `crosshead.results.summary`.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        self.write(SUMMARY_FILE, text.encode("utf-8", "replace"))


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
        raise StoreError(f"cannot read {path}: {why(error)}; expected a run's folder or its {RUN_FILE}") from error
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
    return _unpack(folder / SAMPLES_FILE, "samples")


def read_turns(folder: Path) -> dict[tuple[int, int], list[TurnRow]]:
    """Return what went on around each turn of a run, by place of the cell in the record and process.

    A run that timed nothing has none, and so have those of versions that kept none.

    Raises:
        StoreError: the file is damaged or holds something else.
    """
    path = folder / TURNS_FILE
    try:
        return {place: unpack_turns(array) for place, array in _unpack(path, "turns").items()}
    except ValueError as error:
        raise StoreError(f"{path} is damaged and its turns cannot be read: {error}") from error


def _unpack(path: Path, what: str) -> dict[tuple[int, int], NDArray[np.float64]]:
    if not path.exists():
        return {}
    found: dict[tuple[int, int], NDArray[np.float64]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                place = _SAMPLE_NAME.fullmatch(name)
                if place is not None:
                    found[int(place[1]), int(place[2])] = arrays[name].astype(np.float64)
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} is damaged and its {what} cannot be read: {error}") from error
    return found


def _pack(values: Mapping[tuple[int, int], NDArray[np.float64]]) -> bytes:
    arrays = {f"cell{cell}_process{process}": array for (cell, process), array in values.items()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for `allow_pickle`
    return buffer.getvalue()
