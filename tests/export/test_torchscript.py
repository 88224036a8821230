import functools
import warnings
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from crosshead.export import (
    Artifact,
    CaptureError,
    FormError,
    cases_for,
    export_source,
    load_source,
    lower,
    relative_l2,
)
from crosshead.export._captured import Captured
from crosshead.export.artifact import Arrays
from crosshead.export.capture import capture
from crosshead.export.float64 import module_outputs_float64

TRACED = Path(__file__).parent / "sources" / "traced.py"


@functools.cache
def captured(name: str) -> Captured:
    return capture(load_source(f"{TRACED}:{name}"), "torchscript")


def refusal(name: str) -> str:
    with pytest.raises(CaptureError, match=r"^[^\n]+$") as caught:
        captured(name)
    return str(caught.value)


def run(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    evaluator = ReferenceEvaluator(model)
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))


def exported(text: str, out: Path, opset: int = 18) -> Artifact:
    loaded = load_source(text)
    cases = cases_for(loaded, batches=(2,), lengths=(5,))
    (artifact,) = export_source(loaded, cases, forms=[("decomposed", opset)], out=out, exporter="torchscript")
    return artifact


def test_inputs_and_outputs_have_the_modules_names_and_axes() -> None:
    found = captured("structured")
    inputs = [(value.name, str(value.shape)) for value in found.model.graph.inputs]
    assert inputs == [("unused", "[n]"), ("x", "[batch,3]"), ("y", "[batch,3]")]
    assert found.output_names == ("later", "earlier", "pair_0", "pair_1")
    assert [str(value.shape) for value in found.model.graph.outputs] == ["[batch,3]"] * 4
    assert found.model.opset_imports == {"": 23}
    assert found.exporter == "torch.onnx (torchscript)"


def test_a_dropped_input_is_put_back_and_said(tmp_path: Path) -> None:
    artifact = exported(f"{TRACED}:structured", tmp_path)
    assert [spec.name for spec in artifact.manifest.inputs] == ["unused", "x", "y"]
    (notice,) = [notice for notice in artifact.manifest.notices if notice.code == "dropped-input"]
    assert notice.where == "unused"
    expected = artifact.expected("example")
    got = run(onnx.load(artifact.model_path), artifact.inputs("example"))
    assert list(got) == ["later", "earlier", "pair_0", "pair_1"]
    assert all(relative_l2(got[name], expected[name]) < 1e-6 for name in got)


@pytest.mark.parametrize("block", ["mha", "mha-causal", "encoder-layer-padded"])
@pytest.mark.parametrize("opset", [17, 20, 25])
def test_blocks_are_proved_at_opsets_below_and_above_what_the_exporter_writes(
    block: str, opset: int, tmp_path: Path
) -> None:
    artifact = exported(block, tmp_path, opset)
    assert (artifact.manifest.graph.verdict, artifact.manifest.graph.parameters_equal) == ("pass", True)
    (found,) = onnx.load(artifact.model_path).opset_import
    assert (found.domain, found.version, artifact.manifest.opset) == ("", opset, opset)
    assert artifact.manifest.exporter == "torch.onnx (torchscript)"
    assert "ai.onnx::Attention" not in artifact.manifest.ops


def test_torchs_encoder_layer_is_right_on_its_own_sizes() -> None:
    loaded, found = load_source(f"{TRACED}:encoder_layer"), captured("encoder_layer")
    want = module_outputs_float64(loaded.module, loaded.inputs, found.output_names)
    got = run(ir.to_proto(lower(found.model, "decomposed", 18)), loaded.inputs)
    assert relative_l2(got["output"], want["output"]) < 1e-6


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("grouped", "AssertionError: conversion of scaled_dot_product_attention not implemented if enable_gqa is True"),
        ("complex_numbers", "UnsupportedOperatorError: Exporting the operator 'aten::view_as_complex'"),
    ],
)
def test_what_it_cannot_write_is_one_line_with_the_cause_and_the_other_route(name: str, cause: str) -> None:
    said = refusal(name)
    assert said.startswith(f"traced.py:{name} cannot be exported by TorchScript: {cause}")
    assert said.endswith("; try --exporter dynamo")
    assert str(TRACED.parent) not in said


def test_a_module_that_fails_by_itself_is_not_blamed_on_the_exporter() -> None:
    assert refusal("failing").startswith("traced.py:failing: the module fails on its own inputs: RuntimeError")


def test_the_attention_operator_cannot_be_asked_of_it(tmp_path: Path) -> None:
    loaded = load_source("mha")
    with pytest.raises(FormError, match=r"^form 'standard' is made of the Attention operator"):
        export_source(loaded, cases_for(loaded), forms=[("standard", 23)], out=tmp_path, exporter="torchscript")
    assert not any(tmp_path.iterdir())


def test_exporting_leaves_module_state_and_torch_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    loaded = load_source(f"{TRACED}:normalised", keep_training_mode=True)
    module, before = loaded.module, {name: tensor.clone() for name, tensor in loaded.module.state_dict().items()}
    drawn = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = capture(loaded, "torchscript")
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not isinstance(module.last, torch.Tensor)
    assert module.training
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert torch.backends.mha.get_fastpath_enabled()
    assert {"norm.weight", "norm.bias"} <= set(found.model.graph.initializers)
    assert capfd.readouterr() == ("", "")
