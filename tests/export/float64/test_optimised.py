"""What ONNX Runtime's optimiser makes of every block, in every form, computes in float64 what it was made of."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from crosshead.export.artifact import Form
from crosshead.export.capture import capture
from crosshead.export.case import Case
from crosshead.export.error import relative_l2
from crosshead.export.float64 import evaluate_float64, graph_sensitivity
from crosshead.export.forms import DEFAULT_OPSETS, lower
from crosshead.export.onnx_file import export_onnx_file
from crosshead.export.source import load_source
from crosshead.model_def.blocks import BLOCKS

ort = pytest.importorskip("onnxruntime")

Arrays = dict[str, NDArray[Any]]
LEVELS = ("BASIC", "EXTENDED", "ALL")
FORMS: tuple[Form, ...] = ("standard", "decomposed")
PRESETS = {"bert-base", "vit-b", "whisper-cross"}  # of other blocks, at sizes of their own
SMALL: dict[str, Any] = {"d_model": 64, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48, "kv_seq": 9}
SAME = 1e-12  # measured: 3e-16 over all blocks, forms and levels
FOLDED = 2.0**-24  # measured: 8.4e-9 where 1 / sqrt(head size) is no short fraction, and the optimiser folds its root


@cache
def captured(block: str, d_model: int) -> tuple[ir.Model, Arrays]:
    """Capture a small block, and return inputs for it."""
    fields = BLOCKS[block].fields()
    small = {**SMALL, "d_model": d_model}
    options = {name: value for name, value in small.items() if fields.get(name) is not None}
    loaded = load_source(block, options=options)
    return capture(loaded, "dynamo").model, dict(loaded.inputs)


def exported(block: str, form: Form, d_model: int = 64) -> tuple[onnx.ModelProto, Arrays]:
    """Return a small block in a form, and inputs for it."""
    model, inputs = captured(block, d_model)
    return ir.to_proto(lower(model, form, DEFAULT_OPSETS[form])), inputs


def optimised(model: onnx.ModelProto, level: str, path: Path) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


def contrib(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain not in ("", "ai.onnx")}


def errors(model: onnx.ModelProto, inputs: Arrays, path: Path) -> dict[str, tuple[float, set[str]]]:
    """Return, by level, the largest error of the optimised graph, and its operators of other domains."""
    want = evaluate_float64(model, inputs)
    found = {}
    for level in LEVELS:
        made = optimised(model, level, path / f"{level}.onnx")
        got = evaluate_float64(made, inputs)
        assert list(got) == list(want)
        found[level] = max(relative_l2(got[name], array) for name, array in want.items()), contrib(made)
    return found


@pytest.mark.parametrize("block", [name for name in BLOCKS if name not in PRESETS])
def test_every_block(block: str, tmp_path: Path) -> None:
    for form in FORMS:
        for level, (error, _) in errors(*exported(block, form), tmp_path).items():
            assert error < SAME, (form, level)


def test_factors_that_the_optimiser_folds_in_float32(tmp_path: Path) -> None:
    found = errors(*exported("mha", "decomposed", d_model=32), tmp_path)
    assert all(1e-10 < error < FOLDED for error, _ in found.values())


def test_the_optimiser_writes_operators_of_its_own(tmp_path: Path) -> None:
    assert errors(*exported("encoder-layer", "decomposed"), tmp_path)["EXTENDED"][1] == {
        "FusedMatMul",
        "SkipLayerNormalization",
    }


GELU = """
<ir_version: 8, opset_import: ["" : 18]>
feed_forward (float[batch, length, 8] x) => (float[batch, length, 8] y) <float two = {2.0}, float half = {0.5},
    float one = {1.0}, float root = {1.4142135}> {
    inner = MatMul (x, up)
    h = Add (inner, bias)
    scaled = Div (h, root)
    bent = Erf (scaled)
    more = Add (bent, one)
    product = Mul (h, more)
    gelu = Mul (product, half)
    outer = MatMul (gelu, down)
    sum = Add (outer, x)
    squares = Pow (sum, two)
    mean = ReduceMean <keepdims = 1> (squares, last)
    safe = Add (mean, eps)
    scale = Sqrt (safe)
    normal = Div (sum, scale)
    y = Mul (normal, gain)
}"""


def test_norms_and_gelus_that_the_optimiser_finds(tmp_path: Path) -> None:
    """Gelu as exporters write it out; the root of 2 is exact afterwards, for the operator has no number in it."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(GELU)
    shapes = {"up": (8, 12), "bias": (12,), "down": (12, 8), "gain": (8,), "eps": ()}
    arrays: Arrays = {name: np.asarray(rng.normal(size=shape) ** 2, np.float32) for name, shape in shapes.items()}
    arrays["last"] = np.array([-1])
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    inputs: Arrays = {"x": rng.normal(size=(2, 3, 8)).astype(np.float32)}
    found = errors(model, inputs, tmp_path)
    assert found["BASIC"][0] < SAME
    assert found["EXTENDED"][1] >= {"BiasGelu"}
    assert found["EXTENDED"][0] < FOLDED
    assert found["ALL"][0] < FOLDED


def test_an_optimised_graph_given_as_a_file_has_an_oracle(tmp_path: Path) -> None:
    """And its rounding is judged: the sensitivity of a graph with operators of that domain can be had."""
    model, inputs = exported("encoder-layer", "decomposed")
    made = optimised(model, "EXTENDED", tmp_path / "made.onnx")
    (want,) = evaluate_float64(model, inputs).values()
    artifact = export_onnx_file(
        tmp_path / "made.onnx", [Case("given", "inputs of the block", 0, inputs)], out=tmp_path / "out"
    )
    (expected,) = artifact.expected("given").values()
    assert relative_l2(expected, want) < SAME
    for whole, row in graph_sensitivity(made, inputs, evaluate_float64(made, inputs), "fp32", draws=2).values():
        assert 2.0**-26 < whole < 1e-5
        assert whole <= row * 2
