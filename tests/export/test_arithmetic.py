from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from crosshead.export import FormError, cases_for, export_source, load_source
from crosshead.export.arithmetic import count_arithmetic
from crosshead.model_def import BLOCKS

_SMALL: dict[str, dict[str, Any]] = {
    "attention": {"d_model": 32, "num_heads": 4},
    "encoder": {"d_model": 32, "num_heads": 4, "d_ff": 48},
    "feed-forward": {"d_model": 32, "d_ff": 48},
}


EINSUM = 'y = Einsum <equation = "bqd,bkd->bqk"> (a, b)'
HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


@pytest.mark.parametrize("form", [("standard", 23), ("decomposed", 18)], ids=lambda form: form[0])
@pytest.mark.parametrize(
    "name", ["mha", "mha-masked", "mha-padded", "cross-attention", "gqa", "encoder-layer", "feed-forward"]
)
def test_count_over_the_graph_is_the_formula_of_the_block(name: str, form: Any, tmp_path: Path) -> None:
    block = BLOCKS[name]
    options = _SMALL[block.layer]
    loaded = load_source(name, options=options, seed=0)
    (case,) = cases_for(loaded, batches=(2,), lengths=(7,))
    (artifact,) = export_source(loaded, [case], forms=[form], out=tmp_path)
    counted = count_arithmetic(onnx.load(artifact.model_path), case.inputs)
    shapes = {key: array.shape for key, array in case.inputs.items()}
    assert counted.flops == block.flops(shapes, **options)
    moved = sum(array.nbytes for array in (*case.inputs.values(), *artifact.expected(case.name).values()))
    weights = sum(tensor.numel() * tensor.element_size() for tensor in loaded.module.parameters())
    assert weights < counted.bytes - moved / 2 < weights * 1.1 + moved  # expected outputs lie there in float64


def test_a_causal_graph_computes_what_it_masks(tmp_path: Path) -> None:
    loaded = load_source("mha-causal", options=_SMALL["attention"], seed=0)
    (case,) = cases_for(loaded, batches=(2,), lengths=(7,))
    (artifact,) = export_source(loaded, [case], forms=[("standard", 23)], out=tmp_path)
    counted = count_arithmetic(onnx.load(artifact.model_path), case.inputs)
    shapes = {key: array.shape for key, array in case.inputs.items()}
    assert counted.flops - BLOCKS["mha-causal"].flops(shapes, **_SMALL["attention"]) == 4 * 2 * 32 * (
        7 * 7 - 7 * 8 // 2
    )


@pytest.mark.parametrize(
    ("body", "signature", "shapes", "flops", "bytes_"),
    [
        ("y = Gemm (a, b, c)", "float[m,k] a, float[k,n] b, float[n] c", [(3, 4), (4, 5), (5,)], 120, 208),
        ("y = Gemm <transA = 1> (a, b)", "float[k,m] a, float[k,n] b", [(4, 3), (4, 5)], 120, 188),
        ("y = Conv (a, b)", "float[n,c,l] a, float[o,c,w] b", [(2, 3, 9), (4, 3, 3)], 2 * 2 * 4 * 7 * 9, None),
        ("y = ConvTranspose (a, b)", "float[n,c,l] a, float[c,o,w] b", [(2, 3, 9), (3, 4, 3)], 2 * 54 * 12, None),
        (EINSUM, "float[x,y,z] a, float[x,v,z] b", [(2, 3, 4), (2, 5, 4)], 2 * 2 * 3 * 4 * 5, None),
        ("y = MatMul (a, b)", "float16[m,k] a, float16[k,n] b", [(3, 4), (4, 5)], 120, 94),
        ("y = MatMul (a, b)", "int64[m,k] a, int64[k,n] b", [(3, 4), (4, 5)], 0, 376),
        ("y = Softmax (a)", "float[m,n] a", [(3, 4)], 0, 96),
    ],
)  # fmt: skip
def test_operators(body: str, signature: str, shapes: list[tuple[int, ...]], flops: int, bytes_: int | None) -> None:
    kind = signature.split("[")[0]
    dtype = {"float": np.float32, "float16": np.float16, "int64": np.int64}[kind]
    inputs = {name: np.ones(shape, dtype=dtype) for name, shape in zip("abc", shapes, strict=False)}
    result = f"{kind}[{','.join('pqr'[: len(shapes[0])])}] y"
    counted = count_arithmetic(parser.parse_model(f"{HEADER} g ({signature}) => ({result}) {{ {body} }}"), inputs)
    assert counted.flops == flops
    if bytes_ is not None:
        assert counted.bytes == bytes_


def test_a_missing_input_is_named() -> None:
    graph = parser.parse_model(f"{HEADER} g (float[2] a) => (float[2] y) {{ y = Relu (a) }}")
    with pytest.raises(FormError, match="input 'a' has no array"):
        count_arithmetic(graph, {})
