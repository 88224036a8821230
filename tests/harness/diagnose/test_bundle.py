"""A true fault of ONNX Runtime's optimiser, found through the fused node, and shown without crosshead."""

import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.faults.in_process import in_process

from crosshead.harness import Plan
from crosshead.harness.diagnose import Diagnosed, diagnose
from crosshead.results.diagnosis import decode_diagnosis
from crosshead.runtimes import Settings

BLOCKED = ("crosshead", "torch", "msgspec", "hypothesis", "scipy", "onnxscript", "onnx_ir", "psutil", "click", "rich")
BARE = f"""
import runpy, sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ImportError(name + " is not there")

sys.meta_path.insert(0, Bare())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def write_overflowing_fusion(folder: Path) -> tuple[Path, Path]:
    """Scores whose scale is applied first for a reason: fused into the product, they pass the range of float32."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Div", ["x", "large"], ["scaled"], name="scale"),
        helper.make_node("MatMul", ["scaled", "k"], ["scores"], name="scores"),
        helper.make_node("Mul", ["scores", "small"], ["logits"], name="logits"),
        helper.make_node("Softmax", ["logits"], ["y"], name="softmax"),
    ]
    sides = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ("b", "s", 16)), ("k", ("b", 16, "s")), ("y", ("b", "s", "s")))
    ]
    constants = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("large", 1e25), ("small", 1e-20))
    ]
    graph = helper.make_graph(nodes, "fusion", sides[:2], sides[2:], constants)
    path, inputs = folder / "fusion.onnx", folder / "inputs.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    x, k = 1e25 * rng.standard_normal((2, 5, 16)), 1e20 * rng.standard_normal((2, 16, 5))
    np.savez(inputs, x=x.astype(np.float32), k=k.astype(np.float32))
    return path, inputs


@pytest.fixture(scope="module")
def fusion(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    folder = tmp_path_factory.mktemp("fusion")
    path, inputs = write_overflowing_fusion(folder)
    plan = Plan(source=str(path), inputs=inputs, backends=("ort-cpu",), threads=1, out=folder / "runs")
    with in_process():
        return diagnose(plan, zipped=True)


def test_the_fused_node_is_named_with_what_it_stands_for(fusion: Diagnosed) -> None:
    record = fusion.record
    assert record.culprit is not None, record.culprit_message
    assert record.culprit.op == "com.microsoft::FusedMatMul"
    assert record.culprit.graph == "as optimised by ONNX Runtime"
    assert record.cause == "kernel"
    assert "it stands for Div node 'scale', MatMul node 'scores', Mul node 'logits'" in record.culprit.message
    assert record.ladder_message.startswith(
        "with fusion off (optimisation level basic) the error falls from NaN or Inf"
    )
    assert record.smallest is not None
    assert record.smallest.shapes == {"x": [1, 1, 16], "k": [1, 16, 1]}


def test_its_bundle_shows_it_where_there_is_nothing_but_onnxruntime(fusion: Diagnosed) -> None:
    bundle = fusion.record.bundle
    assert bundle is not None
    assert (bundle.script, bundle.cut, bundle.reproduces) == ("onnxruntime", True, True)
    folder = fusion.folder / bundle.path
    command = [sys.executable, "-I", "-c", BARE, str(folder / "reproduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "the fault shows" in done.stdout
    assert zipfile.is_zipfile(folder.with_suffix(".zip"))


def test_a_bundle_says_when_the_fault_is_gone(fusion: Diagnosed, tmp_path: Path) -> None:
    assert fusion.record.bundle is not None
    folder = fusion.folder / fusion.record.bundle.path
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    facts = msgspec.json.decode((tmp_path / "facts.json").read_bytes())
    node = helper.make_node("Identity", ["expected"], [*facts["limits"]])
    with np.load(tmp_path / "expected.npz") as arrays:
        (name,) = arrays.files
        expected = numpy_helper.from_array(arrays[name].astype(np.float32), "expected")
    model = onnx.load(tmp_path / "model.onnx")
    mended = helper.make_graph([node], "mended", model.graph.input, model.graph.output, [expected])
    onnx.save(helper.make_model(mended, opset_imports=model.opset_import, ir_version=9), tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "reproduce.py")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the fault is gone" in done.stdout


def test_the_folder_of_an_earlier_run_is_looked_into(fusion: Diagnosed, tmp_path: Path) -> None:
    with in_process():
        again = diagnose(Plan(source=str(fusion.folder), out=tmp_path / "runs"))
    assert again.record.run == fusion.record.run
    assert again.record.culprit is not None
    assert again.record.culprit.op == "com.microsoft::FusedMatMul"
    written = decode_diagnosis((again.folder / "diagnosis.json").read_bytes())
    assert written.culprit == again.record.culprit
    assert (again.folder / "diagnosis.md").read_text().startswith("# Diagnosis of fusion.onnx")


def test_two_backends_are_held_against_each_other(tmp_path: Path) -> None:
    path, inputs = write_overflowing_fusion(tmp_path)
    plan = Plan(source=str(path), inputs=inputs, backends=("ort-cpu",), threads=1, out=tmp_path / "runs")
    with in_process():
        record = diagnose(plan, against="onnx-reference").record
    assert (record.subject, record.backend, record.against) == ("agreement", "ort-cpu", "onnx-reference")
    assert record.culprit is not None, record.culprit_message
    assert {"scale", "scores", "logits"} >= {*record.culprit.nodes}
    assert record.culprit.other_own_times is not None
    assert record.culprit.other_own_times < 10


def test_a_backend_that_fails_is_looked_into_as_well(tmp_path: Path) -> None:
    path, inputs = write_overflowing_fusion(tmp_path)
    plan = Plan(
        source=str(path),
        inputs=inputs,
        backends=("fake",),
        threads=1,
        out=tmp_path / "runs",
        settings=Settings(fake={"raises": "no room", "fault": "tf32"}),
    )
    with in_process():
        record = diagnose(plan).record
    assert (record.subject, record.cause) == ("crash", "kernel")
    assert record.culprit is not None
    assert "no room" in record.culprit.message
