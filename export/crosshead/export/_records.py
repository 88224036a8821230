"""What is written of cases and ids, the same way for an exported module and for a bare .onnx."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crosshead.export.artifact import (
    UNIT_ROUNDOFFS,
    Arrays,
    CaseRecord,
    Form,
    Precision,
    SourceError,
    TensorSpec,
    Yardstick,
    input_fault,
    pack_arrays,
    sha256_bytes,
)
from crosshead.export.case import Case
from crosshead.export.user_cases import bind_outputs

Sensitivities = Mapping[str, tuple[float, float]]
"""By output name: over the whole output, and over its worst row."""


@dataclass(frozen=True)
class CaseFiles:
    """Cases as they go into an artifact: their records, and the blobs that these name."""

    records: tuple[CaseRecord, ...]
    blobs: dict[str, bytes]


def record_cases(
    cases: Sequence[Case],
    expected: Mapping[str, Arrays],
    sensitivities: Mapping[str, Sensitivities],
    precision: Precision,
) -> CaseFiles:
    """Pack cases.

    Args:
        cases: in the order of the record.
        expected: by case name, the float64 oracle's outputs.
        sensitivities: by case name, of the floating outputs.
        precision: of the graph; gives the unit roundoff.
    """
    records, blobs = [], {}
    for case in cases:
        digests = []
        for arrays in (case.inputs, expected[case.name]):
            data = pack_arrays(arrays)
            digests.append(sha256_bytes(data))
            blobs[f"{digests[-1]}.npz"] = data
        given = None
        if case.given:
            data = pack_arrays(bind_outputs(case.given, list(expected[case.name]), case.name))
            given = sha256_bytes(data)
            blobs[f"{given}.npz"] = data
        yardsticks = {
            name: Yardstick(sensitivity=whole, sensitivity_row=row, unit_roundoff=UNIT_ROUNDOFFS[precision])
            for name, (whole, row) in sensitivities[case.name].items()
            if math.isfinite(whole) and math.isfinite(row)  # an oracle of zeros has no relative error
        }
        records.append(
            CaseRecord(
                name=case.name,
                reason=case.reason,
                seed=case.seed,
                inputs_sha256=digests[0],
                expected_sha256=digests[1],
                yardsticks=yardsticks,
                given_sha256=given,
            )
        )
    return CaseFiles(tuple(records), blobs)


def artifact_id(source: str, form: Form, opset: int, precision: Precision) -> str:
    """Return `<source>-<form>-opset<N>-<precision>`, fit for a folder's name."""
    plain = re.sub(r"\.(py|onnx)(?=:|$)", "", source)
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", plain).strip("-.") or "source"
    return f"{slug}-{form}-opset{opset}-{precision}"


def precision_of(name: str, dtypes: Iterable[str]) -> Precision:
    """Return the precision that decides over the rounding: the coarsest of the floating dtypes met.

    Args:
        name: of the source, for the message.
        dtypes: NumPy dtype names, `bfloat16` included.

    Raises:
        SourceError: float64 alone, which is no precision to deploy in.
    """
    met = set(dtypes)
    if "bfloat16" in met:
        return "bf16"
    if "float16" in met:
        return "fp16"
    if "float32" not in met and "float64" in met:
        raise SourceError(f"{name} computes in float64; expected float32, float16 or bfloat16: call .float() on it")
    return "fp32"


def check_fit(specs: Sequence[TensorSpec], case: Case) -> None:
    """Hold a case against a graph's inputs.

    Raises:
        SourceError: a name, dtype or shape that does not fit; expected and got are named.
    """
    fault = input_fault(specs, case.inputs)
    if fault:
        raise SourceError(f"case {case.name}: {fault}")


def floating_dtype(dtype: np.dtype[np.generic]) -> bool:
    """Whether a dtype holds real numbers, bfloat16 included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"
