from typing import Any

import numpy as np
import onnx
import pytest

from crosshead.export import FormError
from crosshead.export.float64 import Overflow, first_overflow

WRITTEN_OUT = """
<ir_version: 8, opset_import: ["" : 18]>
attention ({dtype}[length, 4] q, {dtype}[length, 4] k, {dtype}[length, length] mask, {dtype} two)
    => ({dtype}[length, length] y) {{
    [turn] kt = Transpose <perm = [1, 0]> (k)
    [product] raw = MatMul (q, kt)
    [scale] scores = Div (raw, two)
    [bias] masked = Add (scores, mask)
    [softmax] y = Softmax <axis = -1> (masked)
}}
"""
STANDARD = """
<ir_version: 10, opset_import: ["" : 23]>
attention (float16[1, 1, length, 4] q, float16[1, 1, length, 4] k) => (float16[1, 1, length, 4] y) {
    [core] y = Attention (q, k, k)
}
"""
NARROWED = """
<ir_version: 8, opset_import: ["" : 18]>
narrowed (float[length, length] wide, float16[length, length] x) => (float16[length, length] y) {
    [inside] square = Mul (wide, wide)
    [narrow] half = Cast <to = 10> (square)
    [add] y = Add (x, half)
}
"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def attention(dtype: str = "float16", fill: float = 0.0, size: float = 200.0) -> Overflow | None:
    kind = {"float": "float32"}.get(dtype, dtype)
    mask = np.zeros((3, 3), kind)
    mask[:, 2] = fill
    query, key = np.full((3, 4), -size, kind), np.full((3, 4), size, kind)
    inputs = {"q": query, "k": key, "mask": mask, "two": np.array(2.0, kind)}
    return first_overflow(model(WRITTEN_OUT.format(dtype=dtype)), {"first": inputs})


def test_the_first_value_beyond_the_range_is_found_and_named() -> None:
    assert attention() == Overflow("MatMul node 'product' (the scores)", 160000.0, "first")


def test_what_fits_is_not_told() -> None:
    assert attention(size=100.0) is None


def test_a_wider_type_holds_more() -> None:
    assert attention("float") is None


@pytest.mark.parametrize("fill", [-65504.0, -np.inf])
def test_scores_added_to_a_fill_are_no_overflow(fill: float) -> None:
    assert attention(fill=fill, size=120.0) is None  # -65504 - 28800 is -inf in fp16, and masked either way


def test_products_inside_attention_count() -> None:
    query = np.full((1, 1, 3, 4), 300.0, np.float16)
    key = -query
    found = first_overflow(model(STANDARD), {"small": {"q": query / 100, "k": key}, "large": {"q": query, "k": key}})
    assert found == Overflow("MatMul inside Attention node 'core'", 180000.0, "large")


def test_a_cast_of_what_a_wider_type_held() -> None:
    x = np.zeros((2, 2), np.float16)
    held: dict[str, Any] = {"wide": np.full((2, 2), 300.0, np.float32), "x": x}
    assert first_overflow(model(NARROWED), {"c": held}) == Overflow("Cast node 'narrow'", 90000.0, "c")
    mask = NARROWED.replace("Mul (wide, wide)", "Neg (wide)")
    assert first_overflow(model(mask), {"c": {"wide": np.full((2, 2), 3e38, np.float32), "x": x}}) is None


def test_a_graph_that_cannot_be_evaluated_says_so() -> None:
    text = NARROWED.replace("Cast <to = 10> (square)", "other.Round (square)").replace(
        '["" : 18]', '["" : 18, "other" : 1]'
    )
    with pytest.raises(FormError, match="Round"):
        first_overflow(model(text), {"c": {"wide": np.ones((2, 2), np.float32), "x": np.ones((2, 2), np.float16)}})
