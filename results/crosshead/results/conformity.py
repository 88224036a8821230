"""The record of how backends do on the ONNX standard's own cases, `crosshead.conform/1` (`conform.json`).

Errors have no unit, or that of the output itself; `times_tolerance` is the error over what the rule allows.

History:
    1  first version.
"""

from pathlib import Path
from typing import Literal, Self

import msgspec

from crosshead.results._folder import RunFolder, make_folder
from crosshead.results.encoding import decode_record, encode_record
from crosshead.results.records import EnvironmentRecord, Notice, RunResult, WorstElement

CONFORM_SCHEMA = "crosshead.conform/1"
CONFORM_FILE = "conform.json"

ConformStatus = Literal["pass", "wrong", "unsupported", "failed"]
MaskKind = Literal["none", "bool", "additive"]
Heads = Literal["equal", "grouped", "single"]


class FeatureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a graph asks of attention, read off its node and the shapes of its values.

    Attributes:
        op: operator, `domain::op` as in a manifest.
        opset: version of the operator's domain that the graph imports.
        expanded: the node is written out in the standard's own function body.
        dtype: of the first input.
        layout: `3-D` (batch, length, heads x size), `4-D` (batch, heads, length, size), or empty where it is neither.
        heads: query and key/value heads: equal in number, grouped (a divisor), or a single key/value head for several.
        mask: boolean, added to the scores, or none.
        mask_rank: axes of the mask; 0 where there is none.
        mask_broadcast: axes along which the mask is repeated, of `batch`, `heads`, `queries` and `keys`.
        causal: whether each query sees the keys up to its own position alone.
        window: whether it sees those within a distance alone.
        past, present: whether cached keys and values come in, and whether the extended ones go out.
        padded_kv: whether the number of valid keys is given (`nonpad_kv_seqlen`).
        softcap: whether scores are capped.
        scale: whether the factor of the scores is given.
        value_size: whether values have another head size than keys.
        qk_output: what the fourth output holds (`qk_matmul_output_mode`); None where it is not asked for.
        softmax_precision: the type that the softmax is computed in, where it is given; else empty.
    """

    op: str
    opset: int
    expanded: bool = False
    dtype: str = ""
    layout: str = ""
    heads: Heads = "equal"
    mask: MaskKind = "none"
    mask_rank: int = 0
    mask_broadcast: list[str] = []
    causal: bool = False
    window: bool = False
    past: bool = False
    present: bool = False
    padded_kv: bool = False
    softcap: bool = False
    scale: bool = False
    value_size: bool = False
    qk_output: int | None = None
    softmax_precision: str = ""


class ConformResult(msgspec.Struct, frozen=True, kw_only=True):
    """One backend on one case.

    Attributes:
        status: pass; wrong (a number, shape or dtype is not what the standard expects); unsupported (the backend does
            not take the graph); failed (it crashed, hung, or ended with an error).
        known: id of the known deviation that this is; empty for a new one, and where nothing is off.
        reason: what is off, in one sentence; empty for pass.
        output: the output that the figures are of: the one furthest off.
        times_tolerance: the largest error of an element in units of what the rule allows: above 1 is wrong.
        max_abs: largest absolute error among elements that are finite on both sides.
        rel_l2: relative L2 error.
        off: how many elements are off, of how many (`elements`).
        worst: the element furthest off.
        stderr_tail: of a worker that was lost.
    """

    backend: str
    status: ConformStatus
    known: str = ""
    reason: str = ""
    output: str = ""
    times_tolerance: float | None = None
    max_abs: float | None = None
    rel_l2: float | None = None
    off: int = 0
    elements: int = 0
    worst: WorstElement | None = None
    stderr_tail: str = ""


class ConformCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case of the standard, by the standard's own name, and what each backend made of it."""

    name: str
    features: FeatureRecord
    results: list[ConformResult] = []


class ConformBackend(msgspec.Struct, frozen=True, kw_only=True):
    """One backend: version of the library that computes, and how many cases ended how.

    `known` counts those of `wrong` and `failed` that are known deviations; `left` those that were not reached.
    """

    name: str
    version: str
    passed: int = 0
    wrong: int = 0
    unsupported: int = 0
    failed: int = 0
    known: int = 0
    left: int = 0


class DisagreementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Two backends that ran one case and do not give the same.

    Attributes:
        case: name of the case.
        a, b: backends.
        supported: the one that gives what the standard expects; empty where neither does.
        known: id of the known deviation that explains it; empty for a new one.
    """

    case: str
    a: str
    b: str
    supported: str = ""
    known: str = ""


class KnownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A known deviation that applies to a backend of this record.

    Attributes:
        id: names it in `results[].known`.
        backend: which backend.
        since: version of its library in which it was first seen.
        message: what comes out instead of what the standard expects.
        source: from where it is known.
        seen: cases of this record that show it.
        gone: cases that meet its condition and pass.
    """

    id: str
    backend: str
    since: str
    message: str
    source: str
    seen: list[str] = []
    gone: list[str] = []


class ConformRule(msgspec.Struct, frozen=True, kw_only=True):
    """When an element is right; `sentence` says it in words. None means the part that is derived from the dtype."""

    sentence: str
    rtol: float | None = None
    atol: float | None = None


class ConformRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Backends on the standard's cases.

    Attributes:
        id: name of the folder.
        crosshead: version that wrote it.
        started: ISO 8601 with time zone.
        standard: which library holds the cases, e.g. `onnx 1.23.2`.
        match: what a case's name must hold.
        threads: of every backend.
        verdict: fail (something is off that is not known), suspect (only known deviations, or nothing could be
            judged), pass; None for a run that was stopped.
    """

    schema: str = CONFORM_SCHEMA
    id: str
    crosshead: str
    started: str
    wall_s: float | None = None
    finished: bool = False
    standard: str
    match: str
    threads: int
    rule: ConformRule
    environment: EnvironmentRecord
    backends: list[ConformBackend] = []
    cases: list[ConformCase] = []
    disagreements: list[DisagreementRecord] = []
    known: list[KnownRecord] = []
    notices: list[Notice] = []
    verdict: RunResult | None = None


def encode_conformity(record: ConformRecord) -> bytes:
    """Return a record as indented UTF-8 JSON, its free text scrubbed; equal records give equal bytes."""
    return encode_record(record)


def decode_conformity(data: bytes | str) -> ConformRecord:
    """Return the record that `encode_conformity` wrote. Fields that this version does not know are passed over.

    Raises:
        VersionError: the record has another schema version.
        StoreError: this is no JSON, or no such record.
    """
    return decode_record(data, ConformRecord, CONFORM_SCHEMA, "conformity")


class ConformStore(RunFolder):
    """The folder of one record, open for writing. Make it with `create`."""

    @classmethod
    def create(cls, out: Path, run_id: str) -> Self:
        """Make the folder `<out>/<run_id>`, or with `-2`, `-3` … where that is there already.

        Raises:
            StoreError: it cannot be made, in one line.
        """
        path, made = make_folder(out, run_id)
        return cls(path, made=made)

    def update(self, record: ConformRecord) -> ConformRecord:
        """Replace `conform.json`, and return the record with the folder's name in it.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        record = msgspec.structs.replace(record, id=self.run_id)
        self.write(CONFORM_FILE, encode_conformity(record))
        return record

    def write_summary(self, text: str) -> None:
        """Write `summary.md`; see `crosshead.results.conformity_summary`.

        Raises:
            StoreError: the folder cannot be written, in one line.
        """
        self.write("summary.md", text.encode("utf-8", "replace"))
