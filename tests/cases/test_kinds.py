"""Troubles that belong to no module: providers, threads, first calls, memory, and what runtimes read differently."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser
from tests.cases.conftest import BACKENDS, TROUBLES
from tests.cases.outcome import Outcome

from crosshead.export import lower
from crosshead.export._graph_file import count_ops
from crosshead.harness import Plan, compare, run
from crosshead.harness.cli import _main
from crosshead.harness.plan import default_threads
from crosshead.runtimes import Available, get_runtime

QKV = "float[2,4,5,8] q, float[2,4,7,8] k, float[2,4,7,8] v"


def parsed(inputs: str, outputs: str, call: str, domains: str = "") -> onnx.ModelProto:
    header = f'<ir_version: 11, opset_import: ["" : 23{domains}]>'
    return parser.parse_model(f"{header} g ({inputs}) => ({outputs}) {{ {call} }}")


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One thread more than there are cores, and memory over varying lengths."""
    plan = Plan(
        source=f"{TROUBLES}:torch_attention",
        backends=BACKENDS[::2],
        forms=("decomposed",),
        threads=default_threads() + 1,
        time_budget_s=1.0,
        processes=2,
        growth=20,
        out=tmp_path_factory.mktemp("timed"),
    )
    return Outcome(run(plan))


@pytest.mark.skipif(isinstance(get_runtime("ort-cuda").probe(), Available), reason="this machine has the provider")
def test_a_provider_that_is_not_there_ends_the_run_and_has_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime would run on the CPU under any name, with a warning at most (onnxruntime#23372)."""
    asked = ["compare", f"{TROUBLES}:torch_attention", "--backend", "ort-cuda", "--backend", "ort-cpu"]
    assert _main([*asked, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "backend ort-cuda is not available here" in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_more_threads_than_cores_are_warned_of_and_the_same_on_every_side(timed: Outcome) -> None:
    """Spinning threads wait for each other: 106 ms against 6.3 ms were seen (onnxruntime#13808)."""
    threads = default_threads() + 1
    assert f"{threads} threads on {threads - 1} cores" in timed.said("threads-over-cores")
    assert f"--threads {threads - 1} or fewer" in timed.said("threads-over-cores")
    assert {cell.threads for cell in timed.record.cells} == {threads}
    assert timed.cells("torch-eager")[0].details["threads"] == str(threads)
    assert timed.record.plan.threads == threads


def test_the_first_call_stands_apart(timed: Outcome) -> None:
    """It costs many times the median, and is no part of it (onnxruntime#12197)."""
    for cell in timed.record.cells:
        assert cell.latency is not None
        assert cell.latency.first_call_s > 0
        assert cell.latency.session_s > 0
        assert cell.latency.samples > cell.latency.processes


def test_memory_and_its_growth_over_varying_lengths_are_read(timed: Outcome) -> None:
    """150 runs at varying lengths held 125 MB more by default (onnxruntime#11118)."""
    for cell in timed.record.cells:
        assert cell.peak_rss_bytes is not None
        assert cell.peak_rss_bytes > 10_000_000
    (cell,) = timed.cells("ort-cpu")
    assert cell.growth is not None
    assert cell.growth.calls == 20
    assert cell.growth.axes == ["length"]
    assert cell.growth.shapes > 1
    assert cell.growth.rss_start_bytes > 10_000_000
    assert cell.growth.rss_end_bytes > 10_000_000


def test_operators_are_counted_by_domain() -> None:
    """An optimizer counts the standard's Attention among what it fused (onnxruntime#23864)."""
    model = parsed(
        QKV,
        "float[2,4,5,8] y, float[2,4,5,8] z",
        "y = Attention(q, k, v)  z = com.microsoft.Attention(q, k, v)",
        ', "com.microsoft" : 1',
    )
    assert count_ops(model) == {"ai.onnx::Attention": 1, "com.microsoft::Attention": 1}


def test_a_past_gets_its_present_outputs_and_loads() -> None:
    """With a past and no present the operator does not load (onnxruntime#26262)."""
    past = "float[2,4,3,8] pk, float[2,4,3,8] pv"
    bare = parsed(f"{QKV}, {past}", "float[2,4,5,8] y", "y = Attention(q, k, v, , pk, pv)")
    lowered = ir.to_proto(lower(ir.from_proto(bare), "standard", 23))
    (node,) = (node for node in lowered.graph.node if node.op_type == "Attention")
    assert len(node.output) >= 3
    assert all(node.output[1:3])
    assert [value.name for value in lowered.graph.output] == ["y"]
    shapes = {"q": (2, 4, 5, 8), "k": (2, 4, 7, 8), "v": (2, 4, 7, 8), "pk": (2, 4, 3, 8), "pv": (2, 4, 3, 8)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], 1.0, rtol=1e-6)


def test_scores_under_a_softcap_are_raw_and_the_reference_is_not_the_truth(tmp_path: Path) -> None:
    """Mode 0 gives scores as multiplied; the reference evaluator caps them (onnxruntime#26813)."""
    call = "y, a, b, s = Attention<qk_matmul_output_mode=0, softcap=0.5>(q, k, v)"
    onnx.save(parsed(QKV, "float[2,4,5,8] y, float[2,4,5,7] s", call), tmp_path / "capped.onnx")
    plan = Plan(source=str(tmp_path / "capped.onnx"), backends=BACKENDS[1:], out=tmp_path / "runs")
    outcome = Outcome(compare(plan))
    verdicts = {(cell.backend, output.name): output.verdict for cell in outcome.record.cells for output in cell.outputs}
    assert verdicts == {
        ("ort-cpu", "y"): "pass",
        ("ort-cpu", "s"): "pass",
        ("onnx-reference", "y"): "pass",
        ("onnx-reference", "s"): "fail",
    }
    declared = get_runtime("onnx-reference").capabilities.deviations
    assert [entry.op for entry in declared if entry.report == "onnxruntime#26813"] == ["ai.onnx::Attention"]
