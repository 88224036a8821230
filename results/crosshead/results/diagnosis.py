"""The record of a diagnosis, `crosshead.diagnosis/1` (`diagnosis.json` in the folder of its run).

Errors are relative L2 without a unit, as in `crosshead.results.records`; `times` are in units of the rounding that the
case, or the node, must have.

History:
    1  first version.
"""

from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from crosshead.results._folder import RunFolder, make_folder
from crosshead.results.encoding import decode_record, encode_record
from crosshead.results.records import Cause, Notice

SCHEMA = "crosshead.diagnosis/1"

DIAGNOSIS_FILE: Final = "diagnosis.json"
DIAGNOSIS_SUMMARY: Final = "diagnosis.md"

Subject = Literal["", "graph", "output", "crash", "agreement"]
Outcome = Literal["gone", "smaller", "stays", "not-run"]
Script = Literal["onnxruntime", "onnx.reference", "recorded"]


class RungRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The failing cell run again with one thing changed.

    Attributes:
        change: what was changed, e.g. `graph optimisation off`.
        outcome: whether the error is gone with it (within the limit of a pass), smaller by a factor of ten or more,
            or stays; `not-run` where it could not be tried.
        error, times_expected: what is left; None where nothing came out.
        reason: why it could not be tried, or what came instead of numbers.
    """

    change: str
    outcome: Outcome
    error: float | None = None
    times_expected: float | None = None
    reason: str = ""


class TensorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a node reads: its name in the graph, dtype and shape."""

    name: str
    dtype: str
    shape: list[int]


class CulpritRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The node at which the error arises.

    Attributes:
        node: its name in the graph.
        op: `domain::op` as in a manifest.
        nodes: all nodes that belong to it; more than one where the fault shows only when they run together.
        graph: which graph it is a node of, e.g. `as exported` or `as optimised by ONNX Runtime`.
        inputs: what it reads.
        own_error, own_times: its error when it is fed the oracle's values.
        inherited_error: the error of what it reads in the failing run; None where that could not be asked.
        other_own_times: own error of the other backend there, where two are compared.
        alike: how many other nodes of the same operator are off as well.
        count: how many nodes the graph has.
        message: the finding.
    """

    node: str
    op: str
    nodes: list[str] = []
    graph: str
    inputs: list[TensorRecord] = []
    own_error: float | None = None
    own_times: float | None = None
    inherited_error: float | None = None
    other_own_times: float | None = None
    alike: int = 0
    count: int
    message: str


class SmallestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest input that was found to show the fault.

    Attributes:
        shapes: by input.
        values: by input, what it holds, in a few words.
        error, times_expected: of the fault on it.
        tried: how many inputs were tried.
    """

    shapes: dict[str, list[int]]
    values: dict[str, str] = {}
    error: float | None = None
    times_expected: float | None = None
    tried: int


class BundleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The folder that shows the fault without crosshead.

    Attributes:
        path: relative to the folder of the diagnosis.
        script: what its `reproduce.py` computes with; `recorded` where only the recorded wrong output can be shown.
        cut: whether its model is the culprit alone.
        reproduces: whether the script, run on its own, shows the fault.
        message: in one sentence.
    """

    path: str
    script: Script
    cut: bool
    reproduces: bool
    message: str


class DiagnosisRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why something failed.

    Attributes:
        id: name of the folder.
        run: id of the run that found the failure.
        subject: what failed: the graph, an output of a cell, a cell that crashed, or the agreement of two backends;
            empty where nothing did.
        artifact, backend, against, case: of what was looked into.
        settings: of the cell.
        reason: what failed, in the words of the run.
        error, times_expected: of the failure as it was seen again here.
        ladder: what was changed, one thing at a time; ladder_message says which change takes the error away.
        culprit: the node; None where none was found, and then culprit_message says why.
        cause: its kind; None where it is not known.
        message: the whole finding in one sentence.
        versions: of the libraries that matter, by distribution name.
    """

    schema: str = SCHEMA
    id: str
    run: str
    crosshead: str
    started: str
    wall_s: float | None = None
    phases_s: dict[str, float] = {}
    finished: bool = False
    source: str
    subject: Subject = ""
    artifact: str = ""
    backend: str = ""
    against: str = ""
    case: str = ""
    settings: dict[str, str | int | float | bool] = {}
    reason: str = ""
    error: float | None = None
    times_expected: float | None = None
    ladder: list[RungRecord] = []
    ladder_message: str = ""
    culprit: CulpritRecord | None = None
    culprit_message: str = ""
    cause: Cause | None = None
    message: str = ""
    smallest: SmallestRecord | None = None
    bundle: BundleRecord | None = None
    versions: dict[str, str] = {}
    notices: list[Notice] = []


def encode_diagnosis(record: DiagnosisRecord) -> bytes:
    """Return a diagnosis as JSON, its free text scrubbed; equal records give equal bytes."""
    return encode_record(record)


def decode_diagnosis(data: bytes | str) -> DiagnosisRecord:
    """Return the diagnosis that `encode_diagnosis` wrote.

    Raises:
        VersionError: it has another schema version.
        StoreError: this is no record of a diagnosis.
    """
    return decode_record(data, DiagnosisRecord, SCHEMA, "a diagnosis")


class DiagnosisStore(RunFolder):
    """A diagnosis on disk, open for writing: in the folder of its run, or in one of its own."""

    @classmethod
    def create(cls, out: Path, identity: str) -> Self:
        """Make a folder of its own.

        Raises:
            StoreError: it cannot be made, in one line.
        """
        path, made = make_folder(out, identity)
        return cls(path, made=made)

    def update(self, record: DiagnosisRecord) -> None:
        """Replace `diagnosis.json`.

        Raises:
            StoreError: it cannot be written, in one line.
        """
        self.write(DIAGNOSIS_FILE, encode_diagnosis(msgspec.structs.replace(record, id=self.run_id)))

    def write_summary(self, text: str) -> None:
        """Write `diagnosis.md`.

        Raises:
            StoreError: it cannot be written, in one line.
        """
        self.write(DIAGNOSIS_SUMMARY, text.encode("utf-8", "replace"))
