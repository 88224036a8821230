"""Each law on attention in NumPy, float64: it holds of a right one, and breaks on one with its fault."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crosshead.export.artifact import TensorSpec
from crosshead.harness.lawbook import CALLS, LAWS, Law, Question
from crosshead.harness.signature import Signature, distance

Array = NDArray[Any]
Signed = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
WIDTH, HEADS = 8, 2
LAW = {law.name: law for law in (*LAWS, CALLS)}
WEIGHTS = np.random.default_rng(7).standard_normal((4, WIDTH, WIDTH)) / np.sqrt(WIDTH)


def heads(x: Array) -> Array:
    return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)  # (B, S, D) -> (B, H, S, d)


def attention(
    query: Array,
    key: Array | None = None,
    *,
    key_padding_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    causal: bool = False,
    ahead: int = 0,
    fill: float = -np.inf,
    axis: int = -1,
    total: float = 1.0,
    roll: int = 0,
    positions: bool = False,
    key_positions: bool = False,
    stale_past: bool = False,
) -> tuple[Array, ...]:
    """Attention with faults: `ahead` and `fill` of the mask, `axis` and `total` of softmax, `roll` of the batch."""
    x = query + np.arange(query.shape[1])[:, None] if positions else query
    source = np.roll(x if key is None else key, roll, axis=0)
    source = source + np.arange(source.shape[1])[:, None] if key_positions else source
    q, k, v = (heads(each @ weight) for each, weight in zip((x, source, source), WEIGHTS, strict=False))
    if past_key is not None and past_value is not None:
        k, v = (np.concatenate((past, new), axis=2) for past, new in ((past_key, k), (past_value, v)))
        if stale_past:
            k = np.concatenate((np.zeros_like(past_key), k[:, :, past_key.shape[2] :]), axis=2)
    scores = q @ k.swapaxes(-1, -2)  # (B, H, L, S)
    kept = np.ones(scores.shape, bool)
    if causal:
        kept &= (
            np.tri(x.shape[1], k.shape[2], k.shape[2] - x.shape[1] * (past_key is not None or key is None) + ahead) > 0
        )
    if key_padding_mask is not None:
        kept &= ~key_padding_mask[:, None, None, :]
    scores = np.where(kept, scores, fill)
    weights = np.exp(scores - np.maximum(scores.max(axis=axis, keepdims=True), -1e300))
    weights = total * weights / np.maximum(weights.sum(axis=axis, keepdims=True), 1e-300)
    output = (weights @ v).swapaxes(1, 2).reshape(x.shape) @ WEIGHTS[3]  # (B, H, L, d) -> (B, L, D)
    return (output, k, v) if past_key is not None else (output, weights)


def spec(name: str, *shape: int | str, dtype: str = "float64") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


TOKENS = spec("query", "batch", "seq", WIDTH)
KEYS = spec("key", "batch", "kv_seq", WIDTH)
PADDING = spec("key_padding_mask", "batch", "seq", dtype="bool")
CACHE = tuple(spec(name, "batch", HEADS, "past", WIDTH // HEADS) for name in ("past_key", "past_value"))
OUTPUT = spec("output", "batch", "seq", WIDTH)
PRESENT = tuple(spec(n, "batch", HEADS, "past + seq", WIDTH // HEADS) for n in ("present_key", "present_value"))
SIZES = {"batch": 2, "seq": 7, "kv_seq": 5, "past": 3}


def ask(law: Law, signature: Signed, run: Callable[..., tuple[Array, ...]]) -> float | None:
    """Return the largest violation over the largest output; None where the law says nothing."""
    inputs, outputs = signature
    rng = np.random.default_rng(3)
    arrays: dict[str, Array] = {}
    for each in inputs:
        shape = [SIZES[axis] if isinstance(axis, str) else axis for axis in each.shape]
        arrays[each.name] = np.zeros(shape, bool) if each.dtype == "bool" else rng.standard_normal(shape)

    def outputs_of(given: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip([each.name for each in outputs], run(**given), strict=False))

    question = Question(Signature(inputs, outputs, {}), arrays, outputs_of)
    pairs = list(law.ask(question))
    return max((distance(pair.got, pair.want) / pair.scale for pair in pairs), default=None)


CAUSAL = partial(attention, causal=True)
CROSS = ((TOKENS, KEYS), (OUTPUT,))
SELF = ((TOKENS,), (OUTPUT,))
PADDED = ((TOKENS, PADDING), (OUTPUT,))
DECODE = ((TOKENS, *CACHE), (OUTPUT, *PRESENT))
WEIGHED = ((TOKENS, KEYS), (OUTPUT, spec("weights", "batch", HEADS, "seq", "kv_seq")))

CASES: dict[str, tuple[Signed, Any, Any]] = {
    "batch-independence": (SELF, attention, partial(attention, roll=1)),
    "causality": (SELF, CAUSAL, partial(CAUSAL, ahead=1)),
    "shorter-prefix": (SELF, CAUSAL, attention),
    "padding-isolation": (PADDED, attention, partial(attention, fill=-30.0)),
    "token-permutation": (SELF, attention, partial(attention, positions=True)),
    "key-permutation": (CROSS, attention, partial(attention, key_positions=True)),
    "one-query-alone": (CROSS, attention, partial(attention, axis=-2)),
    "rows-sum-to-1": (WEIGHED, attention, partial(attention, total=1.001)),
    "decode-against-full": (DECODE, CAUSAL, partial(CAUSAL, stale_past=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_law_holds_of_right_attention_and_breaks_on_its_fault(name: str) -> None:
    signature, right, wrong = CASES[name]
    held = ask(LAW[name], signature, right)
    broken = ask(LAW[name], signature, wrong)
    assert held is not None
    assert held < 1e-13
    assert broken is not None
    assert broken > 1e-4


@pytest.mark.parametrize(
    ("signature", "right"),
    [
        (SELF, attention),
        (SELF, CAUSAL),
        (CROSS, attention),
        (PADDED, attention),
        (DECODE, CAUSAL),
        (WEIGHED, attention),
    ],
)
def test_every_law_that_applies_holds_of_right_attention(signature: Signed, right: Any) -> None:
    other = {"causality", "shorter-prefix"} if right is attention else {"token-permutation"}
    for law in (*LAWS, CALLS):
        violation = ask(law, signature, right)
        assert violation is None or law.name in other or violation < 1e-13, law.name


def test_a_law_says_nothing_of_a_graph_without_its_axes_or_roles() -> None:
    asked = {name for name in LAW if ask(LAW[name], SELF, attention) is not None}
    assert asked == {"batch-independence", "causality", "shorter-prefix", "token-permutation", "call-independence"}
    fixed = ((spec("x", 2, 7, WIDTH),), (spec("y", 2, 7, WIDTH),))
    assert {name for name in LAW if ask(LAW[name], fixed, lambda x: (x,)) is not None} == {"call-independence"}


def test_a_backend_that_remembers_the_call_before_is_found() -> None:
    before: list[Array] = []

    def stale(query: Array) -> tuple[Array]:
        before.append(query)
        return (before[-2] if len(before) > 1 else query,)

    violation = ask(CALLS, SELF, stale)
    assert violation is not None
    assert violation > 0.1


def test_heads_that_leave_the_hull_of_their_values_break_convexity() -> None:
    inputs = (TOKENS, KEYS, spec("value", "batch", "kv_seq", WIDTH))

    def plain(query: Array, key: Array, value: Array, factor: float = 1.0) -> tuple[Array]:
        weights = np.exp(query @ key.swapaxes(-1, -2))
        return (factor * (weights / weights.sum(axis=-1, keepdims=True)) @ value,)

    held = ask(LAW["convexity"], (inputs, (OUTPUT,)), plain)
    assert held is not None
    assert held < 1e-13
    beyond = ask(LAW["convexity"], (inputs, (OUTPUT,)), partial(plain, factor=3.0))
    assert beyond is not None
    assert beyond > 0.01


def test_integer_tokens_are_exchanged_among_themselves() -> None:
    ids = spec("input_ids", "batch", "seq", dtype="int64")
    signature = Signature((ids,), (OUTPUT,), {})
    arrays = {"input_ids": np.array([[1, 5, 9]])}
    drawn = signature.redrawn(arrays, np.random.default_rng(0))["input_ids"]
    assert set(drawn.ravel()) <= {1, 5, 9}
    assert signature.tokens == ((ids, "seq"),)


def test_a_batch_axis_is_known_by_its_name_or_its_place() -> None:
    last = Signature((spec("x", "seq", "batch", WIDTH),), (spec("y", "seq", "batch", WIDTH),), {})
    assert last.batch == "batch"
    unnamed = Signature((spec("x", "rows", "columns"),), (spec("y", "rows"),), {})
    assert unnamed.batch == "rows"
    squares = Signature((spec("x", "s", "s"),), (spec("y", "s"),), {})
    assert squares.batch is None, "an axis that an array has twice is no batch"


def test_distance_counts_nan_and_inf_on_one_side_as_infinite() -> None:
    nan, inf = np.nan, np.inf
    assert distance(np.array([nan, inf, 1.0]), np.array([nan, inf, 1.5])) == 0.5
    assert distance(np.array([nan]), np.array([1.0])) == inf
    assert distance(np.array([inf]), np.array([-inf])) == inf
    assert distance(np.zeros(0), np.zeros(0)) == 0.0
