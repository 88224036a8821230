"""The record of a search for inputs on which something fails, `crosshead.fuzz/1` (`fuzz.json`).

History:
    1  first version.
"""

from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from crosshead.results._folder import RunFolder, make_folder
from crosshead.results.encoding import decode_record, encode_record
from crosshead.results.records import Cause, Notice

FUZZ_SCHEMA: Final = "crosshead.fuzz/1"
FUZZ_FILE: Final = "fuzz.json"
FUZZ_SUMMARY: Final = "fuzz.md"


class FindRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One input on which a graph or a backend is off.

    Attributes:
        artifact, backend: what is off; no backend where the graph itself is.
        number: of the draw under the run's seed, which gives the same input again.
        idea: what the draw tries.
        shapes: of the input as it was found, by name.
        error: relative L2 against the oracle; infinite where NaN or Inf came, or nothing.
        times_expected: in units of the rounding that the input must have.
        reason: what came instead of numbers.
        cause, node: what it was put down to, where that was found out.
        message: the finding in one sentence.
        folder: of its diagnosis and bundle, relative to the run's.
    """

    artifact: str
    backend: str = ""
    number: int
    idea: str
    shapes: dict[str, list[int]]
    error: float | None = None
    times_expected: float | None = None
    reason: str = ""
    cause: Cause | None = None
    node: str = ""
    message: str = ""
    folder: str = ""


class SearchedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a graph on a backend fared.

    Attributes:
        inputs: how many it was run on.
        refused: how many of these it did not take.
        worst_times: the largest error that counted as rounding, in units of what the input must have.
    """

    artifact: str
    backend: str = ""
    inputs: int = 0
    refused: int = 0
    worst_times: float = 0.0


class FuzzRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One search.

    Attributes:
        budget_s: how long it was to search, and spent_s how long it did, without what its finds took.
        draws: how many inputs were drawn; of them skipped ones did not fit the source, or the precision.
    """

    schema: str = FUZZ_SCHEMA
    id: str
    run: str
    crosshead: str
    started: str
    wall_s: float | None = None
    finished: bool = False
    source: str
    seed: int
    budget_s: float
    spent_s: float = 0.0
    draws: int = 0
    skipped: int = 0
    searched: list[SearchedRecord] = []
    finds: list[FindRecord] = []
    verdict: Literal["", "nothing-found", "found"] = ""
    versions: dict[str, str] = {}
    notices: list[Notice] = []


def encode_fuzz(record: FuzzRecord) -> bytes:
    """Return a search as JSON, its free text scrubbed; equal records give equal bytes."""
    return encode_record(record)


def decode_fuzz(data: bytes | str) -> FuzzRecord:
    """Return the search that `encode_fuzz` wrote.

    Raises:
        VersionError: it has another schema version.
        StoreError: this is no record of a search.
    """
    return decode_record(data, FuzzRecord, FUZZ_SCHEMA, "a search")


class FuzzStore(RunFolder):
    """A search on disk, open for writing, in the folder of its run."""

    @classmethod
    def create(cls, out: Path, identity: str) -> Self:
        """Make a folder of its own.

        Raises:
            StoreError: it cannot be made, in one line.
        """
        path, made = make_folder(out, identity)
        return cls(path, made=made)

    def update(self, record: FuzzRecord) -> None:
        """Replace `fuzz.json`.

        Raises:
            StoreError: it cannot be written, in one line.
        """
        self.write(FUZZ_FILE, encode_fuzz(msgspec.structs.replace(record, id=self.run_id)))

    def write_summary(self, text: str) -> None:
        """Write `fuzz.md`.

        Raises:
            StoreError: it cannot be written, in one line.
        """
        self.write(FUZZ_SUMMARY, text.encode("utf-8", "replace"))
