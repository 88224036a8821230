from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact
from crosshead.runtimes import Settings, get_runtime, peaks
from crosshead.runtimes.base import Step
from crosshead.runtimes.ort import _product_model


def test_products_grow_until_a_call_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(peaks, "timed", lambda step: step())
    monkeypatch.setattr(peaks, "LEAST_S", 2.0)

    def product(size: int) -> Step:
        asked.append(size)
        return lambda: (size / 1024) ** 3

    assert peaks.product_flop_s(product, 0.0) == 2.0 * 2048**3 / 8.0
    assert asked == [1024, 2048]


def test_the_largest_product_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "timed", lambda _: 1e-9)
    asked: list[int] = []

    def product(size: int) -> Step:
        asked.append(size)
        return lambda: None

    assert peaks.product_flop_s(product, 0.0) == 2.0 * 8192**3 / 1e-9
    assert asked == [1024, 2048, 4096, 8192]


def test_the_best_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times, clock = iter([0.5, 0.25, 1.0]), iter([0.0, 0.0, 0.5, 2.0])
    monkeypatch.setattr(peaks, "timed", lambda _: next(times))
    monkeypatch.setattr("crosshead.runtimes.peaks.time.perf_counter", lambda: next(clock))
    assert peaks.best_s(lambda: None, 1.0) == 0.25


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_is_copied(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[NDArray[np.uint8]] = []

    def zeros(size: int, dtype: type[np.uint8]) -> NDArray[np.uint8]:
        made.append(np.zeros(size, dtype=dtype))
        return made[0]

    monkeypatch.setattr("crosshead.runtimes.peaks.np.empty", zeros)
    assert peaks.copy_bytes_s(threads, 0.0, size=1001) > 0.0
    assert made[0].all()


def test_a_worker_measures_its_own_product(linear: Artifact, start_worker: Any) -> None:
    found = start_worker("ort-cpu", linear, Settings(threads=1)).peak(0.01)
    assert found.flop_s > 1e8
    assert found.copy_bytes_s > 1e7


def test_a_backend_without_products_of_its_own_has_no_peak(linear: Artifact, start_worker: Any) -> None:
    found = start_worker("onnx-reference", linear).peak(0.01)
    assert (found.flop_s, found.copy_bytes_s) == (None, None)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_product_of_onnx_runtime_is_one(precision: str) -> None:
    from onnx.reference import ReferenceEvaluator

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 1), dtype=np.float32)
    dtype = {"fp32": np.float32, "fp16": np.float16}[precision]
    model = onnx.load_from_string(_product_model(precision))  # type: ignore[arg-type]  # parametrised
    got: Any
    (got,) = ReferenceEvaluator(model).run(None, {"a": a.astype(dtype), "b": b.astype(dtype)})
    assert got.dtype == dtype
    assert got.tolist() == [[3.0], [12.0]]


@pytest.mark.usefixtures("torch_as_it_was")
def test_the_product_of_torch_is_one(from_source: Any, source_folder: Path) -> None:
    torch = pytest.importorskip("torch")
    settings = Settings(threads=2)
    with get_runtime("torch-eager").open(from_source(), settings, str(source_folder)) as session:
        product = session.product()
        assert product is not None
        out = product(4)()
        assert session.copying_threads() == 2
    assert torch.equal(out, torch.full((4, 4), 4.0))
