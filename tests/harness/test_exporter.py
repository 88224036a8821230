"""Which of torch's exporters is asked, and what a person is told where the older one cannot."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from crosshead.export import FormError
from crosshead.harness import Plan, RequestError, compare
from crosshead.harness.cli import _main, cli
from crosshead.harness.verdict import exit_status

TRACED = Path(__file__).parents[1] / "export" / "sources" / "traced.py"


def test_a_plan_exports_the_forms_that_its_exporter_offers() -> None:
    assert Plan().form_opsets() == [("standard", 23), ("decomposed", 18)]
    assert Plan(exporter="torchscript").form_opsets() == [("decomposed", 18)]
    assert Plan(exporter="torchscript", opsets=(17, 25)).form_opsets() == [("decomposed", 17), ("decomposed", 25)]
    with pytest.raises(FormError, match=r"^form 'standard' is made of the Attention operator"):
        Plan(exporter="torchscript", forms=("standard",)).form_opsets()
    with pytest.raises(FormError, match=r"^form 'decomposed' is offered at opset 17 to 25, got opset 16"):
        Plan(exporter="torchscript", opsets=(16,)).form_opsets()


def test_an_exporter_that_is_not_offered_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^exporter 'caffe2' is not offered; offered: dynamo, torchscript$"):
        Plan(exporter="caffe2")  # type: ignore[arg-type]  # wrong on purpose
    assert CliRunner().invoke(cli, ["export", "--exporter", "caffe2"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mha", "--form", "standard"], "ask for --form decomposed, or --exporter dynamo"),
        ([f"{TRACED}:grouped"], "AssertionError: conversion of scaled_dot_product_attention"),
    ],
)
def test_what_it_cannot_do_is_one_line_and_status_2(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _main(["compare", *arguments, "--exporter", "torchscript", "--quiet", "--out", str(tmp_path / "out")]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert err.endswith("--exporter dynamo\n")
    assert not list((tmp_path / "out").glob("*"))


def test_a_dropped_input_is_a_notice_and_every_backend_runs(tmp_path: Path) -> None:
    finished = compare(
        Plan(
            source=f"{TRACED}:structured",
            exporter="torchscript",
            backends=("torch-eager", "ort-cpu", "onnx-reference"),
            out=tmp_path,
            threads=1,
        )
    )
    record = finished.record
    assert record.plan.exporter == "torchscript"
    assert [artifact.exporter for artifact in record.artifacts] == ["torch.onnx (torchscript)"]
    assert [(notice.code, notice.where) for notice in record.artifacts[0].notices] == [("dropped-input", "unused")]
    assert {cell.backend: [output.verdict for output in cell.outputs] for cell in record.cells} == dict.fromkeys(
        ("torch-eager", "ort-cpu", "onnx-reference"), ["pass"] * 4
    )
    assert exit_status(record, by_name=finished.by_name, strict=True, interrupted=False) == 0


def test_a_size_that_it_bakes_in_is_found_by_running_other_sizes(tmp_path: Path) -> None:
    """pytorch#122321: the example's length stands in a Reshape of `nn.MultiheadAttention`."""
    finished = compare(
        Plan(source=f"{TRACED}:torch_mha", exporter="torchscript", backends=("ort-cpu",), out=tmp_path, threads=1)
    )
    (artifact,) = finished.record.artifacts
    assert artifact.graph.verdict == "fail"
    baked = [notice for notice in artifact.notices if notice.code == "baked-dimension"]
    assert baked
    assert "axis 'seq' is baked in" in baked[0].message
    assert "Reshape" in baked[0].message
    assert artifact.axes["batch"].startswith("proved: ")
    assert exit_status(finished.record, by_name=(), strict=False, interrupted=False) == 1
