"""The faults of the `fake` backend: each shows at every operator that it names, and the operators are right without."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from crosshead.export.artifact import Artifact
from crosshead.runtimes import BackendError, Settings, get_runtime
from crosshead.runtimes import _faulty_ops as faulty
from crosshead.runtimes._faults import FAULTS, Fault
from crosshead.runtimes._right_ops import Attention

Arrays = Mapping[str, NDArray[np.generic]]
MakeArtifact = Callable[..., Artifact]
Typed = Callable[[str, str, tuple[int | str, ...]], onnx.ValueInfoProto]

_DRAW = np.random.default_rng(0)


def _normal(*shape: int) -> NDArray[np.float32]:
    return _DRAW.standard_normal(shape).astype(np.float32)


_KEEP = np.tri(5, 7, dtype=bool)
_LARGE = 60 * _normal(2, 4, 5, 6)
_WITH_NAN = np.where(np.arange(6) == 2, np.float32(np.nan), _normal(2, 4, 5, 6))
_ATTENTION = {"q": _normal(2, 4, 5, 8), "k": _normal(2, 2, 7, 8), "v": _normal(2, 2, 7, 8)}
_MASKED = _ATTENTION | {"mask": np.broadcast_to(_KEEP, (2, 1, 5, 7)).copy()}
_CACHED = _ATTENTION | {"mask": np.ones((5, 10), bool), "pk": _normal(2, 2, 3, 8), "pv": _normal(2, 2, 3, 8)}
_SHARP = {name: 10 * array if name in "qk" else array for name, array in _ATTENTION.items()}
_MINUS_INF = np.array(-np.inf, np.float32)

# By operator: inputs and attributes on which each fault of it shows.
_PLAIN: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "Attention": (_ATTENTION, {}),
    "Concat": ({"past": _normal(2, 2, 3, 8), "new": _normal(2, 2, 5, 8)}, {"axis": 2}),
    "Div": ({"x": _normal(2, 4, 5, 8), "root": np.array(3, np.float32)}, {}),
    "Erf": ({"x": _normal(3, 5)}, {}),
    "Expand": ({"x": _normal(2, 2, 1, 5, 8), "shape": np.array([1, 1, 3, 1, 1], np.int64)}, {}),
    "Gelu": ({"x": _normal(3, 5)}, {}),
    "Gemm": ({"a": _normal(5, 4), "b": _normal(4, 3), "c": _normal(3)}, {}),
    "LayerNormalization": ({"x": _normal(3, 5), "scale": _normal(5), "bias": _normal(5)}, {}),
    "LessOrEqual": ({"keys": np.arange(7), "queries": np.arange(5)[:, None]}, {}),
    "MatMul": ({"a": np.abs(_normal(2, 4, 5, 7)), "b": _normal(2, 4, 7, 8)}, {}),
    "RMSNormalization": ({"x": _normal(3, 5), "scale": _normal(5)}, {}),
    "RotaryEmbedding": ({"x": _normal(2, 4, 5, 8), "cos": _normal(2, 5, 4), "sin": _normal(2, 5, 4)}, {}),
    "Softmax": ({"x": _normal(2, 4, 5, 6)}, {}),
    "Where": ({"keep": _KEEP, "x": _normal(2, 4, 5, 7), "fill": _MINUS_INF}, {}),
}
# What a fault needs beyond that.
_SPECIAL: dict[tuple[str, str], tuple[Arrays, dict[str, Any]]] = {
    ("softmax-no-max", "Softmax"): ({"x": _LARGE}, {}),
    ("softmax-no-max", "Attention"): (_SHARP, {}),
    ("softmax-swallows-nan", "Softmax"): ({"x": _WITH_NAN}, {}),
    ("softmax-swallows-nan", "Attention"): (_ATTENTION | {"q": _ATTENTION["q"] * np.float32(np.nan)}, {}),
    ("mask-inverted", "Attention"): (_MASKED, {}),
    ("padding-leak", "Attention"): ({k: 8 * a if k in "qk" else a for k, a in _MASKED.items()}, {}),
    ("causal-lower-right", "Attention"): (_ATTENTION, {"is_causal": 1}),
    ("softcap-after-mask", "Attention"): (_MASKED, {"softcap": 2.0}),
    ("past-ignored", "Attention"): (_CACHED, {}),
    ("transposed", "MatMul"): ({"a": _normal(2, 5, 4), "b": _normal(4, 5)}, {}),
}
_NOT_TAKEN = ("nonpad", "padded_kv", "window", "bfloat16")
_CASES = [(fault, op) for fault in FAULTS.values() for op in fault.ops]
_SINCE = {"Attention": 23, "RMSNormalization": 23, "RotaryEmbedding": 23}


@pytest.fixture
def one_node(make_artifact: MakeArtifact, typed_value: Typed) -> Callable[..., Artifact]:
    """Return a function that writes an artifact of one node with operands like those given."""

    def make(op: str, inputs: Arrays, attributes: Mapping[str, Any]) -> Artifact:
        node = helper.make_node(op, list(inputs), ["y"], **attributes)
        dtype = "bool" if op == "LessOrEqual" else "float32"
        values = [typed_value(name, array.dtype.name, array.shape) for name, array in inputs.items()]
        graph = helper.make_graph(
            [node], op, values, [typed_value("y", dtype, tuple(f"y{i}" for i in range(_rank(op, inputs))))]
        )
        return make_artifact(graph, opset=_SINCE.get(op, 20))

    return make


def _rank(op: str, inputs: Arrays) -> int:
    return max(array.ndim for array in inputs.values())


def _answer(artifact: Artifact, inputs: Arrays, **behaviour: object) -> NDArray[np.generic]:
    name = "fake" if behaviour else "onnx-reference"
    with get_runtime(name).open(artifact, Settings(fake=behaviour)) as session:
        if behaviour.get("fault") == "stale-output":
            session.run(_negative(inputs))
        return session.run(inputs)["y"]


def _negative(inputs: Arrays) -> Arrays:
    first, *rest = inputs.items()
    return {first[0]: np.negative(first[1]), **dict(rest)}


@pytest.mark.parametrize(("fault", "op"), _CASES, ids=lambda x: x.name if isinstance(x, Fault) else x)
def test_each_fault_shows_at_each_of_its_operators(fault: Fault, op: str, one_node: Callable[..., Artifact]) -> None:
    inputs, attributes = _SPECIAL.get((fault.name, op), _PLAIN[op])
    artifact = one_node(op, inputs, attributes)
    want, got = _answer(artifact, inputs), _answer(artifact, inputs, fault=fault.name)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert not np.allclose(got.astype(float), want.astype(float), rtol=2e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.kind == "math-mode"])
def test_a_math_mode_is_a_small_error(name: str, one_node: Callable[..., Artifact]) -> None:
    for op in ("MatMul", "Gemm", "Attention"):
        inputs, attributes = _PLAIN[op]
        artifact = one_node(op, inputs, attributes)
        want, got = (_answer(artifact, inputs, **given).astype(float) for given in ({}, {"fault": name}))
        assert 1e-5 < np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-2


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.kind == "nondeterminism"])
def test_nondeterminism_differs_from_call_to_call(name: str, one_node: Callable[..., Artifact]) -> None:
    inputs, attributes = _PLAIN["MatMul"]
    with get_runtime("fake").open(one_node("MatMul", inputs, attributes), Settings(fake={"fault": name})) as session:
        assert not np.array_equal(session.run(inputs)["y"], session.run(inputs)["y"])


def test_other_operators_compute_as_they_should(linear: Artifact) -> None:
    inputs = linear.inputs("2x7")
    got = _answer(linear, inputs, fault="softmax-axis")
    np.testing.assert_array_equal(got, _answer(linear, inputs))


def test_any_inputs_can_be_asked_and_bound(linear: Artifact) -> None:
    x = np.ones((3, 4, 4), np.float32)
    with get_runtime("fake").open(linear, Settings(fake={"fault": "tf32"})) as session:
        assert session.run({"x": x})["y"].shape == (3, 4, 3)
        session.bind({"x": x})()


def test_an_unknown_fault_is_told_with_those_there_are(linear: Artifact) -> None:
    with pytest.raises(
        BackendError, match=r"no fault 'sofmax-axis'; did you mean 'softmax-axis'\?; it has: softmax-axis, "
    ):
        get_runtime("fake").open(linear, Settings(fake={"fault": "sofmax-axis"}))


def test_the_definition_of_attention_is_right_without_a_fault() -> None:
    """On the standard's own cases, but for those that it refuses."""
    tried = 0
    with np.errstate(all="ignore"):  # the standard's other cases overflow on purpose
        cases = load_model_tests(kind="node")
    for case in cases:
        model = case.model
        if model is None or not case.name.startswith("test_attention_") or "_expanded" in case.name:
            continue
        if model.opset_import[0].version > 24 or any(word in case.name for word in _NOT_TAKEN):
            continue
        evaluator = ReferenceEvaluator(model, new_ops=[Attention])
        for feeds, expected in case.data_sets or ():
            named = dict(zip((value.name for value in model.graph.input), feeds, strict=True))
            with np.errstate(all="ignore"):
                outputs = evaluator.run(None, named)
            for got, want in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-2, atol=2e-3, err_msg=case.name)
        tried += 1
    assert tried > 40


def test_ten_bits_of_mantissa_round_to_nearest_even() -> None:
    step = 2.0**-10
    given = np.array([1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -3.0, np.inf, 0.0], np.float32)
    np.testing.assert_array_equal(faulty.to_mantissa(given, 10), [1.0, 1 + 2 * step, 1 + step, -3.0, np.inf, 0.0])
