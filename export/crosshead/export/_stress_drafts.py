"""The stress set as drafts: which sizes, numbers and masks find faults, each with its reason. NumPy only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from crosshead.export._records import floating_dtype
from crosshead.export._stress_inputs import Bools, Inputs, Sizes, StressInput, one_row
from crosshead.export.artifact import Apart, Arrays, Precision

BEYOND_FP16: Final = 1000.0
"""A token of so many times the usual size has a score with itself beyond 65504, and with others far below."""

_SMALL_LENGTHS: Final = (7, 11, 13, 5, 3, 17)
_DTYPES: Final[Mapping[Precision, Any]] = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
_SCALED_ROLES: Final = ("", "query", "key", "past_key")
_JUNK: Final = 100.0

Build = Callable[[float], tuple[Arrays, tuple[Apart, ...]]]


@dataclass(frozen=True)
class Draft:
    """A case of the stress set before anybody has computed it.

    Attributes:
        label: name, or what goes before the factor in it.
        reason: why it is there, in one clause; `{factor}` stands for the factor.
        sizes: of the dynamic axes.
        build: makes the inputs, and the rows that decide nothing beside padded and fully masked ones; None from a
            factor of 0 on.
        factors: the first at which the case is conditioned well enough to be judged is taken.
    """

    label: str
    reason: str
    sizes: Sizes
    build: Build
    factors: tuple[float, ...] = (0.0,)

    def name(self, factor: float) -> str:
        """Return the name at a factor."""
        return f"{self.label} {factor:g}" if factor else self.label


class Drafts:
    """All drafts of one source."""

    def __init__(self, inputs: Inputs, example: Sizes, precision: Precision) -> None:
        """Prepare.

        Args:
            inputs: of the source.
            example: size of each dynamic axis in the source's own example.
            precision: of the graph; says what is denormal, and what overflows.
        """
        self._inputs = inputs
        self._precision: Precision = precision
        query = inputs.query
        batch, queries = (query.spec.shape[0], query.length) if query is not None else ("", "")
        self._batch = batch if isinstance(batch, str) else ""
        self._queries = queries if isinstance(queries, str) else ""
        elsewhere = {axis for each in inputs.all if each.kind != "past" for axis in each.spec.shape}
        self._past = {
            axis
            for each in inputs.of("past")
            for axis in each.spec.shape
            if isinstance(axis, str) and axis not in elsewhere
        }
        self._keys = {each.length for each in inputs.of("tokens") if isinstance(each.length, str)} - {
            self._queries,
            self._batch,
            *self._past,
        }
        self._free = all(axis.isidentifier() for axis in example)  # else some axes are bound to each other
        self._example = dict(example)
        self.base = self._base()

    def _base(self) -> dict[str, int]:
        """Return small sizes: the example's where they are, else primes that no other axis has."""
        if not self._free:
            return dict(self._example)
        taken = {size for size in self._example.values() if size <= 16}
        base = {}
        for axis, size in self._example.items():
            limit = 3 if axis == self._batch else 16
            if 2 <= size <= limit:
                base[axis] = size
            elif axis == self._batch:
                base[axis] = 2
            else:
                base[axis] = next((n for n in _SMALL_LENGTHS if n not in taken), 7)
                taken.add(base[axis])
        return base

    def all(self) -> Iterator[Draft]:
        """Yield the drafts: sizes, then numbers, then masks."""
        yield from self._of_sizes()
        yield from self._of_numbers()
        for each in self._inputs.of("padding", "flags"):
            yield from self._of_padding(each)
        for each in self._inputs.of("mask"):
            yield from self._of_mask(each)
        yield from self._of_junk()

    # --- sizes

    def _of_sizes(self) -> Iterator[Draft]:
        if not self._free:
            return
        lengths = [axis for axis in self.base if axis != self._batch and axis not in self._past]
        if lengths:
            ones = dict.fromkeys(lengths, 1) | ({self._batch: 1} if self._batch else {})
            yield self._sized("one token", "axes of size 1 are broadcast, squeezed and reduced otherwise", ones)
        for length, what in ((13, "a prime"), (9, "odd, and no prime"), (33, "one more than a block of 32")):
            if self._queries:
                others = {axis: length + 2 * place + 2 for place, axis in enumerate(sorted(self._keys))}
                reason = f"{what}: kernels that work in blocks have a rest left over"
                yield self._sized(f"length {length}", reason, {self._queries: length, **others})
        if self._batch:
            yield self._sized("batch 1", "a batch of 1 is broadcast where it should not be", {self._batch: 1})
            more = max(self._example.get(self._batch, 1), 2) + 3
            if more <= 16:
                yield self._sized(f"batch {more}", "more sequences than the graph was exported on", {self._batch: more})
        if self._queries and self._keys:
            few, many = dict.fromkeys(self._keys, 3), dict.fromkeys(self._keys, 11)
            one = dict.fromkeys(self._keys, 1)
            yield self._sized("one key", "the softmax of a single score is 1", one | {self._queries: 5})
            reason = "where both have their place, one length is easily taken for the other"
            yield self._sized("fewer queries than keys", reason, many | {self._queries: 3})
            yield self._sized("more queries than keys", reason, few | {self._queries: 11})
        if self._past:
            new = {self._queries: 1} if self._queries else {}
            nothing = dict.fromkeys(self._past, 0)
            yield self._sized("past 0", "the first call of a decoder has nothing behind it", nothing)
            yield self._sized("past 1", "one token behind the new one", dict.fromkeys(self._past, 1) | new)
            yield self._sized("past 29", "one new token after many", dict.fromkeys(self._past, 29) | new)

    def _sized(self, name: str, reason: str, changed: Mapping[str, int]) -> Draft:
        sizes = self.base | dict(changed)
        return Draft(name, reason, sizes, lambda _: (self._inputs.draw(sizes), ()))

    # --- numbers

    def _of_numbers(self) -> Iterator[Draft]:
        if not self._inputs.of("tokens", "past"):
            return
        reason = "a softmax far from uniform shows a softcap after the mask, and masks that are filled with no infinity"
        yield self._scaled("gain", f"queries and keys at {{factor}} times their size: {reason}", (40, 20, 10, 5, 3))
        yield self._scaled(
            "saturated logits at gain", "a softmax near 0 and 1, which needs its maximum subtracted", (12, 6, 3)
        )
        if self._precision != "fp16":
            reason = "scores beyond 65504, where sums or masks in fp16 end"
            yield self._scaled("logits beyond fp16 at gain", reason, (600, 450))
        yield from self._one_large_token()
        yield self._changed("small inputs", "at 1e-3 the eps of a norm counts", lambda array, _: array * 1e-3)
        yield self._changed(
            "denormals", "numbers below the smallest normal one, which some kernels take for 0", self._denormal
        )
        yield self._changed(
            "equal logits", "all keys alike: every weight is 1 over the number of keys that are seen", _equal
        )

    def _scaled(
        self, label: str, reason: str, factors: tuple[float, ...], sizes: Mapping[str, int] | None = None
    ) -> Draft:
        at = self.base if sizes is None else sizes

        def build(factor: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays = self._inputs.draw(at)
            for each in self._inputs.of("tokens", "past"):
                if each.role in _SCALED_ROLES:
                    arrays[each.spec.name] = _as(arrays[each.spec.name].astype(np.float64) * factor, each)
            return arrays, ()

        return Draft(label, reason, at, build, factors)

    def _changed(self, name: str, reason: str, change: Callable[[NDArray[np.float64], StressInput], Any]) -> Draft:
        def build(_: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays = self._inputs.draw(self.base)
            for each in self._inputs.of("tokens", "past"):
                array = arrays[each.spec.name].astype(np.float64)
                arrays[each.spec.name] = _as(change(array, each), each)
            return arrays, ()

        return Draft(name, reason, self.base, build)

    def _denormal(self, array: NDArray[np.float64], each: StressInput) -> NDArray[np.float64]:
        tiny = float(ml_dtypes.finfo(_DTYPES[self._precision]).smallest_normal)  # type: ignore[no-untyped-call]  # NumPy's fields, and bfloat16 as well
        axis = each.length_axis
        if axis is None:
            return array
        odd = np.arange(array.shape[axis]) % 2 == 1
        moved = np.moveaxis(array, axis, 0)  # a view: (…, L, …) -> (L, …)
        moved[odd] = np.clip(moved[odd], -0.9, 0.9) * tiny
        return array

    def _one_large_token(self) -> Iterator[Draft]:
        query = self._inputs.query
        if query is None or query.kind != "tokens" or len(query.spec.shape) < 3:
            return

        def build(_: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays = self._inputs.draw(self.base)
            tokens = np.moveaxis(
                arrays[query.spec.name], query.length_axis or 1, 1
            )  # a view: (B, …, L, d) -> (B, L, …)
            batch, length = tokens.shape[:2]
            row = (batch - 1, length // 2)
            tokens[row] = _as(tokens[row].astype(np.float64) * BEYOND_FP16, query)
            aparts = (one_row("beyond fp16", batch, length, row),) if self._precision == "fp16" else ()
            return arrays, aparts

        reason = "its score with itself is beyond fp16, and no other row may be touched by it"
        yield Draft("one large token", reason, self.base, build)

    # --- masks

    def _of_padding(self, mask: StressInput) -> Iterator[Draft]:
        known = mask.kind == "padding"
        for name, reason, pattern in _PADDINGS:
            if known or pattern is not _nothing:
                yield self._masked(mask, name, reason, pattern)
        if known:
            yield self._lonely(mask, "")

    def _of_mask(self, mask: StressInput) -> Iterator[Draft]:
        named = f"{mask.spec.name}: " if len(self._inputs.of("mask", "padding")) > 1 else ""
        for name, reason, pattern in (*_PADDINGS[:-1], *_MASKS):
            yield self._masked(mask, f"{named}{name}", reason, pattern)
        yield self._lonely(mask, named)
        if floating_dtype(mask.example.dtype):
            lowest = float(ml_dtypes.finfo(mask.example.dtype).min)  # type: ignore[no-untyped-call]  # as above
            reason = "hidden keys are often given the lowest finite number instead of -inf"
            for name, pattern in (("lowest finite fill", _scattered), ("row of lowest finite fill", _row_of_nothing)):
                yield self._masked(mask, f"{named}{name}", reason, pattern, fill=lowest)
        for axis, size in enumerate(mask.spec.shape):
            if isinstance(size, str) and self._own(mask, size):
                reason = f"axis {axis} of the mask has size 1 and is broadcast"
                yield self._sized(f"{named}broadcast over axis {axis}", reason, {size: 1})

    def _lonely(self, mask: StressInput, named: str) -> Draft:
        """A softmax over one key is 1 whatever its score; a score far below 0 loses to a mask that is no infinity."""
        sizes = self.base | ({self._batch: 5} if self._batch and self._free else {})
        scaled = self._scaled("", "", (40.0,), sizes)

        def build(factor: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays, aparts = scaled.build(factor)
            arrays[mask.spec.name] = mask.written(_each_its_own(mask.shape(sizes)))
            return arrays, aparts

        reason = "at {factor} times the size of queries and keys the only key that is kept may have any score"
        return Draft(f"{named}one key kept at gain", reason, sizes, build, (40.0,))

    def _own(self, mask: StressInput, axis: str) -> bool:
        """Whether no other input has an axis, so that it may have size 1."""
        return self._free and all(axis not in each.spec.shape for each in self._inputs.all if each is not mask)

    def _masked(
        self, mask: StressInput, name: str, reason: str, pattern: "_Pattern", fill: float | None = None
    ) -> Draft:
        def build(_: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays = self._inputs.draw(self.base)
            keep = pattern(mask.shape(self.base))
            written = mask.written(keep)
            if fill is not None:
                written = np.where(keep, 0.0, fill).astype(mask.example.dtype)
            arrays[mask.spec.name] = written
            return arrays, ()

        return Draft(name, reason, self.base, build)

    def _of_junk(self) -> Iterator[Draft]:
        """Put numbers that must not be seen where a mask hides them."""
        mask = next(iter(self._inputs.of("padding")), None) or next(
            (each for each in self._inputs.of("mask") if each.spec.shape[-1] in self._own_lengths()), None
        )
        if mask is None:
            return
        over = [
            each
            for each in self._inputs.of("tokens")
            if len(each.spec.shape) >= 3 and each.length == mask.spec.shape[-1]
        ]
        if not over:
            return
        reason = "what is masked must not reach the rest"
        for name, change in (
            ("large numbers", lambda array: array * _JUNK),
            ("NaN", lambda array: array * np.nan),
            ("Inf", lambda array: np.copysign(np.inf, array)),
        ):
            yield Draft(f"{name} at masked positions", reason, self.base, self._junk(mask, over, change))

    def _own_lengths(self) -> set[int | str]:
        lengths = (each.length for each in self._inputs.of("tokens") if len(each.spec.shape) >= 3)
        return {length for length in lengths if length is not None}

    def _junk(self, mask: StressInput, over: list[StressInput], change: Callable[[NDArray[np.float64]], Any]) -> Build:
        def build(_: float) -> tuple[Arrays, tuple[Apart, ...]]:
            arrays = self._inputs.draw(self.base)
            shape = mask.shape(self.base)
            hidden = ~_scattered(shape[-1:])  # (Lk,)
            keep = np.array(np.broadcast_to(~hidden, shape))
            if mask.kind == "mask":  # a query sees itself, and a hidden key is seen by nobody else
                keep |= np.eye(shape[-2], shape[-1], dtype=np.bool_)
            arrays[mask.spec.name] = mask.written(keep)
            for each in over:
                tokens = arrays[each.spec.name].astype(np.float64)
                moved = np.moveaxis(tokens, each.length_axis or 1, 1)  # a view: (B, …, L, d) -> (B, L, …)
                moved[:, hidden] = change(moved[:, hidden])
                arrays[each.spec.name] = _as(tokens, each)
            own = [] if self._inputs.query not in over else [_rows("masked tokens", tokens.shape[0], hidden)]
            return arrays, tuple(own)

        return build


def _rows(reason: str, batch: int, positions: Bools) -> Apart:
    """Return the rows of some positions in every sequence."""
    rows = tuple((sequence, int(at)) for sequence in range(batch) for at in np.flatnonzero(positions))
    return Apart(reason=reason, shape=(batch, positions.size), rows=rows)


def _as(array: NDArray[Any], each: StressInput) -> NDArray[Any]:
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(each.example.dtype)


def _equal(array: NDArray[np.float64], each: StressInput) -> NDArray[np.float64]:
    axis = each.length_axis
    if axis is None or not array.shape[axis] or each.role in ("value", "past_value"):
        return array
    return np.broadcast_to(np.take(array, [0], axis=axis), array.shape)


_Pattern = Callable[[tuple[int, ...]], Bools]
"""From the shape of a mask, its last axis the keys, to what is kept."""


def _by_key(kept: Callable[[NDArray[np.int64], int, int], Bools]) -> _Pattern:
    """A pattern of keys alone, which may differ from sequence to sequence: `kept(keys, length, sequence)`."""

    def pattern(shape: tuple[int, ...]) -> Bools:
        length, count = shape[-1], shape[0] if len(shape) > 1 else 1
        rows = np.stack([kept(np.arange(length), length, sequence) for sequence in range(count)])  # (B, Lk)
        rows = rows.reshape((count, *(1,) * (len(shape) - 2), length)) if len(shape) > 1 else rows[0]
        return np.array(np.broadcast_to(rows, shape))

    return pattern


def _hidden(length: int, sequence: int) -> int:
    """How many keys of a sequence are hidden: about a third, another number in the next one, and never all."""
    return min(length // 3 + sequence % 2, length - 1)


_left = _by_key(lambda keys, length, sequence: keys >= _hidden(length, sequence))
_right = _by_key(lambda keys, length, sequence: keys < length - _hidden(length, sequence))
_scattered = _by_key(lambda keys, _, sequence: (keys % 2 == 0) if sequence % 2 == 0 else (keys % 3 != 1))
_one_kept = _by_key(lambda keys, length, sequence: keys == (0 if sequence % 2 == 0 else length - 1))
_each_its_own = _by_key(lambda keys, length, sequence: keys == sequence % length)
_nothing = _by_key(lambda keys, _, sequence: np.full(keys.shape, sequence != 0))


def _own_only(shape: tuple[int, ...]) -> Bools:
    keep = np.zeros(shape, np.bool_)
    keep[:] = np.eye(shape[-2], shape[-1], dtype=np.bool_)
    keep[..., :1] |= ~keep.any(axis=-1, keepdims=True)
    return keep


def _row_of_nothing(shape: tuple[int, ...]) -> Bools:
    keep = np.ones(shape, np.bool_)
    keep[..., 1::3] = False
    keep[..., 0] = True
    keep[..., min(1, shape[-2] - 1), :] = False
    return keep


_PADDINGS: Final = (
    ("left padding", "decoders pad on the left, and causal masks and positions are then easily off", _left),
    ("right padding", "sequences of unequal lengths in one batch", _right),
    ("non-contiguous padding", "lengths alone do not say which keys are hidden", _scattered),
    ("one key kept", "all others hidden: the first one, or the last", _one_kept),
    ("sequence of padding", "fully masked: right implementations give 0, NaN or a mean", _nothing),
)
_MASKS: Final = (
    ("own position only", "each query sees one key, another each", _own_only),
    ("fully masked row", "right implementations give 0, NaN or a mean there, and all the rest alike", _row_of_nothing),
)
