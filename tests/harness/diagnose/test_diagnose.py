"""Planted faults, each named by node and kind, and the bundle that shows it elsewhere."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.faults.graph_edits import GRAPH_EDITS
from tests.faults.in_process import exported_as, in_process
from tests.faults.table import SOURCES

from crosshead.harness import Plan
from crosshead.harness.diagnose import Diagnosed, diagnose
from crosshead.runtimes import Settings

SMALL: dict[str, Any] = {"d_model": 64, "num_heads": 4}


def look(tmp_path: Path, source: str, *, fault: str = "", **fields: Any) -> Diagnosed:
    fields = {"options": SMALL, "batches": (2,), "lengths": (9,), "threads": 1, **fields}
    plan = Plan(
        source=source,
        backends=fields.pop("backends", ("fake",)),
        settings=Settings(fake={"fault": fault} if fault else {}),
        out=tmp_path / "runs",
        **fields,
    )
    with in_process():
        return diagnose(plan)


@pytest.mark.parametrize(
    ("fault", "source", "form", "op", "kind"),
    [
        ("softmax-axis", "mha", "standard", "ai.onnx::Attention", "kernel"),
        ("softmax-axis", "mha", "decomposed", "ai.onnx::Softmax", "kernel"),
        ("norm-eps", "encoder-layer", "standard", "ai.onnx::LayerNormalization", "kernel"),
        ("tf32", "mha", "decomposed", "ai.onnx::MatMul", "math-mode"),
        ("heads-swapped", "mha", "standard", "ai.onnx::Attention", "kernel"),
        ("matmul-last-k", "mha", "decomposed", "ai.onnx::MatMul", "kernel"),
        ("dropout", "mha", "decomposed", "ai.onnx::MatMul", "nondeterminism"),
    ],
)
def test_a_faulty_kernel_is_named(tmp_path: Path, fault: str, source: str, form: Any, op: str, kind: str) -> None:
    record = look(tmp_path, source, fault=fault, forms=(form,)).record
    assert record.subject == "output"
    assert record.culprit is not None, record.culprit_message
    assert (record.culprit.op, record.cause) == (op, kind)
    assert record.culprit.own_times is not None
    assert record.culprit.own_times > 10
    assert record.culprit.inherited_error is not None
    assert record.culprit.inherited_error < 1e-5
    assert record.bundle is not None
    assert record.bundle.script == "recorded"
    assert record.smallest is not None
    assert record.smallest.shapes != {}


@pytest.mark.parametrize(
    ("edit", "form", "node"),
    [
        ("heads-swapped", "standard", "edit_Gather"),
        ("mask-inverted", "decomposed", "edit_Not"),
        ("softmax-axis", "decomposed", "node_scaled_dot_product_attention_probabilities"),
        ("weight-last-place", "standard", "node_MatMul_32"),
    ],
)
def test_a_wrong_graph_is_named(tmp_path: Path, edit: str, form: Any, node: str) -> None:
    change = GRAPH_EDITS[edit]

    def dynamo_only(model: onnx.ModelProto) -> onnx.ModelProto:
        """The other exporter writes other nodes, in which the edit finds nothing: its graph stays right."""
        try:
            return change.apply(model)
        except (AssertionError, StopIteration, ValueError):
            return model

    with exported_as(dynamo_only):
        done = look(tmp_path, change.block, forms=(form,), backends=("ort-cpu",), exporter="dynamo")
    record = done.record
    assert (record.subject, record.cause) == ("graph", "graph")
    assert record.culprit is not None, record.culprit_message
    assert record.culprit.node.startswith(node)
    if edit != "weight-last-place":
        assert record.bundle is not None
        assert record.bundle.reproduces, record.bundle.message


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    done = look(tmp_path, "mha", backends=("ort-cpu", "onnx-reference"), stress=False)
    assert not done.found
    assert done.record.message.startswith("Nothing wrong")
    assert (done.folder / "diagnosis.json").is_file()


def test_a_module_that_draws_random_numbers_is_no_wrong_graph(tmp_path: Path) -> None:
    source = f"{SOURCES}:dropping"
    record = look(
        tmp_path, source, options={}, backends=("ort-cpu",), forms=("decomposed",), keep_training_mode=True
    ).record
    assert (record.subject, record.cause) == ("output", "nondeterminism")
    assert "the module draws random numbers" in record.message


def test_two_files_are_held_against_each_other(tmp_path: Path) -> None:
    with exported_as(lambda model: model):
        done = look(tmp_path, "mha", backends=("ort-cpu",), forms=("decomposed",), stress=False)
    old = next((done.folder / "artifacts").glob("*/model.onnx"))
    new = tmp_path / "new.onnx"
    onnx.save(GRAPH_EDITS["heads-swapped"].apply(onnx.load(old)), new)
    shapes = {"query": ((2, 9, 64),)}
    record = look(tmp_path, str(old), against=str(new), shapes=shapes, backends=("ort-cpu",), options={}).record
    assert (record.subject, record.cause) == ("graph", "graph")
    assert record.culprit is not None, record.culprit_message
    assert record.culprit.node.startswith("edit_Gather")
    assert record.bundle is not None
    assert record.bundle.reproduces
