"""Cases that cannot come out right everywhere: what is wrong is named, and where it can be, what to do."""

import re

import pytest
from tests.cases.conftest import Compare

from crosshead.export import CaptureError


def test_bfloat16_is_unsupported_where_there_is_no_kernel_and_measured_elsewhere(come_out: Compare) -> None:
    outcome = come_out("in_bfloat16")
    for cell in outcome.cells("ort-cpu"):
        assert cell.status == "unsupported"
        assert re.search(r"has no CPU kernel for \w+ of bfloat16 ", cell.reason)
        assert not cell.outputs
    for backend in ("torch-eager", "onnx-reference"):
        assert outcome.verdicts(backend) == {"pass"}
    assert {artifact.graph.verdict for artifact in outcome.record.artifacts} == {"pass"}
    assert {agreement.verdict for agreement in outcome.record.agreements} == {"pass"}
    assert outcome.record.verdict == "pass", "what is not supported is no mismatch"
    assert outcome.status == 2, "but it was asked for by name"
    assert not outcome.codes


def test_a_module_left_in_training_mode_is_switched_and_told(come_out: Compare) -> None:
    outcome = come_out("left_training")
    assert (outcome.record.verdict, outcome.status) == ("pass", 0)
    assert outcome.codes == {"training-mode"}
    assert "Dropout" in outcome.said("training-mode")
    assert "--keep-training-mode leaves it" in outcome.said("training-mode")
    for artifact in outcome.record.artifacts:
        assert "ai.onnx::Dropout" not in artifact.ops


def test_training_mode_that_is_insisted_on_is_nondeterministic_and_never_called_wrong(come_out: Compare) -> None:
    outcome = come_out("left_training", keep_training_mode=True, forms=("decomposed",))
    assert (outcome.record.verdict, outcome.status) == ("suspect", 0)
    assert {"training-mode", "nondeterministic"} <= outcome.codes
    assert "left in training mode as asked" in outcome.said("training-mode")
    assert "draws random numbers" in outcome.said("nondeterministic")
    assert "dropout1" in outcome.said("nondeterministic")
    (artifact,) = outcome.record.artifacts
    assert artifact.graph.verdict == "not-asked"
    assert outcome.verdicts("ort-cpu") == {"suspect"}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_table_of_the_first_length_is_named_and_no_graph_is_called_dynamic(come_out: Compare, exporter: str) -> None:
    """At length 1 the table is broadcast, and the example's length is right: only a third one shows it."""
    with pytest.raises(CaptureError) as caught:
        come_out("remembered_table", exporter=exporter)
    said = str(caught.value)
    assert "baked-dimension" in said
    assert "axis 1 ('length') of input 'x' is fixed at 7 by the module (kept kept on the module has that size)" in said
    assert "leave the axis out of the dynamic axes" in said
    assert "\n" not in said


def test_the_innermost_cause_of_an_export_that_failed_is_shown(come_out: Compare) -> None:
    with pytest.raises(CaptureError) as caught:
        come_out("chooses")
    said = str(caught.value)
    assert "GuardOnDataDependentSymNode" in said
    assert "the module branches on values of its inputs: use torch.where" in said
    assert "\n" not in said


def test_keys_of_length_0_go_by_the_form_that_takes_them(come_out: Compare) -> None:
    outcome = come_out("no_keys")
    assert (outcome.record.verdict, outcome.status) == ("pass", 2)
    for backend in ("onnx-reference", "ort-cpu"):
        (refused,) = outcome.cells(backend, "standard")
        assert refused.status == "unsupported"
        assert "the form `decomposed` does" in refused.reason
        assert outcome.verdicts(backend, "decomposed") == {"pass"}
    assert outcome.artifact("standard").graph.verdict == "pass", "in float64 a query without keys gives 0"
    assert outcome.artifact("decomposed").graph.verdict == "pass"


def test_a_mask_of_numbers_that_was_meant_as_booleans_is_told(come_out: Compare) -> None:
    outcome = come_out("number_mask")
    assert (outcome.record.verdict, outcome.status) == ("pass", 0)
    assert outcome.codes == {"mask-looks-boolean"}
    (notice,) = {notice.message: notice for notice in outcome.notices}.values()
    assert notice.where == "attn_mask"
    assert "0 and 1 hide nothing; give booleans, or 0 and -inf" in notice.message
