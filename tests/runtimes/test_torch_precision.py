from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosshead.export.artifact import Artifact, Source, sha256_file
from crosshead.runtimes import BackendError, Session, Settings, UnsupportedError, get_runtime

torch: Any = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("torch_as_it_was")

FACTORY = """
import torch
from torch import nn

class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 / 3))
        self.table = torch.ones(3)  # no buffer, so that no cast concerns it
    def forward(self, x):
        return x * self.weight

class Distances(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x)

class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x)

class Mismatch(nn.Module):
    def forward(self, x):
        return x @ torch.ones(3, 3)
"""
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


@pytest.fixture
def opened(make_artifact: Any, typed_value: Any, tmp_path: Path) -> Any:
    """Return a function that opens a module of the factories above as one that was cast to a precision."""
    (tmp_path / "half_model.py").write_text(FACTORY)

    def make(name: str, precision: Any, weights: dict[str, Any] | None = None) -> Session:
        from onnx import helper
        from safetensors.torch import save

        dtype = DTYPES[precision]
        values = [typed_value(each, dtype, (3, 3)) for each in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, values[:1], values[1:])
        source = Source(
            kind="factory",
            name="half",
            factory=f"half_model.py:{name}",
            file_sha256=sha256_file(tmp_path / "half_model.py"),
            cast=precision,
        )
        artifact: Artifact = make_artifact(graph, precision=precision, source=source, weights=save(weights or {}))
        return get_runtime("torch-eager").open(artifact, Settings(), str(tmp_path))

    return make


def ones(precision: str) -> dict[str, Any]:
    import ml_dtypes

    return {"x": np.ones((3, 3), {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[precision])}


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_module_is_cast_and_the_weights_are_the_stored_ones(opened: Any, precision: str) -> None:
    stored = torch.tensor([1.0, 0.1, 0.3]).to(getattr(torch, DTYPES[precision]))
    with opened("Drawn", precision, {"weight": stored}) as session:
        got = session.run(ones(precision))["y"]
    assert got.dtype.name == DTYPES[precision]
    assert got[0].astype(np.float64).tolist() == stored.double().tolist()


def test_weights_of_another_precision_do_not_fit(opened: Any) -> None:
    with pytest.raises(BackendError, match=r"weight is stored as \(3,\) float32 but the module has \(3,\) float16"):
        opened("Drawn", "fp16", {"weight": torch.ones(3)})


@pytest.mark.parametrize(
    ("name", "precision", "said"),
    [
        ("Distances", "fp16", r"^torch [\d.]+\S* has no CPU kernel for cdist of float16$"),
        ("Distances", "bf16", r"^torch [\d.]+\S* has no CPU kernel for cdist of bfloat16$"),
        ("Inverse", "fp16", r"^torch [\d.]+\S* on the CPU: linalg.inv: Low precision dtypes not supported. Got Half$"),
    ],
)
def test_a_missing_kernel_is_told_by_op_and_dtype(opened: Any, name: str, precision: str, said: str) -> None:
    with opened(name, precision) as session, pytest.raises(UnsupportedError, match=said):
        session.run(ones(precision))


def test_a_module_that_mixes_types_fails_by_itself(opened: Any) -> None:
    with opened("Mismatch", "fp16") as session, pytest.raises(BackendError, match="same dtype") as caught:
        session.run(ones("fp16"))
    assert not isinstance(caught.value, UnsupportedError)
