"""What is known of backends, where they fail on graphs of a user's own."""

from pathlib import Path

import pytest
from tests.harness.conformity.graphs import Graph

from crosshead.export.artifact import Artifact, Manifest, Source, TensorSpec, sha256_bytes, write_artifact
from crosshead.harness.conformity.support import support_notices
from crosshead.results import AgreementRecord, CellRecord, OutputRecord, OutputResult


@pytest.fixture
def artifacts(tmp_path: Path) -> dict[str, Artifact]:
    graphs = {"op": Graph(mode=0, softcap=True).model(), "body": Graph(mode=0, softcap=True).expanded()}
    made = {}
    for name, model in graphs.items():
        data = model.SerializeToString()
        manifest = Manifest(
            id=name,
            source=Source(kind="onnx", name=name),
            exporter="test",
            exporter_version="",
            opset=23,
            form="given",
            precision="fp32",
            inputs=tuple(TensorSpec(name=each, dtype="float32", shape=(1,)) for each in ("Q", "K", "V")),
            outputs=(TensorSpec(name="Y", dtype="float32", shape=(1,)),),
            model_sha256=sha256_bytes(data),
            ops={f"ai.onnx::{node.op_type}": 1 for node in model.graph.node},
        )
        made[name] = write_artifact(tmp_path / name, manifest, model=data)
    return made


def cell(artifact: str, backend: str, verdict: OutputResult) -> CellRecord:
    output = OutputRecord(name="Y", verdict=verdict, rule="sensitivity")
    return CellRecord(
        artifact=artifact, backend=backend, case="1", threads=1, settings={}, status="ok", outputs=[output]
    )


def differ(a: str, b: str, verdict: OutputResult = "fail") -> AgreementRecord:
    return AgreementRecord(a=a, b=b, case="1", error=1.0, yardsticks=1e6, verdict=verdict)


def test_where_two_differ_the_standard_supports_the_one_that_is_not_known_to_deviate(
    artifacts: dict[str, Artifact],
) -> None:
    (notice,) = support_notices([], [differ("onnx-reference/op", "ort-cpu/op")], artifacts)
    assert (notice.code, notice.where) == ("known-deviation", "onnx-reference/op")
    assert notice.message.startswith("where backends disagree here, the standard supports the other one: ")
    assert "capped" in notice.message


def test_an_output_that_fails_alone_is_explained_too(artifacts: dict[str, Artifact]) -> None:
    (notice,) = support_notices([cell("op", "onnx-reference", "fail")], [], artifacts)
    assert notice.message.startswith("with qk_matmul_output_mode 0 and softcap")


def test_nothing_is_said_of_what_is_right_or_written_out_or_no_graph_at_all(artifacts: dict[str, Artifact]) -> None:
    cells = [
        cell("op", "onnx-reference", "pass"),
        cell("body", "onnx-reference", "fail"),
        cell("op", "ort-cpu", "fail"),
        cell("op", "torch-eager", "fail"),
        cell("elsewhere", "onnx-reference", "fail"),
    ]
    assert support_notices(cells, [differ("onnx-reference/op", "ort-cpu/op", "pass")], artifacts) == []
