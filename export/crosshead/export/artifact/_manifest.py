"""What an artifact says of itself: frozen records, read and written as JSON.

This package is the only part of `crosshead.export` that the runtimes may import, so nothing here imports torch or onnx.
"""

from typing import Literal

import msgspec

SCHEMA = "crosshead.artifact/1"

Form = Literal["standard", "decomposed", "given"]
Precision = Literal["fp32", "fp16", "bf16"]
GraphResult = Literal["pass", "fail", "weak", "not-asked"]


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One graph input or output.

    Attributes:
        name: the name it is bound by.
        dtype: a NumPy dtype name (`float32`, `bool`, `int64`, …) or `bfloat16`.
        shape: one entry an axis: a size, or the name of a dynamic axis.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where the graph came from, without any path of the machine it was made on.

    Attributes:
        kind: `block` (built in), `factory` (a user's Python callable) or `onnx` (a file given as it is).
        name: what a person calls it: `mha`, `model.py:factory`, `package.module:factory`, `model.onnx`.
        factory: `module:function` to call, or `file.py:function` (base name only); None for `onnx`.
        options: keyword arguments for the factory (`--set field=value`).
        seed: the seed under which the factory was called.
        file_sha256: digest of the user's `.py` or `.onnx` file; None for built-in blocks and packages.
        training: True when the module was left in training mode on request.
        cast: precision that the module was cast to on request; None when it is as the factory made it.
    """

    kind: Literal["block", "factory", "onnx"]
    name: str
    factory: str | None = None
    options: dict[str, bool | int | float | str | None] = {}
    seed: int = 0
    file_sha256: str | None = None
    training: bool = False
    cast: Precision | None = None


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """The rounding that one output of one case must have, each term a relative L2 error (dimensionless).

    `*_row` is the same quantity for the worst row (last axis) by the row formula of docs/method.md.

    Attributes:
        native: the source framework's own error at this precision; None for a bare `.onnx`, or where it has NaN or Inf.
        sensitivity: how far the float64 oracle moves when inputs and weights move by one unit roundoff.
        unit_roundoff: 2^-24 for fp32, 2^-11 for fp16, 2^-8 for bf16.
        native_rounded: the source framework's own error against the float64 value on inputs and weights that are
            rounded already; fp16 only.
    """

    sensitivity: float
    sensitivity_row: float
    unit_roundoff: float
    native: float | None = None
    native_row: float | None = None
    native_rounded: float | None = None


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the outputs that are told apart and decide nothing.

    Attributes:
        reason: `padded`, `fully masked` or `beyond fp16`: why right implementations may differ there.
        shape: (batch, queries) of the case.
        rows: (batch, query position) of each.
    """

    reason: str
    shape: tuple[int, int]
    rows: tuple[tuple[int, int], ...]


class CaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One set of inputs that travels with an artifact, with what must come out.

    Attributes:
        name: unique in the artifact, e.g. `1x128`.
        reason: why this case is there, in one sentence.
        seed: seed of the inputs.
        inputs_sha256: digest of the blob holding the input arrays (`.npz`).
        expected_sha256: digest of the blob holding the float64 oracle's outputs (`.npz`).
        yardsticks: by output name; floating outputs only.
        sizes: by dynamic axis, the size that this case tries; empty but for those in `Manifest.size_cases`.
        noise: by output name, how far two float64 evaluations of the module on other random numbers lie apart: relative
            L2, or the share that differs of whole numbers and booleans. Empty where the module draws none.
        apart: rows that decide nothing; of those in `Manifest.stress_cases` alone.
        given_sha256: digest of the blob holding outputs that a person gave with the inputs (`.npz`); None without.
        flops: floating-point operations of one call, products alone: by a block's formula, else counted over the graph;
            None where neither could be had. Of those in `Manifest.cases` alone.
        moved_bytes: sizes of inputs, outputs and weights, in the dtypes of the file. Of those in `Manifest.cases`
            alone.
    """

    name: str
    reason: str
    seed: int
    inputs_sha256: str
    expected_sha256: str
    yardsticks: dict[str, Yardstick] = {}
    sizes: dict[str, int] = {}
    noise: dict[str, float] = {}
    apart: tuple[Apart, ...] = ()
    given_sha256: str | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of all its blobs."""
        return (self.inputs_sha256, self.expected_sha256, *([self.given_sha256] if self.given_sha256 else []))

    flops: float | None = None
    moved_bytes: int | None = None


class GraphVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The exported graph in float64 against the module in float64 (docs/method.md, "Is the graph right?").

    Attributes:
        verdict: `not-asked` for a bare `.onnx`, which has no module to be held against.
        rel_l2: largest relative L2 error over outputs and cases; None when not asked.
        literal_sensitivity: the move of the output when float literals move by their own roundoff (L).
        parameters_equal: every parameter the module uses stands in the graph bit for bit.
        detail: what differs, in one sentence; empty when nothing does.
        by_stress: the graph is right on the usual cases, and the stress set alone fails it.
    """

    verdict: GraphResult
    rel_l2: float | None = None
    literal_sensitivity: float | None = None
    parameters_equal: bool | None = None
    detail: str = ""
    by_stress: bool = False


class ArtifactNotice(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person should know about an artifact: a stable code, a sentence, and where it was seen."""

    code: str
    message: str
    where: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json` beside `model.onnx`.

    Attributes:
        schema: version of this format.
        id: names the artifact within a run, e.g. `mha-standard-opset23-fp32`.
        model_sha256: digest of `model.onnx`.
        external_sha256: digest of each external data file, by its name relative to the model.
        weights_sha256: digest of the blob with the module's own state (safetensors); None for a bare `.onnx`.
        roles: what each input is, by its name (`key_padding_mask`: true is padding); empty for a bare `.onnx`.
        ops: count of nodes by `domain::op` (the default domain is written `ai.onnx`).
        size_cases: small cases at other sizes of the dynamic axes, 1 among them; run to prove that no size is baked in,
            never timed.
        sizes_left_out: by dynamic axis, why sizes of it that should be tried are not among `size_cases`.
        stress_cases: small cases that find faults which usual inputs do not show; compared, never timed.
        stress_left_out: by name, why a case of the stress set that applies is not among them.
    """

    schema: str = SCHEMA
    id: str
    source: Source
    exporter: str
    exporter_version: str
    opset: int
    form: Form
    precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    model_sha256: str
    external_sha256: dict[str, str] = {}
    weights_sha256: str | None = None
    cases: tuple[CaseRecord, ...] = ()
    roles: dict[str, str] = {}
    ops: dict[str, int] = {}
    graph: GraphVerdict = GraphVerdict(verdict="not-asked")
    notices: tuple[ArtifactNotice, ...] = ()
    size_cases: tuple[CaseRecord, ...] = ()
    sizes_left_out: dict[str, str] = {}
    stress_cases: tuple[CaseRecord, ...] = ()
    stress_left_out: dict[str, str] = {}

    @property
    def all_cases(self) -> tuple[CaseRecord, ...]:
        """Every case that travels with the artifact, whatever it is for."""
        return (*self.cases, *self.size_cases, *self.stress_cases)
