from pathlib import Path
from typing import Any

from crosshead.export.artifact import Artifact, ArtifactNotice, Manifest, Precision, Source
from crosshead.harness.accuracy import Visit
from crosshead.harness.cells import Cell
from crosshead.harness.overflow import overflow_notices
from crosshead.results import OutputRecord
from crosshead.runtimes import Settings, get_runtime

NOTICE = ArtifactNotice(code="fp16-overflow", message="a value reaches 1e5", where="MatMul node 'product'")


def visited(
    backend: str,
    precision: Precision = "fp16",
    notices: tuple[ArtifactNotice, ...] = (),
    case: str = "c",
    **counts: Any,
) -> Visit:
    manifest = Manifest(
        id="a",
        source=Source(kind="block", name="mha"),
        exporter="by hand",
        exporter_version="0",
        opset=18,
        form="decomposed",
        precision=precision,
        inputs=(),
        outputs=(),
        model_sha256="",
        notices=notices,
    )
    cell = Cell(Artifact(Path(), manifest), get_runtime(backend), case, Settings(), timed=False, by_name=False)
    outputs = [OutputRecord(name="y", verdict="fail", rule="yardstick", **counts)]
    return Visit(cell, cell.record(status="ok", outputs=outputs), outputs=Path("there"))


def test_the_side_that_breaks_is_named_with_what_broke_it() -> None:
    cells = [
        visited("torch-eager", notices=(NOTICE,), nan=512),
        visited("ort-cpu", notices=(NOTICE,)),
        visited("onnx-reference", notices=(NOTICE,), nan=3, expected_nan=1, inf=4),
    ]
    (notice,) = overflow_notices(cells)
    assert (notice.code, notice.where) == ("fp16-overflow", "case c in fp16")
    assert notice.message == (
        "NaN or Inf that the oracle has not: torch-eager (512 NaN), onnx-reference decomposed (2 NaN and 4 Inf); "
        "none: ort-cpu decomposed; "
        "MatMul node 'product' goes beyond 65504, so fp16 does not hold for this model; try bf16 or fp32"
    )


def test_where_every_value_fits_the_kernels_are_to_blame() -> None:
    (notice,) = overflow_notices([visited("torch-eager", inf=1), visited("ort-cpu", case="other")])
    assert notice.message.startswith("NaN or Inf that the oracle has not: torch-eager (1 Inf); no value of the graph")


def test_nothing_is_said_where_nothing_breaks_or_the_precision_is_another() -> None:
    assert (
        overflow_notices([visited("torch-eager", nan=2, expected_nan=2), visited("ort-cpu", notices=(NOTICE,))]) == []
    )
    assert overflow_notices([visited("torch-eager", "bf16", nan=5)]) == []
