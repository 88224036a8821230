"""Half precision: where it holds, it passes by the rounding it must have; where it does not, that is said."""

import pytest
from tests.cases.conftest import Compare

from crosshead.runtimes import Available, get_runtime


def test_scores_beyond_half_say_who_has_nan_and_what_overflowed(come_out: Compare) -> None:
    outcome = come_out("scores_beyond_half", precisions=("fp16",))
    assert (outcome.record.verdict, outcome.status) == ("fail", 1)
    for backend in ("torch-eager", "onnx-reference"):
        for cell in outcome.cells(backend):
            (output,) = cell.outputs
            assert (output.verdict, output.expected_nan) == ("fail", 0)
            assert output.nan > 0
            assert "NaN here, 0 in the oracle" in output.reason
    assert outcome.verdicts("ort-cpu") == {"pass"}, "it computes in fp32 through casts"
    said = outcome.said("fp16-overflow")
    assert "torch-eager (" in said
    assert "none: ort-cpu standard, ort-cpu decomposed" in said
    assert "(the scores) goes beyond 65504, so fp16 does not hold for this model" in said
    assert {artifact.graph.verdict for artifact in outcome.record.artifacts} == {"pass"}, "the graph is not at fault"


@pytest.mark.parametrize("name", ["wide_heads", "encoder_layer", "torch_attention"])
def test_half_precision_passes_where_a_fixed_1e_5_would_fail_it(come_out: Compare, name: str) -> None:
    outcome = come_out(name, precisions=("fp16",))
    assert (outcome.record.verdict, outcome.status) == ("pass", 0)
    for backend in ("torch-eager", "onnx-reference", "ort-cpu"):
        assert outcome.verdicts(backend) == {"pass"}
    for cell in outcome.cells("ort-cpu"):
        (output,) = cell.outputs
        assert output.nan == 0
        assert output.max_abs is not None
        assert output.max_abs > 1e-5
        assert output.dtype == "float16"
    assert not outcome.codes


@pytest.mark.cuda
def test_wide_heads_in_half_precision_on_cuda(come_out: Compare) -> None:
    if not isinstance(get_runtime("ort-cuda").probe(), Available):
        pytest.skip("no NVIDIA GPU, or no onnxruntime-gpu")
    outcome = come_out("wide_heads", precisions=("fp16",), backends=("ort-cpu", "ort-cuda"))
    for cell in outcome.cells("ort-cuda"):
        assert [output.nan for output in cell.outputs] == [0]
    assert outcome.verdicts("ort-cuda") == {"pass"}
