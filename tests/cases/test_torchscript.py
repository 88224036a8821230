"""The older exporter: where it cannot, one line says so; where it bakes a length in, that is found by other sizes."""

import pytest
from tests.cases.conftest import Compare

from crosshead.export import CaptureError


@pytest.mark.parametrize(("name", "node"), [("torch_attention", "inner/Reshape"), ("encoder_layer", "self_attn/Resh")])
def test_a_length_that_was_baked_in_is_found_and_named(come_out: Compare, name: str, node: str) -> None:
    outcome = come_out(name, exporter="torchscript")
    assert (outcome.record.verdict, outcome.status) == ("fail", 1)
    (artifact,) = outcome.record.artifacts
    assert artifact.graph.verdict == "fail"
    assert artifact.axes["batch"].startswith("proved: ")
    assert artifact.axes["length"].startswith("not proved: baked in, fails at 1 and 11")
    said = outcome.said("baked-dimension")
    assert "axis 'length' is baked in" in said
    assert f"Reshape '{node}" in said
    for backend in ("torch-eager", "onnx-reference", "ort-cpu"):
        assert outcome.verdicts(backend) == {"pass"}, "the example alone would not have shown it"


def test_what_it_cannot_export_is_one_line(come_out: Compare) -> None:
    with pytest.raises(CaptureError) as caught:
        come_out("shared_heads", exporter="torchscript")
    said = str(caught.value)
    assert "troubles.py:shared_heads cannot be exported by TorchScript" in said
    assert "enable_gqa" in said
    assert "--exporter dynamo" in said
    assert "\n" not in said


def test_an_input_that_it_drops_is_a_notice_and_the_others_are_bound_by_name(come_out: Compare) -> None:
    outcome = come_out("ignored_input", exporter="torchscript")
    assert (outcome.record.verdict, outcome.status) == ("pass", 0)
    assert "'position_ids'" in outcome.said("dropped-input")
    for backend in ("torch-eager", "onnx-reference", "ort-cpu"):
        assert outcome.verdicts(backend) == {"pass"}
