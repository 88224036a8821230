import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load
from torch import nn

import crosshead.export._graph_file as graph_file
import crosshead.export.build as build
from crosshead.export import (
    Artifact,
    ArtifactError,
    CaptureError,
    Case,
    FormError,
    SourceError,
    cases_for,
    export_source,
    load_source,
    lower,
    relative_l2,
)
from crosshead.export._records import artifact_id, precision_of
from crosshead.export.artifact import Form
from crosshead.export.build import write_weights

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"
PAIRS: list[tuple[Form, int]] = [("standard", 23), ("decomposed", 18)]


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    loaded = load_source(f"{TROUBLES}:tied", seed=4)
    cases = [*cases_for(loaded), *cases_for(loaded, shapes={"x": [(1, 1, 8), (3, 9, 8)]})]
    steps: list[str] = []
    artifacts = export_source(
        loaded, cases, forms=[*PAIRS, PAIRS[0]], out=tmp_path_factory.mktemp("artifacts"), on_step=steps.append
    )
    assert steps[0] == "exporting troubles.py:tied"
    assert "lowering to decomposed, opset 18" in steps
    return artifacts


def notices(name: str, out: Path, pairs: list[tuple[Form, int]] = PAIRS[:1]) -> dict[str, str]:
    loaded = load_source(f"{TROUBLES}:{name}")
    (artifact,) = export_source(loaded, cases_for(loaded), forms=pairs, out=out)
    return {notice.code: notice.message for notice in artifact.manifest.notices}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_form_becomes_a_whole_artifact(tied: list[Artifact]) -> None:
    assert [artifact.id for artifact in tied] == [
        "troubles-tied-standard-opset23-fp32",
        "troubles-tied-decomposed-opset18-fp32",
    ]
    for artifact, (form, opset) in zip(tied, PAIRS, strict=True):
        artifact.verify()
        assert Artifact.load(artifact.folder) == artifact
        assert names(artifact.folder) == ["blobs", "manifest.json", "model.onnx"]
        manifest = artifact.manifest
        assert (manifest.form, manifest.opset, manifest.precision) == (form, opset, "fp32")
        assert manifest.exporter == "torch.onnx (dynamo)"
        assert [(spec.name, spec.dtype, spec.shape) for spec in manifest.inputs] == [
            ("x", "float32", ("batch", "seq", 8))
        ]
        assert [(spec.name, spec.dtype, spec.shape) for spec in manifest.outputs] == [
            ("output", "float32", ("batch", "seq", 8))
        ]
        assert manifest.source.factory == "troubles.py:tied"
        assert manifest.source.seed == 4
    assert names(tied[0].folder.parent) == sorted(artifact.id for artifact in tied)


def test_the_graph_is_the_modules_function_in_float64(tied: list[Artifact]) -> None:
    for artifact in tied:
        verdict = artifact.manifest.graph
        assert verdict.verdict == "pass"
        assert verdict.parameters_equal
        assert verdict.rel_l2 is not None
        assert verdict.rel_l2 < 1e-14


def test_the_file_is_valid_at_the_opset_asked_and_holds_what_the_manifest_counts(tied: list[Artifact]) -> None:
    for artifact, (_, opset) in zip(tied, PAIRS, strict=True):
        model = onnx.load(artifact.model_path)
        onnx.checker.check_model(model, full_check=True)
        assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset}
        assert model.ir_version == onnx.helper.find_min_ir_version_for(list(model.opset_import))
        assert sum(artifact.manifest.ops.values()) == len(model.graph.node)
    assert tied[0].manifest.ops["ai.onnx::Attention"] == 1
    assert "ai.onnx::Attention" not in tied[1].manifest.ops
    assert tied[1].manifest.ops["ai.onnx::Softmax"] == 1


def test_cases_and_expectations_travel_and_any_backend_can_be_held_against_them(tied: list[Artifact]) -> None:
    for artifact in tied:
        session = onnxruntime.InferenceSession(artifact.model_path, providers=["CPUExecutionProvider"])
        assert [case.name for case in artifact.manifest.cases] == ["example", "1x1x8", "3x9x8"]
        for case in artifact.manifest.cases:
            inputs, expected = artifact.inputs(case.name), artifact.expected(case.name)
            assert expected["output"].dtype == np.float64
            yardstick = case.yardsticks["output"]
            assert yardstick.native is None
            assert yardstick.unit_roundoff == 2.0**-24
            assert 1e-9 < yardstick.sensitivity <= yardstick.sensitivity_row
            (got,) = session.run(None, inputs)
            assert relative_l2(got, expected["output"]) < 10 * max(yardstick.sensitivity, yardstick.unit_roundoff / 2)
    counted = [
        [msgspec.structs.replace(case, flops=None, moved_bytes=None) for case in artifact.manifest.cases]
        for artifact in tied
    ]
    assert counted[0] == counted[1], "but for what a form asks of a machine"


def test_the_modules_own_state_travels_tied_weights_once(tied: list[Artifact]) -> None:
    loaded = load_source(f"{TROUBLES}:tied", seed=4)
    for artifact in tied:
        assert artifact.weights_path is not None
        state = load(artifact.weights_path.read_bytes())
        assert sorted(state) == ["first.bias", "first.weight", "second.bias", "table"]
        own = dict(loaded.module.state_dict())
        assert all(np.array_equal(state[name], own[name].numpy()) for name in state if name in own)


class Packed(nn.Module):
    """Weights that are parts of one tensor, one that is expanded, an empty one, and one that is none."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.arange(6.0)
        self.register_buffer("first", both[:3])
        self.register_buffer("second", both[3:])
        self.register_buffer("turned", both.reshape(2, 3).T)
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.angles: torch.Tensor
        self.register_buffer("angles", torch.polar(torch.ones(2), torch.ones(2)), persistent=False)

    def get_extra_state(self) -> str:
        return "a note"


def test_weights_that_share_memory_are_stored_apart(tmp_path: Path) -> None:
    write_weights(Packed(), tmp_path / "a")
    state = load((tmp_path / "a").read_bytes())
    assert {name: array.shape for name, array in state.items()} == {
        "angles": (2,),
        "empty": (0, 3),
        "first": (3,),
        "second": (3,),
        "turned": (3, 2),
        "wide": (4,),
    }
    assert state["second"].tolist() == [3.0, 4.0, 5.0]
    assert state["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    write_weights(Packed(), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    packed = Packed()
    packed.angles = packed.angles.to(torch.complex128)
    with pytest.raises(SourceError, match=r"torch\.complex128, which safetensors cannot store"):
        write_weights(packed, tmp_path / "c")


def test_the_files_tell_nothing_of_the_machine(tied: list[Artifact]) -> None:
    secrets = [str(TROUBLES.parent), str(Path.cwd()), str(Path.home()), sys.prefix, socket.gethostname(), 'File "']
    for artifact in tied:
        for path in artifact.folder.rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            assert [secret for secret in secrets if secret.encode() in data] == []
        model = onnx.load(artifact.model_path)
        assert not re.search(rb"stack_trace|metadata|doc_string", model.SerializeToString())


EXPORT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from crosshead.export import cases_for, export_source, load_source
loaded = load_source("mha-masked", options={"d_model": 16, "num_heads": 2}, seed=1)
cases = cases_for(loaded, batches=(2,), lengths=(5,))
export_source(loaded, cases, forms=[("standard", 24), ("decomposed", 17)], out=Path(sys.argv[1]))
"""


def test_the_same_source_gives_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXPORT, str(there)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    loaded = load_source("mha-masked", options={"d_model": 16, "num_heads": 2}, seed=1)
    export_source(
        loaded, cases_for(loaded, batches=(2,), lengths=(5,)), forms=[("standard", 24), ("decomposed", 17)], out=here
    )
    first, second = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()} for top in (here, there)
    )
    assert len(first) == 2 * (3 + 2 * 6)  # graph, manifest, weights; inputs and outputs of the case and of five sizes
    assert first == second


def test_large_weights_go_to_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "LARGEST_BYTES", 1000)
    loaded = load_source("mha", options={"d_model": 32, "num_heads": 2})
    cases = cases_for(loaded, batches=(1,), lengths=(3,))
    (artifact,) = export_source(loaded, cases, forms=PAIRS[:1], out=tmp_path)
    artifact.verify()
    assert names(artifact.folder) == ["blobs", "manifest.json", "model.onnx", "model.onnx.data"]
    assert list(artifact.manifest.external_sha256) == ["model.onnx.data"]
    assert artifact.model_path.stat().st_size < 4096
    assert artifact.manifest.graph.verdict == "pass"
    session = onnxruntime.InferenceSession(artifact.model_path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, artifact.inputs("1x3"))
    assert relative_l2(got, artifact.expected("1x3")["output"]) < 1e-6
    data = artifact.folder / "model.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(ArtifactError, match=r"model\.onnx\.data was changed after it was written"):
        artifact.verify()


def test_a_graph_too_large_for_the_memory_is_written_and_not_called_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_file, "LARGEST_BYTES", 1000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10_000))
    loaded = load_source("feed-forward", options={"d_model": 16, "d_ff": 32})
    (artifact,) = export_source(loaded, cases_for(loaded, batches=(1,), lengths=(3,)), forms=PAIRS[:1], out=tmp_path)
    artifact.verify()
    assert artifact.manifest.graph.verdict == "weak"
    assert "not evaluated in float64: that takes about 0 GB" in artifact.manifest.graph.detail


def test_what_a_person_should_know_travels_with_the_artifact(tmp_path: Path) -> None:
    found = notices("causal_unequal_lengths", tmp_path)
    assert "q_len queries and kv_len keys is aligned upper-left" in found["upper-left-causal"]
    assert set(found) == {"upper-left-causal", "roles-guessed"}
    found = notices("unused_input", tmp_path)
    assert "'unused'" in found["dropped-input"]
    assert set(found) == {"dropped-input", "no-attention-op"}
    assert set(notices("unused_input", tmp_path, PAIRS[1:])) == {"dropped-input"}
    found = notices("fully_masked_row", tmp_path)
    assert "mask 'attn_mask' keeps no key in some row (example)" in found["fully-masked-row"]


def test_bfloat16_is_its_own_precision(tmp_path: Path) -> None:
    loaded = load_source(f"{TROUBLES}:bfloat16_core")
    (artifact,) = export_source(loaded, cases_for(loaded), forms=PAIRS[:1], out=tmp_path)
    assert artifact.id.endswith("-bf16")
    assert artifact.manifest.cases[0].yardsticks["output"].unit_roundoff == 2.0**-8
    assert {spec.dtype for spec in artifact.manifest.inputs} == {"bfloat16"}
    assert artifact.inputs("example")["query"].dtype.name == "bfloat16"


def test_a_past_of_any_length_none_included(tmp_path: Path) -> None:
    loaded = load_source("mha-decode", options={"d_model": 16, "num_heads": 2})
    cases = cases_for(loaded, batches=(3,), lengths=(1, 4, 12))
    (artifact,) = export_source(loaded, cases, forms=PAIRS[:1], out=tmp_path)
    assert artifact.manifest.graph.verdict == "pass"
    for length in (1, 4, 12):
        assert artifact.inputs(f"3x{length}")["past_key"].shape[2] == length - 1
        assert artifact.expected(f"3x{length}")["present_key"].shape == (3, 2, length, 8)


def test_a_request_that_cannot_be_carried_out_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_source(f"{TROUBLES}:tied")
    (case,) = cases_for(loaded)
    out = tmp_path / "new" / "out"

    def refused(error: type[Exception], **changes: object) -> str:
        arguments: dict[str, object] = {"cases": [case], "forms": PAIRS, **changes}
        source = arguments.pop("source", loaded)
        with pytest.raises(error, match=r"^[^\n]+$") as caught:
            export_source(source, arguments["cases"], forms=arguments["forms"], out=out)  # type: ignore[arg-type]  # wrong on purpose
        assert names(tmp_path) == []
        return str(caught.value)

    assert "offered at opset 23 to 25, got opset 18" in refused(FormError, forms=[("standard", 18)])
    assert "unknown form 'fused'" in refused(FormError, forms=[("fused", 23)])
    assert "no case was given" in refused(SourceError, cases=[])
    wrong = Case("c", "", 0, {"x": np.zeros((2, 5, 9), np.float32)})
    assert "case c: input 'x': expected shape (batch, seq, 8), got (2, 5, 9); axis 2 is fixed at 8" in refused(
        SourceError, cases=[wrong]
    )
    wrong = Case("c", "", 0, {"x": np.zeros((2, 5, 8), np.float64)})
    assert "case c: input 'x': expected dtype float32, got float64" in refused(SourceError, cases=[wrong])
    cached = load_source(f"{TROUBLES}:table_cached_on_first_call")
    assert "baked-dimension" in refused(CaptureError, source=cached, cases=cases_for(cached))
    double = replace(loaded, module=loaded.module.double(), inputs={"x": case.inputs["x"].astype(np.float64)})
    assert "computes in float64" in refused(SourceError, source=double, cases=cases_for(double))
    loaded.module.float()

    monkeypatch.setattr(
        build, "lower", lambda model, form, opset: lower(model, form, opset + 1 if form == "decomposed" else opset)
    )
    said = refused(FormError)
    assert said == (
        "troubles.py:tied, form decomposed, opset 18: asked for opset 18, the graph came out at 19; "
        "ask for another opset or form"
    )


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_exported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    loaded = load_source(f"{TROUBLES}:tied")
    steps: list[str] = []
    with pytest.raises(ArtifactError, match="give a writable folder with --out"):
        export_source(loaded, cases_for(loaded), forms=PAIRS, out=tmp_path / "file" / "out", on_step=steps.append)
    assert steps == []


def test_the_id_of_an_artifact_is_fit_for_a_folder() -> None:
    assert artifact_id("mha", "standard", 23, "fp32") == "mha-standard-opset23-fp32"
    assert artifact_id("model.py:make", "decomposed", 18, "fp32") == "model-make-decomposed-opset18-fp32"
    assert artifact_id("a.b.c:make_it", "standard", 24, "bf16") == "a.b.c-make_it-standard-opset24-bf16"
    assert artifact_id("net v2 (final).onnx", "given", 17, "fp32") == "net-v2-final-given-opset17-fp32"
    assert artifact_id(".onnx", "given", 17, "fp16") == "source-given-opset17-fp16"


def test_the_precision_is_that_of_the_coarsest_type() -> None:
    assert precision_of("m", ["float32", "int64", "float64"]) == "fp32"
    assert precision_of("m", ["float32", "float16"]) == "fp16"
    assert precision_of("m", ["float32", "bfloat16", "float16"]) == "bf16"
    assert precision_of("m", ["int64", "bool"]) == "fp32"
    with pytest.raises(SourceError, match="m computes in float64"):
        precision_of("m", ["float64", "int64"])
