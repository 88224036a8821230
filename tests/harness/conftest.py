"""A folder with one tiny artifact: two cases of a linear layer, with yardsticks, that every backend here can run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from crosshead.export.artifact import (
    Artifact,
    CaseRecord,
    GraphVerdict,
    Manifest,
    Source,
    TensorSpec,
    Yardstick,
    pack_arrays,
    sha256_bytes,
    write_artifact,
)
from crosshead.harness import Plan, timing
from crosshead.runtimes import Settings

WEIGHT = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
NOT_ASKED = GraphVerdict(verdict="not-asked")
YARDSTICK = Yardstick(sensitivity=6e-8, sensitivity_row=6e-8, unit_roundoff=2.0**-24)


def _write_linear(folder: Path, *, graph: GraphVerdict = NOT_ASKED) -> Artifact:
    """Write y = x W over named axes, with the cases 1x3 and 2x5."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("batch", "seq", w)) for n, w in (("x", 4), ("y", 3))]
    node = helper.make_node("MatMul", ["x", "W"], ["y"], name="product")
    body = helper.make_graph([node], "linear", [values[0]], [values[1]], [onnx.numpy_helper.from_array(WEIGHT, "W")])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(body, opset_imports=opsets, ir_version=8).SerializeToString()
    blobs: dict[str, bytes] = {}
    cases: list[CaseRecord] = []
    for batch, seq in ((1, 3), (2, 5)):
        x = np.random.default_rng(batch).standard_normal((batch, seq, 4)).astype(np.float32)
        parts = [pack_arrays({"x": x}), pack_arrays({"y": x.astype(np.float64) @ WEIGHT.astype(np.float64)})]
        digests = [sha256_bytes(part) for part in parts]
        blobs |= {f"{digest}.npz": part for digest, part in zip(digests, parts, strict=True)}
        cases.append(
            CaseRecord(
                name=f"{batch}x{seq}",
                reason="a test",
                seed=0,
                inputs_sha256=digests[0],
                expected_sha256=digests[1],
                yardsticks={"y": YARDSTICK},
            )
        )
    manifest = Manifest(
        id="linear",
        source=Source(kind="onnx", name="linear.onnx"),
        exporter="by hand",
        exporter_version="0",
        opset=17,
        form="given",
        precision="fp32",
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", "seq", 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=("batch", "seq", 3)),),
        model_sha256=sha256_bytes(model),
        cases=tuple(cases),
        ops={"ai.onnx::MatMul": 1},
        graph=graph,
    )
    return write_artifact(folder / "linear", manifest, model=model, blobs=blobs)


@pytest.fixture(scope="session")
def write_linear() -> Callable[..., Artifact]:
    """The function that writes the artifact into a folder."""
    return _write_linear


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the artifact's folder."""
    folder = tmp_path_factory.mktemp("artifacts")
    _write_linear(folder)
    return folder


@pytest.fixture
def make_plan(linear: Path, tmp_path: Path) -> Callable[..., Plan]:
    """Return a function that makes a short plan over the tiny artifact."""

    def make(*, fake: dict[str, Any] | None = None, **fields: Any) -> Plan:
        defaults: dict[str, Any] = {
            "source": str(linear),
            "backends": ("fake",),
            "out": tmp_path / "runs",
            "processes": 2,
            "time_budget_s": 0.3,
            "cell_timeout_s": 20.0,
            "threads": 1,
            "settings": Settings(fake=fake or {}),
        }
        return Plan(**defaults | fields)

    return make


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other program on the machine void a cell: tests run beside each other."""
    monkeypatch.setattr(timing, "why_void", lambda seen, threads, cores: "")
