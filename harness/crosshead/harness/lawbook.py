"""The laws: what holds of a graph's outputs whatever they are, so that a fault shows where every backend agrees.

Each law is a function that runs inputs made for it and yields pairs of arrays that must be equal but for rounding. It
yields nothing where the graph has not the axes or roles that it speaks of. Whether it holds of the module at all (a
module that is not causal breaks causality) is found out by asking the graph in float64 (`laws`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, TensorSpec
from crosshead.harness.metrics import is_floating
from crosshead.harness.signature import PADDING, PAST, Signature, first, largest, take

Array = NDArray[Any]
Run = Callable[[Arrays], Mapping[str, Array]]

GAINS: Final = {"fp32": 40.0, "bf16": 40.0, "fp16": 8.0}
"""So many times the usual size of tokens makes softmax pick single keys: what leaks through a mask then weighs."""


class Pair(NamedTuple):
    """Two arrays that a law says are equal.

    Attributes:
        output: name of the output that they are part of.
        got, want: of one shape.
        scale: the largest magnitude of that output; what they differ by is measured by it.
    """

    output: str
    got: Array
    want: Array
    scale: float


@dataclass(frozen=True)
class Question:
    """What a law is asked on.

    Attributes:
        signature: of the graph.
        inputs: a set of inputs that the graph takes.
        run: a backend, or the graph in float64.
        gain: of the second set of inputs, where a law is asked on two.
        seed: of what is drawn.
    """

    signature: Signature
    inputs: Arrays
    run: Run
    gain: float = 40.0
    seed: int = 0

    @cached_property
    def outputs(self) -> Mapping[str, Array]:
        """What comes of the inputs as they are."""
        return self.run(self.inputs)

    @property
    def rng(self) -> np.random.Generator:
        """A new generator: every call of a law draws the same numbers."""
        return np.random.default_rng((40961, self.seed))

    def at_gain(self) -> tuple["Question", "Question"]:
        """Return the question itself, and the same with tokens so large that softmax saturates."""
        return self, replace(self, inputs=self.signature.gained(self.inputs, self.gain))

    def plain(self, symbol: str | None = None) -> list[TensorSpec]:
        """Return the outputs whose axes are all known, and have this one among them if one is named."""
        known = [spec for spec in self.signature.outputs if self.signature.is_plain(spec) and spec.name in self.outputs]
        return [spec for spec in known if symbol is None or symbol in spec.shape]


Ask = Callable[[Question], Iterator[Pair]]


@dataclass(frozen=True)
class Law:
    """One law.

    Attributes:
        name: in records and reports.
        holds: what holds, as a sentence goes on after "on this backend".
        ask: yields the pairs that must be equal.
        limit_u: largest natural violation that is let pass, in unit roundoffs of the largest output.
        rounds: whether the two sides may be rounded differently; then a module that loses more has a wider limit.
        reshapes: whether it is asked at other sizes than those of the case.
    """

    name: str
    holds: str
    ask: Ask
    limit_u: float
    rounds: bool = True
    reshapes: bool = False


def _call_independence(question: Question) -> Iterator[Pair]:
    """The same inputs before and after others of the same shape."""
    before = question.outputs
    question.run(question.signature.redrawn(question.inputs, question.rng))
    after = question.run(question.inputs)
    for name, array in before.items():
        if is_floating(array) and after[name].shape == array.shape:
            yield Pair(name, after[name], array, largest(array))


def _batch_independence(question: Question) -> Iterator[Pair]:
    """A row alone, and between two others."""
    signature, batch = question.signature, question.signature.batch
    if batch is None or not any(batch in spec.shape for spec in signature.outputs):
        return
    rng = question.rng
    row = signature.take(question.inputs, batch, [0])
    alone = question.run(row)
    among = question.run(signature.joined([signature.redrawn(row, rng), row, signature.redrawn(row, rng)], batch))
    for spec in signature.outputs:
        if "float" in spec.dtype and batch in spec.shape:
            yield Pair(spec.name, take(among[spec.name], spec, batch, [1]), alone[spec.name], largest(alone[spec.name]))


def _causality(question: Question) -> Iterator[Pair]:
    """Outputs of the first half of the positions, with other tokens in the second."""
    for asked in question.at_gain():
        signature, axis, rng = asked.signature, asked.signature.query_axis, asked.rng
        if axis is None:
            return
        asked = replace(asked, inputs=signature.lengthened(asked.inputs, axis, 5, rng))  # a decoding step has one token
        cut = (signature.size(asked.inputs, axis) + 1) // 2
        other = signature.redrawn(asked.inputs, rng)
        changed = dict(asked.inputs)
        for spec, along in signature.tokens:
            places = np.arange(changed[spec.name].shape[spec.shape.index(along)])
            changed[spec.name] = _chosen(places >= cut, spec, along, other[spec.name], changed[spec.name])
        moved = asked.run(changed)
        for spec in asked.plain(axis):
            want = asked.outputs[spec.name]
            before = first(want, spec, axis, slice(cut))
            yield Pair(spec.name, first(moved[spec.name], spec, axis, slice(cut)), before, largest(want))


def _shorter_prefix(question: Question) -> Iterator[Pair]:
    """The first half of the positions alone."""
    signature, axis = question.signature, question.signature.query_axis
    if axis is None:
        return
    question = replace(question, inputs=signature.lengthened(question.inputs, axis, 5, question.rng))
    cut = (signature.size(question.inputs, axis) + 1) // 2
    shorter = question.inputs
    for along in {along for _, along in signature.tokens}:
        shorter = signature.take(shorter, along, np.arange(min(cut, signature.size(shorter, along))))
    alone = question.run(shorter)
    for spec in question.plain(axis):
        if spec.shape.count(axis) == 1 and not {along for _, along in signature.tokens} & {*spec.shape} - {axis}:
            want = question.outputs[spec.name]
            yield Pair(spec.name, alone[spec.name], first(want, spec, axis, slice(cut)), largest(want))


def _padding_isolation(question: Question) -> Iterator[Pair]:
    """Valid positions, with other tokens at padded ones; padding stands at the left, and in every second row apart.

    Two tokens of a row are left, and there are several rows, so that at the larger gain some query likes neither: then
    what leaks is all it sees.
    """
    signature = question.signature
    masks = [spec for spec in signature.inputs if signature.role(spec) == PADDING and len(spec.shape) == 2]
    if len(masks) != 1 or question.inputs[masks[0].name].dtype.kind not in "bf":
        return
    (mask,) = masks
    if signature.batch is not None:
        question = replace(question, inputs=signature.lengthened(question.inputs, signature.batch, 8, question.rng))
    rows, length = question.inputs[mask.name].shape
    if length < 2:
        return
    padded = np.zeros((rows, length), np.bool_)
    padded[::2, : max(1, length - 2)] = True
    padded[1::2, : length - 1 : 2] = True
    flags = padded if question.inputs[mask.name].dtype.kind == "b" else np.where(padded, -np.inf, 0.0)
    held = [spec for spec, along in signature.tokens if spec.shape[:2] == mask.shape and along == mask.shape[1]]
    for asked in question.at_gain():
        inputs = {**asked.inputs, mask.name: flags.astype(asked.inputs[mask.name].dtype)}
        asked = replace(asked, inputs=inputs)
        other = signature.redrawn(inputs, asked.rng, gain=3.0)
        changed = {
            **inputs,
            **{
                spec.name: np.where(_like(padded, inputs[spec.name]), other[spec.name], inputs[spec.name])
                for spec in held
            },
        }
        moved = asked.run(changed)
        for spec in asked.plain():
            got, want = moved[spec.name], asked.outputs[spec.name]
            if spec.shape[:2] == mask.shape and len(spec.shape) <= 3:
                yield Pair(spec.name, got[~padded], want[~padded], largest(want[~padded]))  # (B, S, …) -> (N, …)
            elif mask.shape[1] not in spec.shape:
                yield Pair(spec.name, got, want, largest(want))


def _token_permutation(question: Question) -> Iterator[Pair]:
    """Tokens in another order give outputs in that order."""
    axis = question.signature.query_axis
    if axis is not None:
        yield from _permuted(question, axis)


def _key_permutation(question: Question) -> Iterator[Pair]:
    """Keys of another sequence, or of a cache, in another order change nothing."""
    signature = question.signature
    axes = [axis for _, axis in signature.tokens]
    axes += [str(spec.shape[2]) for spec in signature.inputs if signature.role(spec) in PAST and len(spec.shape) == 4]
    for axis in dict.fromkeys(axes):
        if axis in signature.symbols and axis != signature.query_axis:
            yield from _permuted(question, axis)


def _permuted(question: Question, axis: str) -> Iterator[Pair]:
    signature = question.signature
    size = signature.size(question.inputs, axis)
    if size < 2:
        return
    order = question.rng.permutation(size) if size > 2 else np.arange(size)[::-1]
    moved = question.run(signature.take(question.inputs, axis, order))
    for spec in question.plain():
        want = question.outputs[spec.name]
        yield Pair(spec.name, moved[spec.name], take(want, spec, axis, order), largest(want))


def _one_query_alone(question: Question) -> Iterator[Pair]:
    """One query of several, alone; where keys come from another sequence."""
    signature, axis = question.signature, question.signature.query_axis
    sources = [spec for spec in signature.inputs if signature.role(spec) in ("key", "value")]
    cached = any(signature.role(spec) in PAST for spec in signature.inputs)  # then a token is a key as well
    if axis is None or not sources or cached or any(axis in spec.shape for spec in sources):
        return
    if signature.size(question.inputs, axis) < 2:
        return
    at = signature.size(question.inputs, axis) // 2
    alone = question.run(signature.take(question.inputs, axis, [at]))
    for spec in question.plain(axis):
        want = question.outputs[spec.name]
        yield Pair(spec.name, alone[spec.name], take(want, spec, axis, [at]), largest(want))


def _rows_sum_to_one(question: Question) -> Iterator[Pair]:
    """Values that are all alike come out as they are, whatever the weights; weights that are given out sum to 1."""
    signature, axis = question.signature, question.signature.query_axis
    by_role = {signature.role(spec): (spec, along) for spec, along in signature.tokens}
    spec, along = by_role.get("value", by_role.get("key", (None, None)))
    if axis is None or spec is None or along is None or along == axis:
        return
    place = spec.shape.index(along)
    alike = np.take(question.inputs[spec.name], [0], axis=place)
    shape = question.inputs[spec.name].shape
    given = question.run({**question.inputs, spec.name: np.broadcast_to(alike, shape).copy()})
    for out in question.plain(axis):
        got = given[out.name].astype(np.float64)
        if out.shape[-1] == along:  # the weights themselves
            yield Pair(out.name, got.sum(axis=-1), np.ones(got.shape[:-1]), 1.0)
        elif along not in out.shape:
            want = np.broadcast_to(np.take(got, [0], axis=out.shape.index(axis)), got.shape)
            yield Pair(out.name, got, want, largest(got))


def _convexity(question: Question) -> Iterator[Pair]:
    """Outputs that are heads lie between the smallest and the largest value of their column."""
    signature = question.signature
    values = [(spec, along) for spec, along in signature.tokens if signature.role(spec) == "value"]
    for spec, along in values:
        value = question.inputs[spec.name].astype(np.float64)
        place = spec.shape.index(along)
        low, high = value.min(axis=place, keepdims=True), value.max(axis=place, keepdims=True)
        for out in question.plain():
            got = question.outputs[out.name].astype(np.float64)
            alike = got.ndim == value.ndim and got.shape[-1] == value.shape[-1]
            if alike and all(size in (1, other) for size, other in zip(low.shape, got.shape, strict=True)):
                yield Pair(out.name, got, np.clip(got, low, high), largest(value))


def _decode_against_full(question: Question) -> Iterator[Pair]:
    """Tokens in two steps, the second with the cache of the first, and all at once."""
    signature, axis = question.signature, question.signature.query_axis
    pasts = [spec for spec in signature.inputs if signature.role(spec) in PAST]
    presents = [spec for spec in signature.outputs if "float" in spec.dtype and not signature.is_plain(spec)]
    if axis is None or not pasts or len(presents) != len(pasts) or len(signature.tokens) != 1:
        return
    if any(len(set(spec.shape) & {axis}) for spec in pasts) or len(signature.inputs) != len(pasts) + 1:
        return  # masks over the cache would have to grow with it
    tokens = signature.lengthened(question.inputs, axis, 6, question.rng)
    size = signature.size(tokens, axis)
    full = question.run(tokens)
    begun = question.run(signature.take(tokens, axis, np.arange(size - 2)))
    rest = signature.take(tokens, axis, np.arange(size - 2, size))
    rest |= {past.name: np.asarray(begun[present.name]) for past, present in zip(pasts, presents, strict=True)}
    ended = question.run(rest)
    for spec in signature.outputs:
        if spec in presents:
            yield Pair(spec.name, ended[spec.name], full[spec.name], largest(full[spec.name]))
        elif axis in spec.shape and signature.is_plain(spec):
            want = first(full[spec.name], spec, axis, slice(size - 2, None))
            yield Pair(spec.name, ended[spec.name], want, largest(full[spec.name]))


def _chosen(where: Array, spec: TensorSpec, along: str, then: Array, otherwise: Array) -> Array:
    """Return one array at some places of an axis, and another elsewhere."""
    shape = [-1 if axis == along else 1 for axis in spec.shape]
    return np.where(where.reshape(shape), then, otherwise)


def _like(padded: Array, array: Array) -> Array:
    """Return (B, S) as it broadcasts over (B, S, …)."""
    return padded.reshape(*padded.shape, *[1] * (array.ndim - 2))  # (B, S) -> (B, S, 1, …)


CALLS: Final = Law(
    "call-independence",
    "what a call gives does not depend on the call before it",
    _call_independence,
    4.0,
    rounds=False,
)

LAWS: Final[tuple[Law, ...]] = (
    Law(
        "batch-independence",
        "a row's result does not depend on the rest of the batch",
        _batch_independence,
        10.0,
        reshapes=True,
    ),
    Law("causality", "outputs do not move when later tokens do", _causality, 4.0, rounds=False),
    Law("shorter-prefix", "a prefix alone gives the prefix of the outputs", _shorter_prefix, 4.0, reshapes=True),
    Law(
        "padding-isolation",
        "padded positions do not move the others",
        _padding_isolation,
        4.0,
        rounds=False,
        reshapes=True,
    ),
    Law("token-permutation", "outputs follow the order of the tokens", _token_permutation, 10.0),
    Law("key-permutation", "the order of keys and values does not matter", _key_permutation, 10.0),
    Law("one-query-alone", "a query alone gives what it gives among others", _one_query_alone, 10.0, reshapes=True),
    Law("rows-sum-to-1", "the weights of a row sum to 1", _rows_sum_to_one, 16.0),
    Law("convexity", "outputs lie between the smallest and the largest value", _convexity, 4.0),
    Law(
        "decode-against-full",
        "decoding with a cache gives what the full pass gives",
        _decode_against_full,
        10.0,
        reshapes=True,
    ),
)
"""In the order in which they are asked."""
