"""Math modes: formats rounded as their definitions say, graphs evaluated under them, and errors named by them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from crosshead.export.artifact import FormError
from crosshead.export.float64 import evaluate_float64
from crosshead.export.float64._formats import cut_to_bits, sum_in_float16, to_bits, to_float16
from crosshead.export.float64.emulation import MATH_MODES, emulate, explain_by_mode
from crosshead.runtimes._faulty_ops import faulty_ops

Arrays = dict[str, NDArray[Any]]
Build = Callable[..., onnx.ModelProto]
FLOATS = hnp.arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=False, allow_subnormal=False))


def by_parts(x: NDArray[Any], bits: int, whole: Any) -> NDArray[np.float64]:
    """Round to an implicit bit and `bits` more: the definition, by significand and exponent."""
    significand, exponent = np.frexp(x.astype(np.float64))  # significand in [0.5, 1)
    return np.asarray(np.ldexp(whole(np.ldexp(significand, bits + 1)), exponent - bits - 1))


@pytest.mark.parametrize("bits", [10, 7])
@settings(deadline=None)
@given(x=FLOATS)
def test_bits_are_rounded_to_nearest_even_and_cut_towards_zero(bits: int, x: NDArray[np.float32]) -> None:
    assert np.array_equal(to_bits(x.astype(np.float64), bits), by_parts(x, bits, np.rint))
    assert np.array_equal(cut_to_bits(x.astype(np.float64), bits), by_parts(x, bits, np.trunc))


def test_ties_go_to_the_even_neighbour() -> None:
    step = 2.0**-10
    ties = np.array([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2, 1 + step / 2 + 2.0**-23])
    assert to_bits(ties, 10).tolist() == [1.0, 1 + 2 * step, -1.0, 1 + step]


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert np.array_equal(to_bits(x.astype(np.float64), 7), x.astype(ml_dtypes.bfloat16).astype(np.float64))


def test_infinities_stay_and_nan_stays_nan() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])
    for rounded in (to_bits(x, 10), cut_to_bits(x, 10), to_float16(x)):
        assert np.array_equal(rounded, x, equal_nan=True)
        assert np.array_equal(np.signbit(rounded[3:]), [False, True])


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 16, 21])
def test_half_sums_are_those_of_the_definition(pairwise: bool, length: int) -> None:
    rng = np.random.default_rng(length)
    a, b = rng.normal(size=(2, 3, length)) * 30, rng.normal(size=(2, length, 2)) * 30
    a, b = to_float16(a), to_float16(b)

    def half(x: float) -> float:
        return float(np.float16(np.float32(x)))

    def by_pairs(terms: list[float]) -> float:
        """Add runs of 2^n terms as a tree, then the runs that are left over, the shortest first."""
        runs, start = [], 0
        for level in reversed(range(len(terms).bit_length())):
            if len(terms) >> level & 1:
                runs.append(terms[start : start + (1 << level)])
                start += 1 << level
        total = 0.0
        for run in reversed(runs):
            sums = run
            while len(sums) > 1:
                sums = [half(left + right) for left, right in zip(sums[::2], sums[1::2], strict=True)]
            total = half(sums[0] + total)
        return total

    def in_turn(terms: list[float]) -> float:
        total = 0.0
        for term in terms:
            total = half(total + term)
        return total

    got = sum_in_float16(a, b, pairwise=pairwise)
    for place in np.ndindex(2, 3, 2):
        terms = (a[place[0], place[1]] * b[place[0], :, place[2]]).tolist()
        assert got[place] == (by_pairs if pairwise else in_turn)(terms)


def test_half_sums_of_vectors() -> None:
    a, b = np.arange(3.0), np.arange(6.0).reshape(3, 2)
    for pairwise in (False, True):
        assert np.array_equal(sum_in_float16(a, b, pairwise=pairwise), a @ b)
        assert np.array_equal(sum_in_float16(b.T, a, pairwise=pairwise), b.T @ a)
        assert sum_in_float16(a, a, pairwise=pairwise) == a @ a


WIDTH = 32
BLOCK = f"""
<ir_version: 8, opset_import: ["" : 18]>
block (float[batch, length, {WIDTH}] x) => (float[batch, length, {WIDTH}] y) {{
    query_flat = MatMul (x, query_weight)
    key_flat = MatMul (x, key_weight)
    value_flat = MatMul (x, value_weight)
    query_split = Reshape (query_flat, split)
    query = Transpose <perm = [0, 2, 1, 3]> (query_split)
    key_split = Reshape (key_flat, split)
    key = Transpose <perm = [0, 2, 3, 1]> (key_split)
    value_split = Reshape (value_flat, split)
    value = Transpose <perm = [0, 2, 1, 3]> (value_split)
    raw = MatMul (query, key)
    scores = Mul (raw, scale)
    weights = Softmax <axis = -1> (scores)
    context = MatMul (weights, value)
    turned = Transpose <perm = [0, 2, 1, 3]> (context)
    merged = Reshape (turned, merge)
    y = MatMul (merged, out_weight)
}}"""


@pytest.fixture
def block(build: Build) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    names = ("query_weight", "key_weight", "value_weight", "out_weight")
    weights = {name: (rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for name in names}
    return build(
        BLOCK, constants={**weights, "split": [0, 0, 4, 8], "merge": [0, 0, WIDTH], "scale": np.float32(8**-0.5)}
    )


@pytest.fixture
def tokens() -> Arrays:
    return {"x": np.random.default_rng(1).normal(size=(2, 24, WIDTH)).astype(np.float32)}


def test_fp32_rounds_nothing(block: onnx.ModelProto, tokens: Arrays) -> None:
    assert np.array_equal(emulate(block, tokens, "fp32")["y"], evaluate_float64(block, tokens)["y"])


@pytest.mark.parametrize(
    ("fault", "modes"),
    [
        ("tf32", {"tf32", "fp16"}),
        ("fp16-products", {"tf32", "fp16"}),  # both keep 10 bits; within the range of fp16 they are one
        ("bf16-products", {"bf16"}),
        ("fp16-accumulation", {"fp16-accumulation"}),
    ],
)
def test_a_backend_in_a_math_mode_is_named(fault: str, modes: set[str], block: onnx.ModelProto, tokens: Arrays) -> None:
    (got,) = ReferenceEvaluator(block, new_ops=faulty_ops(fault)).run(None, tokens)
    shares = explain_by_mode({"y": np.asarray(got)}, evaluate_float64(block, tokens), block, tokens)
    assert shares[0].mode in modes
    assert shares[0].correlation > 0.9
    assert shares[0].explained > 0.8
    for share in shares:
        assert share.mode in modes or share.explained < 0.2


@pytest.mark.parametrize(
    ("fault", "modes"),
    [("tf32", {"tf32", "fp16"}), ("bf16-products", {"bf16"}), ("fp16-accumulation", {"fp16-accumulation"})],
)
def test_products_inside_attention_are_named_too(fault: str, modes: set[str]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 23]> g (float[2, 4, 24, 16] q, float[2, 4, 24, 16] k,'
        " float[2, 4, 24, 16] v) => (float[2, 4, 24, 16] y) { y = Attention (q, k, v) }"
    )
    rng = np.random.default_rng(0)
    inputs: Arrays = {name: rng.normal(size=(2, 4, 24, 16)).astype(np.float32) for name in "qkv"}
    (got,) = ReferenceEvaluator(model, new_ops=faulty_ops(fault)).run(None, inputs)
    best = explain_by_mode({"y": np.asarray(got)}, evaluate_float64(model, inputs), model, inputs)[0]
    assert best.mode in modes
    assert best.correlation > 0.9


def test_a_healthy_backend_is_explained_by_no_mode(block: onnx.ModelProto, tokens: Arrays) -> None:
    want = evaluate_float64(block, tokens)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(block.SerializeToString(), providers=["CPUExecutionProvider"])
    for (got,) in (ReferenceEvaluator(block).run(None, tokens), session.run(None, tokens)):
        shares = explain_by_mode({"y": np.asarray(got)}, want, block, tokens)
        assert len(shares) == len(MATH_MODES) - 1
        assert all(abs(share.correlation) < 0.3 and share.explained < 0 for share in shares)


def test_without_an_error_nothing_is_explained(block: onnx.ModelProto, tokens: Arrays) -> None:
    want = evaluate_float64(block, tokens)
    assert all(share[1:] == (0.0, 0.0) for share in explain_by_mode(want, want, block, tokens))


def test_elements_that_are_not_finite_are_left_out(block: onnx.ModelProto, tokens: Arrays) -> None:
    want = evaluate_float64(block, tokens)
    got = dict(emulate(block, tokens, "tf32"))
    got["y"][0, 0, :3] = np.nan, np.inf, -np.inf
    best = explain_by_mode(got, want, block, tokens)[0]
    assert best.mode == "tf32"
    assert best.correlation == pytest.approx(1)
    assert best.explained == pytest.approx(1)
    got["y"][:] = np.nan
    assert explain_by_mode(got, want, block, tokens)[0][1:] == (0.0, 0.0)


def test_every_operator_that_multiplies_is_rounded() -> None:
    x, w = (np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32) for seed in (0, 1))
    ops: dict[str, Callable[[Any, Any], Any]] = {
        "MatMul (x, w)": lambda a, b: a @ b,
        "Gemm (x, w)": lambda a, b: a @ b,
        "Gemm <transA = 1, transB = 1, alpha = 0.5> (x, w)": lambda a, b: 0.5 * a.T @ b.T,
        'Einsum <equation = "ij,jk->ik"> (x, w)': lambda a, b: a @ b,
    }
    signature = "g (float[4, 4] x, float[4, 4] w) => (float[4, 4] y)"
    for text, product in ops.items():
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {signature} {{ y = {text} }}')
        want = product(to_bits(x.astype(np.float64), 10), to_bits(w.astype(np.float64), 10))
        assert np.allclose(emulate(model, {"x": x, "w": w}, "tf32")["y"], want, rtol=1e-14, atol=0), text
    conv = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]>'
        "g (float[1, 4, 4] x, float[4, 4, 1] w, float[4] b) => (float[1, 4, 4] y) { y = Conv (x, w, b) }"
    )
    bias = np.arange(4, dtype=np.float32) / 3
    got = emulate(conv, {"x": x[np.newaxis], "w": w[..., np.newaxis], "b": bias}, "tf32")["y"]
    want = to_bits(w.astype(np.float64), 10) @ to_bits(x.astype(np.float64), 10) + bias[:, np.newaxis].astype(
        np.float64
    )
    assert np.allclose(got[0], want, rtol=1e-14, atol=1e-15)


def test_whole_numbers_are_multiplied_as_they_are() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (int64[1, 1] x) => (int64[1, 1] y) { y = MatMul (x, x) }'
    )
    for mode in MATH_MODES:
        assert emulate(model, {"x": np.array([[4097]])}, mode)["y"] == 4097**2


def test_unknown_mode_is_one_line(block: onnx.ModelProto, tokens: Arrays) -> None:
    with pytest.raises(FormError, match="unknown math mode 'int8': expected one of fp32, tf32"):
        emulate(block, tokens, "int8")  # type: ignore[arg-type]  # a wrong one on purpose
