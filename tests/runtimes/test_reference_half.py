from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from crosshead.runtimes._reference_half import NORMS, SUMS, widen_sums

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16 = np.dtype(np.float16)
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
WIDTH = 512


def evaluators(op: str, dtype: np.dtype[Any], inputs: int, **attributes: Any) -> tuple[Any, Any]:
    """Return onnx's evaluator of one node as it comes, and the widened one."""
    names = [f"x{number}" for number in range(inputs)]
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "one",
        [helper.make_tensor_value_info(name, kind, None) for name in names],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    plain, widened = ReferenceEvaluator(model), ReferenceEvaluator(model)
    widen_sums(widened)
    return plain, widened


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layer_norm(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale)


def rms_norm(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale)


def attention(q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v)


@pytest.mark.parametrize(
    ("op", "formula", "dtype", "shapes", "size"),
    [
        ("Softmax", softmax, BF16, [(4, WIDTH)], 1.0),
        ("LayerNormalization", layer_norm, BF16, [(4, WIDTH), (WIDTH,)], 1.0),
        ("LayerNormalization", layer_norm, FP16, [(4, WIDTH), (WIDTH,)], 300.0),
        ("RMSNormalization", rms_norm, BF16, [(4, WIDTH), (WIDTH,)], 1.0),
        ("RMSNormalization", rms_norm, FP16, [(4, WIDTH), (WIDTH,)], 300.0),
        ("Attention", attention, BF16, [(1, 2, WIDTH, 8)] * 3, 1.0),
    ],
)
def test_sums_are_rounded_once_and_onnx_by_itself_still_rounds_each(
    op: str, formula: Any, dtype: np.dtype[Any], shapes: list[tuple[int, ...]], size: float
) -> None:
    rng = np.random.default_rng(0)
    arrays = [(rng.standard_normal(shape) * size).astype(dtype) for shape in shapes]
    plain, widened = evaluators(op, dtype, len(arrays))
    feeds = {f"x{number}": array for number, array in enumerate(arrays)}
    want = formula(*(array.astype(np.float64) for array in arrays))
    errors = []
    with np.errstate(all="ignore"):
        for evaluator in (plain, widened):
            (got,) = evaluator.run(None, feeds)
            assert got.dtype == dtype
            errors.append(float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)))
    assert errors[1] < UNIT[dtype.name]
    assert not errors[0] < 2 * UNIT[dtype.name], f"{op} of {dtype.name} needs no widening any more: {errors[0]:.1e}"


def test_products_of_bfloat16_are_exact_enough_by_themselves() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(BF16) for shape in ((8, 2048), (2048, 8)))
    plain, widened = evaluators("MatMul", BF16, 2)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for evaluator in (plain, widened):
        (got,) = evaluator.run(None, {"x0": a, "x1": b})
        assert np.linalg.norm(got.astype(np.float64) - want) < UNIT["bfloat16"] * np.linalg.norm(want)


def test_other_types_stay_as_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    plain, widened = evaluators("Softmax", np.dtype(np.float32), 1)
    assert np.array_equal(plain.run(None, {"x0": x})[0], widened.run(None, {"x0": x})[0])
    half = x.astype(np.float16)
    plain, widened = evaluators("Softmax", FP16, 1)  # NumPy itself sums fp16 in float32
    assert np.array_equal(plain.run(None, {"x0": half})[0], widened.run(None, {"x0": half})[0])


def test_the_names_are_those_of_operators() -> None:
    assert {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} >= SUMS | NORMS
