"""Hold a manifest that was read from disk against what an export writes: files get edited, and names become paths."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from crosshead.export.artifact._manifest import CaseRecord, Manifest, Precision, TensorSpec

DTYPES: Final = frozenset(
    (
        *("bool", "object", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
)
"""The NumPy names of ONNX's element types."""

UNIT_ROUNDOFFS: Final[Mapping[Precision, float]] = MappingProxyType(
    {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
)
"""Half the distance from 1 to the next number of each precision, relative."""

_COARSENESS: Final[Mapping[str, int]] = {"fp32": 0, "fp16": 1, "bf16": 2, "float16": 1, "bfloat16": 2}
_FLOATS: Final[Mapping[Precision, str]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def manifest_fault(manifest: Manifest) -> str:
    """Return what an export would not have written, in words; empty where there is nothing."""
    return next(_faults(manifest), "")


def _faults(manifest: Manifest) -> Iterator[str]:
    if not _ID.fullmatch(manifest.id):
        yield f"id {manifest.id!r}: expected letters, digits, '_', '.' and '-' alone"
    yield from _digest_faults(manifest)
    for name in manifest.external_sha256:
        if not is_inside(name):
            yield f"external file {name!r}: expected a path inside the artifact's folder"
    if not manifest.outputs:
        yield "outputs: expected one at least"
    for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        yield from _twice(kind, (spec.name for spec in specs))
        for spec in specs:
            yield from _spec_faults(kind, spec)
    yield from _precision_faults(manifest)
    yield from _twice("case", (case.name for case in manifest.all_cases))
    outputs = {spec.name for spec in manifest.outputs}
    for case in manifest.all_cases:
        yield from _case_faults(case, outputs, manifest)


def is_inside(name: str) -> bool:
    """Whether a file's name, relative to a folder, cannot lead out of it."""
    path = PurePosixPath(name)
    return bool(path.parts) and name.isprintable() and not path.is_absolute() and ".." not in path.parts


def _twice(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{kind} {name!r} is there {count} times"


def _digest_faults(manifest: Manifest) -> Iterator[str]:
    digests = {"model_sha256": manifest.model_sha256, **manifest.external_sha256}
    if manifest.weights_sha256 is not None:
        digests["weights_sha256"] = manifest.weights_sha256
    if manifest.source.file_sha256 is not None:
        digests["file_sha256"] = manifest.source.file_sha256
    for case in manifest.all_cases:
        digests[f"inputs of case {case.name!r}"] = case.inputs_sha256
        digests[f"expectation of case {case.name!r}"] = case.expected_sha256
        if case.given_sha256 is not None:
            digests[f"given outputs of case {case.name!r}"] = case.given_sha256
    for what, digest in digests.items():
        if not _DIGEST.fullmatch(digest):
            yield f"{what}: expected 64 hexadecimal digits, got {digest!r:.80}"


def _spec_faults(kind: str, spec: TensorSpec) -> Iterator[str]:
    if spec.dtype not in DTYPES:
        yield f"{kind} {spec.name!r}: no dtype is called {spec.dtype!r}"
    for size in spec.shape:
        if isinstance(size, int) and size < 0:
            yield f"{kind} {spec.name!r}: expected sizes of at least 0, got {size}"


def _precision_faults(manifest: Manifest) -> Iterator[str]:
    precision = manifest.precision
    for spec in manifest.inputs:
        if _COARSENESS.get(spec.dtype, 0) > _COARSENESS[precision]:
            yield f"precision {precision} does not fit input {spec.name!r}, which is {spec.dtype}"
        if manifest.source.cast and spec.dtype in _FLOATS.values() and spec.dtype != _FLOATS[manifest.source.cast]:
            yield f"the source was cast to {manifest.source.cast}, but input {spec.name!r} is {spec.dtype}"
    if manifest.source.cast not in (None, precision):
        yield f"the source was cast to {manifest.source.cast}, but the precision is {precision}"


def _case_faults(case: CaseRecord, outputs: set[str], manifest: Manifest) -> Iterator[str]:
    where = f"case {case.name!r}"
    bare = "=" not in case.name  # `x=1x128,mask=1x128` holds names of inputs, which may hold slashes
    if not case.name.strip() or not case.name.isprintable() or (bare and re.search(r"[/\\]|^\.+$", case.name)):
        yield f"{where}: expected a name such as '1x128', without control characters, and no path"
    for name, yardstick in case.yardsticks.items():
        at = f"{where}, output {name!r}"
        if name not in outputs:
            yield f"{at}: there is no such output"
        native = (yardstick.native, yardstick.native_row, yardstick.native_rounded)
        for term in (yardstick.sensitivity, yardstick.sensitivity_row, *(each or 0.0 for each in native)):
            if not (math.isfinite(term) and term >= 0):
                yield f"{at}: expected finite yardsticks of at least 0, got {term}"
        # Of two files that are compared, the second one travels with the yardsticks of the first.
        known = UNIT_ROUNDOFFS.values() if manifest.form == "given" else (UNIT_ROUNDOFFS[manifest.precision],)
        if yardstick.unit_roundoff not in known:
            yield f"{at}: {yardstick.unit_roundoff} is not the unit roundoff of {manifest.precision}"
    for name, noise in case.noise.items():
        if name not in outputs or not noise >= 0:
            yield f"{where}: noise {noise} of output {name!r}; expected at least 0, of an output that is there"
    for apart in case.apart:
        batch, queries = apart.shape
        if not all(0 <= sequence < batch and 0 <= query < queries for sequence, query in apart.rows):
            yield f"{where}: expected rows inside {apart.shape}, got {list(apart.rows)!s:.80}"
    for axis, size in case.sizes.items():
        if size < 0:
            yield f"{where}: expected sizes of at least 0, got {size} for axis {axis!r}"
