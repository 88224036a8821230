"""The folder of a load test: `load.json`, the times of every request in `samples.npz`, and whatever stands beside."""

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from crosshead.results._folder import RunFolder, make_folder, why
from crosshead.results.encoding import decode_record, encode_record
from crosshead.results.errors import StoreError, VersionError
from crosshead.results.load_point import LoadSamples
from crosshead.results.load_records import LOAD_SCHEMA, LoadRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOAD_FILE = "load.json"
LOAD_SAMPLES_FILE = "samples.npz"
LOAD_SUMMARY_FILE = "summary.md"

_NAME = re.compile(r"cell(\d+)_point(\d+)_(\w+)")


class LoadStore(RunFolder):
    """One load test on disk, open for writing. Make it with `create`."""

    def __init__(self, path: Path, record: LoadRecord, *, made: Sequence[Path] = ()) -> None:
        super().__init__(path, made=made)
        self._record = record
        self._samples: dict[tuple[int, int], LoadSamples] = {}
        self._samples_changed = False

    @classmethod
    def create(cls, out: Path, run_id: str, record: LoadRecord) -> Self:
        """Make the folder `<out>/<run_id>` (with `-2` … where it is there) and write the first record.

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
    def record(self) -> LoadRecord:
        """The record last written, with the folder's name as its id."""
        return self._record

    def update(self, record: LoadRecord) -> None:
        """Replace `load.json`, and `samples.npz` if samples were added; a write that fails leaves the old file.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        record = msgspec.structs.replace(record, id=self.run_id)
        if self._samples_changed:
            self.write(LOAD_SAMPLES_FILE, _pack(self._samples))
            self._samples_changed = False
        self.write(LOAD_FILE, encode_record(record))
        self._record = record

    def add_samples(self, cell_index: int, point_index: int, samples: LoadSamples) -> None:
        """Keep the times of one load; the next `update` writes them.

        Args:
            cell_index: place of the cell in the record's `cells`.
            point_index: place of the load in its `points`.
            samples: of every request that was answered, those before the lead included.
        """
        self._samples[cell_index, point_index] = samples
        self._samples_changed = True

    def write_summary(self, text: str) -> None:
        """Write `summary.md`.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        self.write(LOAD_SUMMARY_FILE, text.encode("utf-8", "replace"))


def read_load(folder_or_file: Path) -> LoadRecord:
    """Return the record of a load test.

    Args:
        folder_or_file: its folder, or its `load.json` under any name.

    Raises:
        VersionError: the record has another schema version; the message says what to do.
        StoreError: nothing there, or the record is damaged.
    """
    path = folder_or_file / LOAD_FILE if folder_or_file.is_dir() else folder_or_file
    try:
        return decode_record(path.read_bytes(), LoadRecord, LOAD_SCHEMA, "a load test")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {why(error)}; expected a folder with {LOAD_FILE}") from error
    except VersionError as error:
        raise VersionError(f"{path}: {error}") from error
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def read_load_samples(folder: Path) -> dict[tuple[int, int], LoadSamples]:
    """Return the times of every request, by place of the cell and of the load in the record.

    Raises:
        StoreError: the file is damaged or holds something else.
    """
    path = folder / LOAD_SAMPLES_FILE
    if not path.exists():
        return {}
    parts: dict[tuple[int, int], dict[str, NDArray[Any]]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                place = _NAME.fullmatch(name)
                if place is not None:
                    parts.setdefault((int(place[1]), int(place[2])), {})[place[3]] = arrays[name]
        return {place: LoadSamples(**fields) for place, fields in parts.items()}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path} is damaged and its samples cannot be read: {error}") from error


def _pack(samples: dict[tuple[int, int], LoadSamples]) -> bytes:
    arrays = {
        f"cell{cell}_point{point}_{name}": part
        for (cell, point), parts in samples.items()
        for name, part in parts._asdict().items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()
