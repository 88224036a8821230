"""What ONNX Runtime's own kernels refuse or change: a lowering stands on each line, and a new release shows here."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

Run = Callable[..., dict[str, np.ndarray]]
Formula = Callable[..., tuple[np.ndarray, list[np.ndarray]]]
B, H, L, S, D = 2, 4, 5, 7, 8
QKV = f"float[B,{H},L,{D}] q, float[B,{H},S,{D}] k, float[B,{H},S,{D}] v"
OPSETS = [23, 24]  # those with kernels; Attention 25 runs by its body


def graph(opset: int, inputs: str, outputs: str, call: str) -> ir.Model:
    text = f'<ir_version: {opset - 12}, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {call} }}'
    return ir.from_proto(parser.parse_model(text))


def operands(seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = {"q": (B, H, L, D), "k": (B, H, S, D), "v": (B, H, S, D)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def with_mask(opset: int, mask: np.ndarray, axes: str) -> ir.Model:
    kind = "bool" if mask.dtype == bool else "float"
    return graph(opset, f"{QKV}, {kind}[{axes}] m", f"float[B,{H},L,{D}] y", "y = Attention(q, k, v, m)")


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("shape", [(1, S), (S,), (L, 1), (B, 1, 1, S), (B, H, 1, S), (B, 1, L, 1)])
def test_broadcast_query_and_key_axes_are_refused(run_ort: Run, opset: int, shape: tuple[int, ...]) -> None:
    mask = np.ones(shape, bool)
    with pytest.raises(Exception, match="running Attention node"):
        run_ort(with_mask(opset, mask, ",".join(map(str, shape))), {**operands(), "m": mask})


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(
    "shape", [(L, S), (1, L, S), (H, L, S), (1, 1, L, S), (B, 1, L, S), (1, H, L, S), (B, H, L, S)]
)
def test_broadcast_batch_and_head_axes_are_taken(
    run_ort: Run, by_formula: Formula, opset: int, shape: tuple[int, ...]
) -> None:
    mask = np.random.default_rng(1).random(shape) > 0.4
    got = run_ort(with_mask(opset, mask, ",".join(map(str, shape))), {**operands(), "m": mask})["y"]
    np.testing.assert_allclose(got, by_formula(*operands().values(), mask)[0], atol=2e-6)


@pytest.mark.parametrize("opset", OPSETS)
def test_a_row_of_the_lowest_number_becomes_0(run_ort: Run, by_formula: Formula, opset: int) -> None:
    mask = np.zeros((L, S), np.float32)
    mask[2] = np.finfo(np.float32).min
    got = run_ort(with_mask(opset, mask, "L,S"), {**operands(), "m": mask})["y"]
    want = by_formula(*operands().values(), mask)[0]  # the mean of the values, as in torch
    assert np.abs(want[:, :, 2]).max() > 0.1
    assert not got[:, :, 2].any()
    mask[2] = np.finfo(np.float32).min * (63 / 64)
    got = run_ort(with_mask(opset, mask, "L,S"), {**operands(), "m": mask})["y"]
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("scale", ["0.0", "-0.5"])
def test_a_scale_of_0_or_below_is_refused(run_ort: Run, opset: int, scale: str) -> None:
    with pytest.raises(Exception, match="scale must be greater than 0"):
        run_ort(graph(opset, QKV, f"float[B,{H},L,{D}] y", f"y = Attention<scale={scale}>(q, k, v)"), operands())


@pytest.mark.parametrize("opset", OPSETS)
def test_a_past_without_present_outputs_is_refused(run_ort: Run, opset: int) -> None:
    inputs = f"{QKV}, float[B,{H},P,{D}] pk, float[B,{H},P,{D}] pv"
    past = np.zeros((B, H, 3, D), np.float32)
    feeds = {**operands(), "pk": past, "pv": past}
    with pytest.raises(Exception, match="running Attention node"):
        run_ort(graph(opset, inputs, f"float[B,{H},L,{D}] y", "y = Attention(q, k, v, , pk, pv)"), feeds)


@pytest.mark.parametrize("opset", OPSETS)
def test_weights_of_mode_2_hold_the_lowest_number_for_masked_keys(run_ort: Run, opset: int) -> None:
    """The op says -inf. The standard form leaves this as the runtime has it: a known deviation."""
    model = graph(
        opset,
        f"{QKV}, bool[L,S] m",
        f"float[B,{H},L,{D}] y, float[B,{H},L,S] w",
        "y, a, b, w = Attention<qk_matmul_output_mode=2>(q, k, v, m)",
    )
    mask = np.ones((L, S), bool)
    mask[:, 3] = False
    weights = run_ort(model, {**operands(), "m": mask})["w"]
    assert (weights[..., 3] == np.finfo(np.float32).min).all()


@pytest.mark.parametrize("opset", OPSETS)
def test_no_keys_are_refused(run_ort: Run, opset: int) -> None:
    none = np.zeros((B, H, 0, D), np.float32)
    with pytest.raises(Exception, match="running Attention node"):
        run_ort(
            graph(opset, QKV, f"float[B,{H},L,{D}] y", "y = Attention(q, k, v)"),
            {"q": operands()["q"], "k": none, "v": none},
        )


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_rotary_caches_of_one_batch_are_refused(run_ort: Run, opset: int) -> None:
    model = graph(
        opset,
        f"float[B,{H},L,{D}] x, float[C,L,4] cos, float[C,L,4] sin",
        f"float[B,{H},L,{D}] y",
        "y = RotaryEmbedding(x, cos, sin)",
    )
    cache = np.ones((1, L, 4), np.float32)
    with pytest.raises(Exception, match="running RotaryEmbedding node"):
        run_ort(model, {"x": operands()["q"], "cos": cache, "sin": cache})


def test_attention_25_has_no_kernel_and_runs_by_its_body(run_ort: Run) -> None:
    """So it takes what the kernels refuse: a broadcast query axis shows which of the two ran."""
    mask = np.ones((B, 1, 1, S), bool)
    run_ort(with_mask(25, mask, "B,1,1,S"), {**operands(), "m": mask})


def test_float64_computes_the_scale_in_float32(run_ort: Run, by_formula: Formula) -> None:
    """The reason that a graph is never judged in float64 through this kernel."""
    inputs = QKV.replace("float", "double")
    model = graph(23, inputs, f"double[B,{H},L,{D}] y", "y = Attention(q, k, v)")
    doubles = {name: array.astype(np.float64) for name, array in operands().items()}
    error = np.abs(run_ort(model, doubles)["y"] - by_formula(*doubles.values())[0]).max()
    assert 1e-10 < error < 1e-6
