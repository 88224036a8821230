"""fp16 and bf16 end to end: what is healthy passes, what leaves the range is told by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crosshead.export import cases_for, export_source, load_source
from crosshead.export.artifact import Artifact, Precision
from crosshead.harness import Finished, Plan, RequestError, compare
from crosshead.harness.accuracy import with_native
from crosshead.harness.judge import judge_output
from crosshead.results import CellRecord, OutputRecord
from crosshead.runtimes import Settings, UnsupportedError, get_runtime

SMALL = {"d_model": 64, "num_heads": 4}
GROUPED = {"d_model": 64, "num_heads": 8, "num_kv_heads": 2}
BLOCKS: dict[str, dict[str, Any]] = {
    "encoder-layer-padded": SMALL,
    "mha-decode": SMALL,
    "llama-gqa": {**GROUPED, "head_dim": 8},
}
FACTORIES = """
import torch
from torch import nn

class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
    def forward(self, x):
        q, k, v = (300 * self.qkv(x)).chunk(3, -1)
        return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v

def beyond():
    torch.manual_seed(0)
    return HandWritten().eval(), {"x": torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))}
"""


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.mha.set_fastpath_enabled(True)


def judged(artifact: Artifact, backend: str, case: str, outputs: Any) -> list[OutputRecord]:
    return [
        judge_output(
            spec.name,
            outputs[spec.name],
            artifact.expected(case)[spec.name],
            expected_dtype=spec.dtype,
            yardstick=artifact.case(case).yardsticks[spec.name],
            use_native=backend != "torch-eager",
        )
        for spec in artifact.manifest.outputs
    ]


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize("block", BLOCKS)
def test_no_healthy_cell_alarms(block: str, tmp_path: Path) -> None:
    loaded = load_source(block, options=BLOCKS[block])
    cases = cases_for(loaded, batches=(2,), lengths=(19,))
    precisions: tuple[Precision, ...] = ("fp16", "bf16")
    artifacts = export_source(
        loaded, cases, forms=[("standard", 23), ("decomposed", 18)], out=tmp_path, precisions=precisions
    )
    assert [artifact.manifest.precision for artifact in artifacts] == ["fp16", "fp16", "bf16", "bf16"]
    assert {artifact.manifest.graph.verdict for artifact in artifacts} == {"pass"}
    assert {notice.code for artifact in artifacts for notice in artifact.manifest.notices} <= {"narrowing-cast"}
    case = cases[0].name
    for precision in precisions:
        mine = [artifact for artifact in artifacts if artifact.manifest.precision == precision]
        outputs = ran(mine[0], "torch-eager", case)
        mine = with_native(mine, mine[0], case, outputs)
        records = judged(mine[0], "torch-eager", case, outputs)
        for artifact in mine:
            records += judged(artifact, "onnx-reference", case, ran(artifact, "onnx-reference", case))
            if precision == "fp16":
                records += judged(artifact, "ort-cpu", case, ran(artifact, "ort-cpu", case))
            else:
                with pytest.raises(UnsupportedError, match="has no CPU kernel for MatMul of bfloat16"):
                    ran(artifact, "ort-cpu", case)
        assert {(record.verdict, record.reason) for record in records} == {("pass", "")}
        assert max(record.times_expected or 0.0 for record in records) < 2.5  # 1.03 was the largest of 1,056
        assert min(record.rel_l2 or 0.0 for record in records) > 1e-4


def ran(artifact: Artifact, backend: str, case: str) -> dict[str, Any]:
    with get_runtime(backend).open(artifact, Settings()) as session:
        return session.run(artifact.inputs(case))


def test_what_is_expected_is_the_value_before_rounding(tmp_path: Path) -> None:
    loaded = load_source("mha", options=SMALL)
    cases = cases_for(loaded, batches=(2,), lengths=(5,))
    kept, half = (
        export_source(loaded, cases, forms=[("decomposed", 18)], out=tmp_path, precisions=precisions)[0]
        for precisions in ((), ("fp16",))
    )
    name = cases[0].name
    assert kept.manifest.precision == "fp32"
    assert np.array_equal(kept.expected(name)["output"], half.expected(name)["output"])
    assert half.inputs(name)["query"].dtype == np.float16
    assert np.array_equal(half.inputs(name)["query"], kept.inputs(name)["query"].astype(np.float16))
    assert half.case(name).yardsticks["output"].unit_roundoff == 2.0**-11
    assert half.case(name).yardsticks["output"].sensitivity > 4000 * kept.case(name).yardsticks["output"].sensitivity
    assert {size.yardsticks["output"].unit_roundoff for size in half.manifest.size_cases} == {2.0**-11}
    assert {half.inputs(size.name)["query"].dtype for size in half.manifest.size_cases} == {np.dtype(np.float16)}


def carried_out(tmp_path: Path, source: str, **fields: Any) -> Finished:
    defaults: dict[str, Any] = {"threads": 1, "forms": ("decomposed",), "out": tmp_path / "runs"}
    return compare(Plan(source=source, **(defaults | fields)))


def by_backend(finished: Finished) -> dict[str, CellRecord]:
    return {cell.backend: cell for cell in finished.record.cells}


@pytest.mark.parametrize("block", ["mha", "encoder-layer"])
def test_fp16_passes_where_a_fixed_tolerance_would_fail_it(block: str, tmp_path: Path) -> None:
    finished = carried_out(
        tmp_path, block, precisions=("fp16",), batches=(1,), lengths=(33,), backends=("torch-eager", "ort-cpu")
    )
    assert finished.record.verdict == "pass"
    (output,) = by_backend(finished)["ort-cpu"].outputs
    assert (output.verdict, output.rule, output.dtype) == ("pass", "yardstick", "float16")
    assert output.max_abs is not None
    assert output.worst is not None
    assert output.max_abs > 1e-5 + 1e-5 * abs(output.worst.want)  # numpy.allclose with rtol and atol 1e-5


def test_scores_beyond_fp16_are_told(tmp_path: Path) -> None:
    (tmp_path / "factories.py").write_text(FACTORIES)
    source = f"{tmp_path / 'factories.py'}:beyond"
    finished = carried_out(
        tmp_path, source, precisions=("fp32", "fp16"), backends=("torch-eager", "ort-cpu", "onnx-reference")
    )
    half = {cell.backend: cell for cell in finished.record.cells if cell.artifact.endswith("-fp16")}
    full = {cell.backend: cell for cell in finished.record.cells if cell.artifact.endswith("-fp32")}
    assert {cell.outputs[0].verdict for cell in full.values()} == {"pass"}
    assert half["torch-eager"].outputs[0].verdict == "fail"
    assert half["torch-eager"].outputs[0].nan > 0
    assert (half["ort-cpu"].outputs[0].verdict, half["ort-cpu"].outputs[0].nan) == ("pass", 0)
    assert half["ort-cpu"].outputs[0].rule == "sensitivity"  # a NaN of PyTorch's is no yardstick
    notices = {notice.code: notice for notice in finished.record.notices}
    assert "sensitivity alone" in notices["native-missing"].message
    message = notices["fp16-overflow"].message
    assert message.startswith("NaN or Inf that the oracle has not: torch-eager (")
    assert "none: ort-cpu decomposed;" in message
    assert "MatMul node " in message
    assert "(the scores) goes beyond 65504, so fp16 does not hold for this model" in message
    assert finished.record.verdict == "fail"


def test_a_graph_made_before_is_not_cast(linear: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"keeps its own precision; .* cannot be cast to fp16"):
        carried_out(tmp_path, str(linear), precisions=("fp16",))
