from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from crosshead.export import FormError, cases_for, export_onnx_file, export_source, load_source
from crosshead.export.arithmetic import Counter, count_arithmetic
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


NONE: tuple[int, ...] = ()
PAST = (2, 2, 7, 4)


@pytest.mark.parametrize(
    ("op", "shapes", "output", "flops"),
    [
        ("Attention", [(2, 3, 8), (2, 5, 8), (2, 5, 12)], (2, 3, 12), 2 * 2 * 3 * 5 * (8 + 12)),
        ("Attention", [(2, 2, 3, 4), (2, 1, 5, 4), (2, 1, 5, 6)], (2, 2, 3, 6), 2 * 2 * 3 * 5 * (8 + 12)),
        ("Attention", [(2, 3, 8), (2, 5, 8), (2, 5, 8), NONE, PAST, PAST], (2, 3, 8), 2 * 2 * 3 * 12 * 16),
        ("com.microsoft::FusedMatMul", [(4, 3), (4, 5)], (3, 5), 2 * 3 * 4 * 5),
        ("com.microsoft::MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 8)], (2, 3, 8), 2 * 2 * 3 * 5 * 16),
        ("com.microsoft::MultiHeadAttention", [(2, 3, 8), (2, 5, 2, 2, 4)], (2, 3, 8), 2 * 2 * 3 * 5 * 16),
        ("com.microsoft::MultiHeadAttention", [(2, 3, 2, 3, 4)], (2, 3, 8), 2 * 2 * 3 * 3 * 16),
        (
            "com.microsoft::MultiHeadAttention",
            [(2, 3, 8), (2, 5, 8), (2, 5, 8), NONE, NONE, NONE, PAST, PAST],
            (2, 3, 8),
            2 * 2 * 3 * 12 * 16,
        ),
        ("com.microsoft::Attention", [(2, 3, 6), (6, 24), (24,)], (2, 3, 8), 2 * 2 * 3 * 6 * 24 + 2 * 2 * 3 * 3 * 16),
    ],
)
def test_operators_that_multiply_inside(
    op: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], flops: int
) -> None:
    domain, _, name = op.rpartition("::")
    turned: dict[str, Any] = {"transA": 1} if name == "FusedMatMul" else {}
    counter = Counter()
    node = helper.make_node(name, ["x"], ["y"], domain=domain, **turned)
    counter(node, [np.zeros(shape) if shape else None for shape in shapes], [np.zeros(output)])
    assert (counter.flops, counter.nodes) == (flops, 1)


def test_grouped_queries_meet_every_place_of_the_cache() -> None:
    counter = Counter()
    node = helper.make_node("GroupQueryAttention", ["x"], ["y", "present"], domain="com.microsoft")
    counter(node, [np.zeros((2, 3, 8))], [np.zeros((2, 3, 8)), np.zeros((2, 1, 12, 4))])
    assert counter.flops == 2 * 2 * 3 * 12 * 16


def test_artifacts_say_what_a_call_asks_for(tmp_path: Path) -> None:
    loaded = load_source("mha-causal", options=_SMALL["attention"], seed=0)
    (case,) = cases_for(loaded, batches=(2,), lengths=(7,))
    (block,) = export_source(loaded, [case], forms=[("decomposed", 18)], out=tmp_path)
    bare = export_onnx_file(block.model_path, [case], out=tmp_path)
    formula = BLOCKS["mha-causal"].flops({"query": (2, 7, 32)}, **_SMALL["attention"])
    assert block.case("2x7").flops == formula
    assert bare.case("2x7").flops == formula + 4 * 2 * 32 * (7 * 7 - 7 * 8 // 2)  # counted, masked pairs and all
    assert block.case("2x7").moved_bytes == bare.case("2x7").moved_bytes
    assert [case.flops for case in block.manifest.size_cases] == [None] * len(block.manifest.size_cases)


def test_a_missing_input_is_named() -> None:
    graph = parser.parse_model(f"{HEADER} g (float[2] a) => (float[2] y) {{ y = Relu (a) }}")
    with pytest.raises(FormError, match="input 'a' has no array"):
        count_arithmetic(graph, {})
