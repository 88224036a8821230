import functools
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from crosshead.export import Artifact, cases_for, export_source, load_source, lower
from crosshead.export._captured import Captured
from crosshead.export._randomness import graph_draws
from crosshead.export.artifact import ArtifactNotice, Form
from crosshead.export.capture import capture
from crosshead.export.forms import Exporter

RANDOM = Path(__file__).parent / "sources" / "random.py"


@functools.cache
def captured(name: str, exporter: Exporter = "dynamo") -> Captured:
    return capture(load_source(f"{RANDOM}:{name}", keep_training_mode=True), exporter)


@pytest.fixture(scope="module")
def export_one(tmp_path_factory: pytest.TempPathFactory) -> "functools._lru_cache_wrapper[Artifact]":
    @functools.cache
    def export(name: str, keep_training_mode: bool = False, exporter: Exporter = "dynamo") -> Artifact:
        loaded = load_source(f"{RANDOM}:{name}", keep_training_mode=keep_training_mode)
        out = tmp_path_factory.mktemp("random")
        forms = [("decomposed", 18)]
        (artifact,) = export_source(loaded, cases_for(loaded), forms=forms, out=out, exporter=exporter)  # type: ignore[arg-type]  # a list of literals
        return artifact

    return export


def notice(artifact: Artifact) -> ArtifactNotice:
    (found,) = [each for each in artifact.manifest.notices if each.code == "nondeterministic"]
    return found


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("left_on", ("Inner 'inner' (native_dropout)",)),
        ("fused_dropout", ("FusedDropout (scaled_dot_product_attention)",)),
        ("noisy", ("Noisy (rand_like)",)),
        ("outside_torch", ()),
        ("drops_nothing", ()),
        (
            "in_training",
            (
                "MultiheadAttention 'self_attn' (scaled_dot_product_attention)",
                "Dropout 'dropout1' (native_dropout)",
                "Dropout 'dropout' (native_dropout)",
                "Dropout 'dropout2' (native_dropout)",
            ),
        ),
    ],
)
def test_steps_that_draw_are_named_by_module_and_operator(name: str, steps: tuple[str, ...]) -> None:
    assert captured(name).draws == steps


@pytest.mark.parametrize(
    ("name", "steps", "kept"),
    [
        ("left_on", ("Dropout node 'inner/Dropout'",), 1),
        ("fused_dropout", ("Dropout node 'Dropout'",), 0),
        ("noisy", ("RandomUniformLike node 'RandomUniformLike'",), 1),
        ("drops_nothing", (), 0),
    ],
)
def test_a_traced_graph_names_its_nodes(name: str, steps: tuple[str, ...], kept: int) -> None:
    found = captured(name, "torchscript")
    assert found.draws == steps
    assert graph_draws(found.model) == kept


def test_a_module_kept_in_training_mode_is_not_asked_for_numbers(
    export_one: "functools._lru_cache_wrapper[Artifact]",
) -> None:
    artifact = export_one("in_training", keep_training_mode=True)
    manifest = artifact.manifest
    assert (manifest.graph.verdict, manifest.graph.rel_l2, manifest.graph.parameters_equal) == ("not-asked", None, True)
    assert "draws random numbers in MultiheadAttention 'self_attn'" in manifest.graph.detail
    assert manifest.ops["ai.onnx::Dropout"] == 3
    said = notice(artifact)
    assert said.where == "random.py:in_training"
    assert "the graph keeps 3 of these 4 steps; leave --keep-training-mode out" in said.message
    assert 0.1 < manifest.cases[0].noise["output"] < 2
    assert manifest.size_cases == ()
    assert set(manifest.sizes_left_out) == {"batch", "seq"}


def test_dropout_that_stays_on_under_eval_is_named(export_one: "functools._lru_cache_wrapper[Artifact]") -> None:
    said = notice(export_one("left_on")).message
    assert said.startswith("the module draws random numbers in Inner 'inner' (native_dropout); two evaluations of it")
    assert said.endswith("F.dropout(training=self.training), dropout_p=0.0 under eval")
    assert "the graph" not in said


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_dropout_that_an_exporter_leaves_out_is_no_fault_of_the_graph(
    exporter: Exporter, export_one: "functools._lru_cache_wrapper[Artifact]"
) -> None:
    artifact = export_one("fused_dropout", exporter=exporter)
    assert artifact.manifest.graph.verdict == "not-asked"
    assert "and the graph leaves it out" in notice(artifact).message


def test_numbers_drawn_outside_of_torch_are_found_by_evaluating_twice(
    export_one: "functools._lru_cache_wrapper[Artifact]",
) -> None:
    artifact = export_one("outside_torch")
    assert artifact.manifest.graph.verdict == "not-asked"
    assert "outside of torch's operators" in notice(artifact).message


def test_whole_numbers_differ_by_a_share(export_one: "functools._lru_cache_wrapper[Artifact]") -> None:
    noise = export_one("noisy").manifest.cases[0].noise
    assert set(noise) == {"output_0", "output_1"}
    assert 0 < noise["output_1"] < 1


@pytest.mark.parametrize(("name", "keep"), [("in_training", False), ("drops_nothing", True)])
def test_a_module_that_draws_nothing_is_asked_as_ever(
    name: str, keep: bool, export_one: "functools._lru_cache_wrapper[Artifact]"
) -> None:
    manifest = export_one(name, keep_training_mode=keep).manifest
    assert manifest.graph.verdict == "pass"
    assert manifest.cases[0].noise == {}
    assert "nondeterministic" not in {each.code for each in manifest.notices}


def test_a_changed_weight_is_found_though_outputs_cannot_be_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoiled(canonical: ir.Model, form: Form, opset: int) -> ir.Model:
        model = lower(canonical, form, opset)
        value = model.graph.initializers["linear2.bias"]
        assert value.const_value is not None
        value.const_value = ir.tensor(np.nextafter(value.const_value.numpy(), np.float32(1)), name=value.name)
        return model

    monkeypatch.setattr("crosshead.export.build.lower", spoiled)
    loaded = load_source(f"{RANDOM}:in_training", keep_training_mode=True)
    (artifact,) = export_source(loaded, cases_for(loaded), forms=[("decomposed", 18)], out=tmp_path)
    assert (artifact.manifest.graph.verdict, artifact.manifest.graph.parameters_equal) == ("fail", False)


def test_finding_it_leaves_the_generators_alone_and_gives_the_same_record(tmp_path: Path) -> None:
    noises, states = [], []
    for number in range(2):
        torch.manual_seed(number)
        before = torch.random.get_rng_state()
        loaded = load_source(f"{RANDOM}:left_on")
        (artifact,) = export_source(loaded, cases_for(loaded), forms=[("decomposed", 18)], out=tmp_path / str(number))
        states.append(torch.equal(before, torch.random.get_rng_state()))
        noises.append(msgspec.json.encode(artifact.manifest.cases[0].noise))
        onnx.checker.check_model(str(artifact.model_path))
    assert all(states)
    assert noises[0] == noises[1]
