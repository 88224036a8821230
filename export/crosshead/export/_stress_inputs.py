"""What each input of a source is to attention, and inputs of any size drawn by that. NumPy only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from crosshead.export._records import floating_dtype
from crosshead.export.artifact import Apart, Arrays, TensorSpec

Array = NDArray[np.generic]
Bools = NDArray[np.bool_]
Sizes = Mapping[str, int]
Kind = Literal["tokens", "past", "padding", "mask", "flags", "whole", "other"]
"""`padding` and `mask` have a known meaning; `flags` are zeros and ones of which either may mean "keep"."""

LOWEST_KEPT: Final = -6e4
"""A number that is added to a score and lies below this hides it: -inf, and the lowest finite number of any type."""

_MASKS: Final = ("attn_mask", "key_padding_mask")
_PASTS: Final = ("past_key", "past_value")
_HEADS: Final = ("query", "key", "value")
_STREAM: Final = 0x57E5


@dataclass(frozen=True)
class StressInput:
    """One input.

    Attributes:
        spec: name, dtype, and a size or the name of each axis.
        example: an array that the source takes.
        kind: how it is drawn, and what may be done to it.
        role: as declared or told by its name; empty where nobody says.
        blocks: of a boolean mask: whether true hides a key.
    """

    spec: TensorSpec
    example: Array
    kind: Kind
    role: str = ""
    blocks: bool = False

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the shape at some sizes of the dynamic axes."""
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.spec.shape)

    @property
    def length_axis(self) -> int | None:
        """The axis that counts tokens: the second, or the third of (batch, heads, length, width); None without one."""
        rank = len(self.spec.shape)
        if rank == 4 and (self.kind == "past" or self.role in _HEADS):
            return 2
        return 1 if rank >= 2 and self.kind != "past" else None

    @property
    def length(self) -> int | str | None:
        """The size or the name of that axis."""
        return None if self.length_axis is None else self.spec.shape[self.length_axis]

    def written(self, keep: Bools) -> Array:
        """Return a mask that keeps what `keep` says, in the input's own dtype and meaning."""
        dtype = self.example.dtype
        if dtype.kind == "b":
            return ~keep if self.blocks else keep
        if floating_dtype(dtype):
            return np.where(keep, np.float32(0.0), np.float32(-np.inf)).astype(dtype)
        return keep.astype(dtype)

    def kept(self, array: Array) -> Bools:
        """Return what a mask keeps."""
        if array.dtype.kind == "b":
            return ~array.astype(np.bool_) if self.blocks else array.astype(np.bool_)
        return np.asarray(array.astype(np.float64) > LOWEST_KEPT)


@dataclass(frozen=True)
class Structure:
    """Which keys a query can see whatever the masks say.

    Attributes:
        known: whether the source tells; else it may be causal, or see its own position alone.
        is_causal, window: as in `AttentionConfig`.
    """

    known: bool = False
    is_causal: bool = False
    window: int | None = None

    def sees(self, queries: int, keys: int, past: int) -> Bools:
        """Return (queries, keys) of what is certainly seen.

        Where nothing is known, a query among as many keys surely sees its own position; among others, those up to it.
        """
        query, key = np.arange(queries)[:, None] + past, np.arange(keys)[None]
        if not self.known and queries == keys:
            return np.asarray(query == key)
        seen = np.ones((queries, keys), np.bool_)
        if self.is_causal or not self.known:
            seen &= key <= query
        if self.window is not None:
            seen &= np.abs(query - key) < self.window
        return seen


def recognise(
    specs: Sequence[TensorSpec], examples: Arrays, roles: Mapping[str, str], *, blocks_where_true: bool
) -> list[StressInput]:
    """Say of each input what it is: by its role where there is one, else by dtype, shape, values and name.

    Args:
        specs: the inputs of the graph.
        examples: arrays of the same names.
        roles: by input name.
        blocks_where_true: of boolean inputs with the role attn_mask.
    """
    found = []
    for spec in specs:
        role, example = roles.get(spec.name, ""), examples[spec.name]
        blocks = role == "key_padding_mask" or blocks_where_true
        found.append(StressInput(spec, example, _kind(spec, example, role), role, blocks))
    return found


def _kind(spec: TensorSpec, example: Array, role: str) -> Kind:
    rank, floating = len(spec.shape), floating_dtype(example.dtype)
    if role in _PASTS:
        return "past" if floating else "other"
    if role in _MASKS and rank >= 2:
        if example.dtype.kind == "b" or floating:
            return "padding" if role == "key_padding_mask" and rank == 2 else "mask"
        return "flags"
    if floating:
        hides = bool((example.astype(np.float32) <= LOWEST_KEPT).any())
        return "other" if hides or "mask" in spec.name.lower() or rank < 2 else "tokens"
    zeros_and_ones = bool(((example == 0) | (example == 1)).all())
    if "mask" in spec.name.lower() and rank == 2 and zeros_and_ones and example.size:
        return "flags"
    return "whole" if example.dtype.kind in "iu" else "other"


@dataclass(frozen=True)
class Inputs:
    """All inputs of a source."""

    all: tuple[StressInput, ...]
    structure: Structure
    seed: int

    def of(self, *kinds: Kind) -> list[StressInput]:
        """Return the inputs of some kinds."""
        return [each for each in self.all if each.kind in kinds]

    @property
    def query(self) -> StressInput | None:
        """The input whose tokens are the queries; None where nothing has such an axis."""
        tokens = [each for each in self.all if each.kind in ("tokens", "whole") and len(each.spec.shape) >= 2]
        return next((each for each in tokens if each.role == "query"), tokens[0] if tokens else None)

    def draw(self, sizes: Sizes) -> Arrays:
        """Draw inputs: normal tokens, whole numbers in the example's range, masks that hide some keys of every row.

        An input that is none of these is the example's, stretched by its nearest elements.

        Raises:
            ValueError: an empty example cannot be stretched.
        """
        drawn: Arrays = {}
        for stream, each in enumerate(self.all):
            generator = np.random.default_rng((self.seed, _STREAM, stream))
            shape, dtype = each.shape(sizes), each.example.dtype
            if each.kind in ("tokens", "past"):
                drawn[each.spec.name] = generator.standard_normal(shape).astype(dtype)
            elif each.kind == "whole":
                low, high = (int(each.example.min()), int(each.example.max())) if each.example.size else (0, 0)
                drawn[each.spec.name] = generator.integers(low, high, shape, dtype=dtype, endpoint=True)
            elif each.kind in ("padding", "mask"):
                mask = each.written(_mixed(each.kind, shape, generator))
                if each.kind == "mask" and floating_dtype(dtype):
                    mask = np.where(mask == 0, generator.standard_normal(shape), mask).astype(dtype)
                drawn[each.spec.name] = mask
            else:
                drawn[each.spec.name] = _stretched(each.example, shape)
        return drawn

    def apart(self, arrays: Arrays) -> list[Apart]:
        """Return the rows that decide nothing: padded positions, and queries that may have no key left."""
        query = self.query
        if query is None:
            return []
        batch, length = arrays[query.spec.name].shape[0], arrays[query.spec.name].shape[query.length_axis or 1]
        padded = np.zeros((batch, length), np.bool_)
        for each in self.of("padding"):
            if self._is_own(each, query):
                padded |= ~each.kept(arrays[each.spec.name])
        masked = self._masked(arrays, batch, length) & ~padded
        found = [("padded", padded), ("fully masked", masked)]
        return [_apart(reason, rows) for reason, rows in found if rows.any()]

    def _is_own(self, mask: StressInput, query: StressInput) -> bool:
        """Whether a padding mask over keys speaks of the queries: one sequence goes in, and it has the mask's axes."""
        over = [each for each in self.of("tokens", "whole") if (each.spec.shape[0], each.length) == mask.spec.shape]
        floating = [each for each in over if each.kind == "tokens"] or over[:1]
        return len(floating) == 1 and query in over

    def _masked(self, arrays: Arrays, batch: int, length: int) -> Bools:
        """Return (batch, queries): where nothing is certainly kept, in any head."""
        kept: dict[int, Bools] = {}
        for each in self.of("padding", "mask"):
            keep = each.kept(arrays[each.spec.name])
            if each.kind == "padding":
                keep = keep[:, None, None, :]  # (B, Lk) -> (B, 1, 1, Lk)
            keep = keep.reshape((1,) * (4 - keep.ndim) + keep.shape) if keep.ndim < 4 else keep
            if keep.ndim == 4 and keep.shape[2] in (1, length) and keep.shape[0] in (1, batch):
                keys = keep.shape[3]
                kept[keys] = keep & kept[keys] if keys in kept else keep
        masked = np.zeros((batch, length), np.bool_)
        past = next((arrays[each.spec.name].shape[2] for each in self.of("past")), 0)
        for keys, keep in kept.items():
            seen = keep & self.structure.sees(length, keys, past)  # (B | 1, H | 1, L, Lk)
            masked |= ~np.asarray(seen.any(axis=-1)).all(axis=1)  # (B | 1, H | 1, L) -> (B | 1, L)
        for each in self.of("flags"):
            masked |= _one_sided(arrays[each.spec.name], batch, length)
        return masked


def _apart(reason: str, rows: Bools) -> Apart:
    batch, length = rows.shape
    return Apart(reason=reason, shape=(batch, length), rows=tuple((int(b), int(i)) for b, i in np.argwhere(rows)))


def one_row(reason: str, batch: int, length: int, row: tuple[int, int]) -> Apart:
    """Return one row that decides nothing."""
    return Apart(reason=reason, shape=(batch, length), rows=(row,))


def _one_sided(flags: Array, batch: int, length: int) -> Bools:
    """Return (batch, queries): where flags up to a position are all alike, so that a causal row may keep nothing."""
    if flags.shape != (batch, length):
        return np.zeros((batch, length), np.bool_)
    plain = flags.astype(np.bool_)
    some, every = np.logical_or.accumulate(plain, 1), np.logical_and.accumulate(plain, 1)
    return np.asarray(~some | every)


def _mixed(kind: Kind, shape: tuple[int, ...], generator: np.random.Generator) -> Bools:
    """Keep some: right padding of up to a third in the first sequence; of a mask three in four, and own and first."""
    if kind == "padding":
        keep = np.ones(shape, np.bool_)
        keep[0, shape[1] - shape[1] // 3 :] = False
        return keep
    keep = generator.random(shape) < 0.75
    keep |= np.eye(shape[-2], shape[-1], dtype=np.bool_)
    keep[..., :1] = True
    return keep


def _stretched(array: Array, shape: tuple[int, ...]) -> Array:
    for axis, size in enumerate(shape):
        old = array.shape[axis]
        if old == 0 and size > 0:
            raise ValueError("an empty input cannot be stretched")
        if old != size:
            array = np.take(array, np.arange(size) * old // max(size, 1), axis=axis)  # axis: old -> size
    return array
