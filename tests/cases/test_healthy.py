"""Cases that are right everywhere: they pass on every backend, in every form, and nothing raises an alarm."""

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.cases.conftest import BACKENDS, Compare
from tests.cases.outcome import Outcome

NO_OP = "no-attention-op"
STEPS = {
    "shapes": dict.fromkeys(("past_key", "past_value"), ((2, 4, 0, 16), (2, 4, 6, 16))),
}

HEALTHY: dict[str, tuple[str, dict[str, Any], dict[str, Any], set[str]]] = {
    "causal, fewer queries than keys": ("causal", {}, {}, {"upper-left-causal"}),
    "causal, more queries than keys": ("causal", {"queries": 9, "keys": 5}, {}, {"upper-left-causal"}),
    "grouped heads": ("shared_heads", {}, {}, set()),
    "mask (batch, 1, 1, key)": ("mask_over_keys", {}, {}, set()),
    "mask (query, 1)": ("mask_over_queries", {}, {}, {"fully-masked-row"}),
    "torch's layer": ("torch_attention", {}, {}, set()),
    "torch's layer with weights": ("torch_attention", {"weights": True}, {}, {NO_OP}),
    "encoder layer": ("encoder_layer", {}, {}, set()),
    "padded encoder": ("padded_encoder", {}, {}, set()),
    "complex rotary": ("complex_rotary", {}, {}, {NO_OP}),
    "decoding, past 0 and more": ("decoding", {}, STEPS, set()),
    "an input that is not used": ("ignored_input", {}, {}, {"dropped-input", NO_OP}),
    "a table kept, its axis static": ("remembered_table", {"free": False}, {}, {NO_OP}),
    "large scores in fp32": ("scores_beyond_half", {}, {}, {NO_OP}),
    "wide heads": ("wide_heads", {}, {}, set()),
    "a scale below zero": ("scaled", {"scale": -0.5}, {}, set()),
    "a scale of zero": ("scaled", {"scale": 0.0}, {}, set()),
}
LOOSE = {"complex rotary"}
"""Graphs that hold literals in float32, and are right to within these."""


@pytest.fixture
def outcome(come_out: Compare, name: str) -> Outcome:
    factory, options, plan, _ = HEALTHY[name]
    return come_out(factory, options, **plan)


@pytest.mark.parametrize("name", HEALTHY)
def test_it_passes_everywhere_and_nothing_alarms(outcome: Outcome, name: str) -> None:
    record = outcome.record
    assert (record.verdict, outcome.status) == ("pass", 0)
    assert {artifact.form for artifact in record.artifacts} == {"standard", "decomposed"}
    for artifact in record.artifacts:
        assert artifact.graph.verdict == "pass", artifact.graph.detail
        assert artifact.graph.parameters_equal
        assert artifact.graph.rel_l2 is not None
        # ONNX Runtime's own Attention in float64 is right to 4e-8 only: whoever asked it would never get here
        assert artifact.graph.rel_l2 <= (1e-7 if name in LOOSE else 1e-11)
        assert all(told.startswith("proved: ") for told in artifact.axes.values()), artifact.axes
    for backend in BACKENDS:
        assert {cell.status for cell in outcome.cells(backend)} == {"ok"}
        assert outcome.verdicts(backend) == {"pass"}
        assert backend == "torch-eager" or len(outcome.cells(backend)) == 2 * len(outcome.cells("torch-eager"))
    assert record.agreements
    assert {agreement.verdict for agreement in record.agreements} == {"pass"}
    assert outcome.codes == HEALTHY[name][3]


def test_every_dynamic_axis_was_run_at_1_and_elsewhere(come_out: Compare) -> None:
    for name in ("causal", "shared_heads", "torch_attention", "complex_rotary"):
        for artifact in come_out(name).record.artifacts:
            assert len(artifact.axes) >= 2
            assert all(told.startswith("proved: 1, ") for told in artifact.axes.values())
    for artifact in come_out("decoding", **STEPS).record.artifacts:
        assert artifact.axes["past"].startswith("proved: 0, 1, ")


def test_what_upper_left_means_is_told(come_out: Compare) -> None:
    said = come_out("causal").said("upper-left-causal")
    assert "query_length queries and key_length keys is aligned upper-left" in said
    assert "rarely meant for decoding with a cache" in said


def test_attention_is_the_operator_of_the_standard_and_counted_as_that(come_out: Compare) -> None:
    """Not as something fused: the operator is there before any runtime's optimizer (onnxruntime#23864)."""
    for name in ("causal", "torch_attention", "encoder_layer", "decoding"):
        outcome = come_out(name, **STEPS if name == "decoding" else {})
        standard, decomposed = outcome.artifact("standard").ops, outcome.artifact("decomposed").ops
        assert standard["ai.onnx::Attention"] == 1
        assert "ai.onnx::Attention" not in decomposed
        assert decomposed["ai.onnx::Softmax"] == 1
        assert {op.partition("::")[0] for op in (*standard, *decomposed)} == {"ai.onnx"}


def test_a_layer_whose_weights_are_asked_for_says_that_it_stays_written_out(come_out: Compare) -> None:
    outcome = come_out("torch_attention", {"weights": True})
    assert [output.name for output in outcome.cells("ort-cpu")[0].outputs] == ["output_0", "output_1"]
    assert outcome.cells("ort-cpu")[0].outputs[1].argmax_agreement == 1.0
    assert "no Attention operator in this graph" in outcome.said(NO_OP)


def test_padded_positions_stand_apart_and_the_reference_is_told(come_out: Compare) -> None:
    outcome = come_out("padded_encoder")
    assert outcome.cells("torch-eager")[0].details["mha_fastpath"] == "off"
    for backend in BACKENDS:
        for cell in outcome.cells(backend):
            (output,) = cell.outputs
            assert output.padded is not None
            assert output.padded.positions == 3
            assert 0 < output.padded.max_abs < 1e-5, "with one path on every side they are right there as well"
            assert output.shape == [2, 7, 64]


def test_an_input_that_is_not_used_is_kept_and_bound_by_name(come_out: Compare) -> None:
    outcome = come_out("ignored_input")
    assert "input 'position_ids' does not reach any output; it is kept in the graph's signature" in outcome.said(
        "dropped-input"
    )


@pytest.mark.parametrize("form", ["standard", "decomposed"])
def test_decoding_token_by_token_is_the_full_forward(come_out: Compare, form: str) -> None:
    """Backends that all lost a token would agree with each other."""
    outcome = come_out("decoding", **STEPS)
    model = outcome.finished.folder / outcome.artifact(form).path
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 4, 6, 16)).astype(np.float32)
    past = {name: np.zeros((2, 4, 0, 16), np.float32) for name in ("past_key", "past_value")}
    for step in range(6):
        new = {"query": query, "key": key, "value": value}
        feeds = {name: array[:, :, step : step + 1] for name, array in new.items()}
        output, past["past_key"], past["past_value"] = session.run(None, feeds | past)
        scores = query[:, :, step].astype(np.float64)[:, :, None] @ key[:, :, : step + 1].swapaxes(2, 3) / math.sqrt(16)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        full = weights / weights.sum(-1, keepdims=True) @ value[:, :, : step + 1]
        np.testing.assert_allclose(output, full, rtol=1e-5, atol=1e-6, err_msg=f"token {step}")
    np.testing.assert_array_equal(past["past_key"], key)
