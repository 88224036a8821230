"""Tiny artifacts, built by hand: a linear layer with symbolic axes, and whatever graph a test asks for."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from crosshead.export.artifact import (
    Artifact,
    CaseRecord,
    Manifest,
    Precision,
    Source,
    TensorSpec,
    pack_arrays,
    sha256_bytes,
    sha256_file,
    write_artifact,
)
from crosshead.runtimes import Settings, Worker

Arrays = Mapping[str, NDArray[np.generic]]
MakeArtifact = Callable[..., Artifact]
StartWorker = Callable[..., Worker]

_NAMES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
_NAMES |= {"bfloat16": TensorProto.BFLOAT16, "float16": TensorProto.FLOAT16}

WEIGHT = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
BIAS = np.array([0.5, -0.25, 0.125], np.float32)

FACTORY = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return {"y": self.dropout(self.linear(x))}

def linear(width=3):
    torch.set_float32_matmul_precision("medium")
    return Linear(width), {"x": torch.zeros(2, 5, 4)}
"""


def typed(name: str, dtype: str, shape: tuple[int | str, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _NAMES[dtype], shape)


def linear_graph() -> onnx.GraphProto:
    """Y = x W + b over named axes."""
    return helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", "b"], ["y"], name="bias"),
        ],
        "linear",
        [typed("x", "float32", ("batch", "seq", 4))],
        [typed("y", "float32", ("batch", "seq", 3))],
        [onnx.numpy_helper.from_array(WEIGHT, "W"), onnx.numpy_helper.from_array(BIAS, "b")],
    )


def specs(values: object) -> tuple[TensorSpec, ...]:
    numpy_names = {number: name for name, number in _NAMES.items()}
    found = []
    for value in values:  # type: ignore[attr-defined]  # a repeated field of protobuf
        tensor = value.type.tensor_type
        shape = tuple(axis.dim_param or axis.dim_value for axis in tensor.shape.dim)
        found.append(TensorSpec(name=value.name, dtype=numpy_names[tensor.elem_type], shape=shape))
    return tuple(found)


@pytest.fixture(scope="session")
def make_artifact(tmp_path_factory: pytest.TempPathFactory) -> MakeArtifact:
    """Return a function that writes an artifact around a graph."""

    def make(
        graph: onnx.GraphProto,
        cases: Mapping[str, tuple[Arrays, Arrays]] | None = None,
        *,
        opset: int = 17,
        ir_version: int = 10,
        domains: tuple[str, ...] = (),
        precision: Precision = "fp32",
        source: Source | None = None,
        weights: bytes | None = None,
        model: bytes | None = None,
    ) -> Artifact:
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
        data = proto.SerializeToString() if model is None else model
        blobs: dict[str, bytes] = {}
        records = []
        for name, (inputs, expected) in (cases or {}).items():
            packed = pack_arrays(inputs), pack_arrays(expected)
            digests = [sha256_bytes(part) for part in packed]
            blobs |= {f"{digest}.npz": part for digest, part in zip(digests, packed, strict=True)}
            records.append(
                CaseRecord(name=name, reason="a test", seed=0, inputs_sha256=digests[0], expected_sha256=digests[1])
            )
        if weights is not None:
            blobs[f"{sha256_bytes(weights)}.safetensors"] = weights
        ops: dict[str, int] = {}
        for node in graph.node:
            key = f"{node.domain or 'ai.onnx'}::{node.op_type}"
            ops[key] = ops.get(key, 0) + 1
        manifest = Manifest(
            id=graph.name,
            source=source or Source(kind="onnx", name="model.onnx"),
            exporter="by hand",
            exporter_version="0",
            opset=opset,
            form="given",
            precision=precision,
            inputs=specs(graph.input),
            outputs=specs(graph.output),
            model_sha256=sha256_bytes(data),
            weights_sha256=None if weights is None else sha256_bytes(weights),
            cases=tuple(records),
            ops=ops,
        )
        return write_artifact(tmp_path_factory.mktemp("artifact") / graph.name, manifest, model=data, blobs=blobs)

    return make


def linear_case(batch: int, seq: int) -> tuple[Arrays, Arrays]:
    x = np.random.default_rng(7).standard_normal((batch, seq, 4)).astype(np.float32)
    y = x.astype(np.float64) @ WEIGHT.astype(np.float64) + BIAS  # (batch, seq, 3)
    return {"x": x}, {"y": y}


@pytest.fixture(scope="session")
def linear(make_artifact: MakeArtifact) -> Artifact:
    """Return the linear layer with two cases, `1x5` and `2x7`, and no PyTorch source."""
    return make_artifact(linear_graph(), {"1x5": linear_case(1, 5), "2x7": linear_case(2, 7)})


@pytest.fixture(scope="session")
def assert_close() -> Callable[..., None]:
    """Return numpy's `assert_allclose` for arrays of any dtype; its own annotation takes no `NDArray[generic]`."""

    def check(got: Any, want: Any, rtol: float = 1e-7, atol: float = 0.0) -> None:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)

    return check


@pytest.fixture(scope="session")
def typed_value() -> Callable[[str, str, tuple[int | str, ...]], onnx.ValueInfoProto]:
    """Return the function that declares an input or output: name, dtype, shape."""
    return typed


@pytest.fixture(scope="session")
def make_linear(make_artifact: MakeArtifact) -> MakeArtifact:
    """Return a function that writes the linear layer's artifact with a source and weights of the test's own."""

    def make(**fields: Any) -> Artifact:
        return make_artifact(linear_graph(), {"2x7": linear_case(2, 7)}, **fields)

    return make


@pytest.fixture(scope="session")
def linear_state() -> dict[str, NDArray[np.generic]]:
    """Return the linear layer's state as PyTorch names and lays it out."""
    return {"linear.weight": np.ascontiguousarray(WEIGHT.T), "linear.bias": BIAS}  # (out, in), (out,)


@pytest.fixture
def source_folder(tmp_path: Path) -> Path:
    """Return a folder with the user's file `model.py`, whose factory `linear` makes the linear layer."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model.py").write_text(FACTORY)
    return folder


@pytest.fixture
def torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what the backend forces on torch and on imports; in real life it has a process to itself."""
    import torch

    monkeypatch.setattr(sys, "path", list(sys.path))
    backends: Any = torch.backends  # these attributes are made at run time
    modules = set(sys.modules)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    state = torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    backends.mha.set_fastpath_enabled(True)
    torch.set_rng_state(state)
    for name in set(sys.modules) - modules:
        if name.rpartition("_")[2] == "model":
            del sys.modules[name]


@pytest.fixture
def from_source(make_linear: MakeArtifact, linear_state: Arrays, source_folder: Path) -> MakeArtifact:
    """Return a function that makes the linear layer's artifact with its source and weights; fields can be replaced."""

    def make(weights: Arrays | None = None, **fields: Any) -> Artifact:
        import torch
        from safetensors.torch import save

        fields = {"factory": "model.py:linear", "file_sha256": sha256_file(source_folder / "model.py")} | fields
        state = linear_state if weights is None else weights
        stored = save({name: torch.from_numpy(array) for name, array in state.items()})
        return make_linear(source=Source(kind="factory", name="model.py:linear", **fields), weights=stored)

    return make


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    """Return a function that starts a worker on an artifact; all of them are closed in the end."""
    workers: list[Worker] = []

    def start(runtime: str, artifact: Artifact, settings: Settings | None = None, **options: object) -> Worker:
        worker = Worker(runtime, artifact.folder, settings or Settings(), **options)  # type: ignore[arg-type]  # as given
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close()
