"""Inputs and outputs by their named axes: what runs along one can be cut, permuted, lengthened and drawn again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, Manifest, TensorSpec
from crosshead.harness.metrics import is_floating

Array = NDArray[Any]

PAST = ("past_key", "past_value")
MASKS = ("attn_mask", "key_padding_mask")
PADDING = "key_padding_mask"
_NO_TOKENS = (*MASKS, "position_ids")
_BATCH = ("batch", "batch_size", "b", "n")


@dataclass(frozen=True)
class Signature:
    """What a graph takes and gives, the roles of its inputs, and what is known of its named axes.

    Attributes:
        inputs, outputs: in the order of the graph.
        roles: what each input is, by its name; an input without a role is what it is called.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    roles: Mapping[str, str]

    @staticmethod
    def of(manifest: Manifest) -> "Signature":
        """Return the signature of an artifact."""
        return Signature(manifest.inputs, manifest.outputs, manifest.roles)

    def role(self, spec: TensorSpec) -> str:
        """Return what an input is."""
        return self.roles.get(spec.name, spec.name)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of the inputs' dynamic axes, each once."""
        return tuple(dict.fromkeys(axis for spec in self.inputs for axis in spec.shape if isinstance(axis, str)))

    @cached_property
    def batch(self) -> str | None:
        """The axis of independent rows: one that is called so, else the first axis of the first output; None if none.

        No array has it twice.
        """
        named = [symbol for symbol in self.symbols if symbol.lower() in _BATCH]
        first = [spec.shape[0] for spec in self.outputs[:1] if spec.shape and spec.shape[0] in self.symbols]
        for symbol in (*named, *map(str, first)):
            if all(spec.shape.count(symbol) <= 1 for spec in (*self.inputs, *self.outputs)):
                return symbol
        return None

    @cached_property
    def tokens(self) -> tuple[tuple[TensorSpec, str], ...]:
        """Inputs that hold one entry a position, each with the axis of its positions; a cache is none of them."""
        found = []
        for spec in self.inputs:
            axes = [axis for axis in spec.shape if isinstance(axis, str) and axis != self.batch]
            if len(axes) == 1 and self.role(spec) not in (*_NO_TOKENS, *PAST) and spec.dtype != "bool":
                found.append((spec, axes[0]))
        return tuple(found)

    @cached_property
    def query_axis(self) -> str | None:
        """The axis of positions that the outputs have: the queries', else the first one of all tokens; None if none."""
        ordered = sorted(self.tokens, key=lambda pair: self.role(pair[0]) != "query")
        given = {axis for spec in self.outputs for axis in spec.shape}
        return next((axis for _, axis in ordered if axis in given), None)

    def is_plain(self, spec: TensorSpec) -> bool:
        """Whether every dynamic axis of an output is one of the inputs', and its elements are floating."""
        return "float" in spec.dtype and all(axis in self.symbols for axis in spec.shape if isinstance(axis, str))

    def size(self, arrays: Mapping[str, Array], symbol: str) -> int:
        """Return the size that an axis has in a set of inputs."""
        return next(
            int(arrays[spec.name].shape[spec.shape.index(symbol)]) for spec in self.inputs if symbol in spec.shape
        )

    def take(self, arrays: Mapping[str, Array], symbol: str, places: Sequence[int] | Array) -> Arrays:
        """Return inputs with these places of an axis alone, in this order, wherever the axis occurs."""
        return {spec.name: take(arrays[spec.name], spec, symbol, places) for spec in self.inputs}

    def joined(self, parts: Sequence[Mapping[str, Array]], symbol: str) -> Arrays:
        """Return inputs side by side along an axis; what does not have the axis comes from the first."""
        return {
            spec.name: np.concatenate([part[spec.name] for part in parts], axis=spec.shape.index(symbol))
            if symbol in spec.shape
            else parts[0][spec.name]
            for spec in self.inputs
        }

    def lengthened(self, arrays: Mapping[str, Array], symbol: str, size: int, rng: np.random.Generator) -> Arrays:
        """Return inputs whose axis has at least a size: what is added is drawn like what is there, masks repeat."""
        have = self.size(arrays, symbol)
        if have >= size:
            return dict(arrays)
        longer = (
            self.take(arrays, symbol, np.arange(size) % max(have, 1)) if have else self._grown(arrays, symbol, size)
        )
        added = self.redrawn(longer, rng)
        return {
            spec.name: added[spec.name] if self._is_drawn(spec) and symbol in spec.shape else longer[spec.name]
            for spec in self.inputs
        }

    def _grown(self, arrays: Mapping[str, Array], symbol: str, size: int) -> Arrays:
        return {
            spec.name: np.zeros(
                [
                    size if axis == symbol else have
                    for axis, have in zip(spec.shape, arrays[spec.name].shape, strict=True)
                ],
                arrays[spec.name].dtype,
            )
            for spec in self.inputs
        }

    def redrawn(self, arrays: Mapping[str, Array], rng: np.random.Generator, gain: float = 1.0) -> Arrays:
        """Return inputs with other tokens and caches, drawn like those that are there; masks stay.

        Args:
            arrays: inputs.
            rng: draws.
            gain: floats are so many times as large.
        """
        return {
            spec.name: _redraw(arrays[spec.name], rng, gain) if self._is_drawn(spec) else arrays[spec.name]
            for spec in self.inputs
        }

    def gained(self, arrays: Mapping[str, Array], gain: float) -> Arrays:
        """Return inputs whose floating tokens are so many times as large."""
        tokens = {spec.name for spec, _ in self.tokens}
        return {
            name: (array.astype(np.float64) * gain).astype(array.dtype)
            if name in tokens and is_floating(array)
            else array
            for name, array in arrays.items()
        }

    def _is_drawn(self, spec: TensorSpec) -> bool:
        return self.role(spec) not in _NO_TOKENS and spec.dtype != "bool"


def take(array: Array, spec: TensorSpec, symbol: str, places: Sequence[int] | Array) -> Array:
    """Return an array with these places alone of every axis that bears a name."""
    for axis, name in enumerate(spec.shape):
        if name == symbol:
            array = np.take(array, places, axis=axis)
    return array


def first(array: Array, spec: TensorSpec, symbol: str, places: slice) -> Array:
    """Return a part of an array along the first axis that bears a name."""
    return array[(*[slice(None)] * spec.shape.index(symbol), places)]


def _redraw(array: Array, rng: np.random.Generator, gain: float) -> Array:
    """Draw floats normally with the mean and spread of those that are there, whole numbers from among them."""
    if not array.size:
        return array
    if not is_floating(array):
        return rng.choice(array.reshape(-1), size=array.shape)
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    spread = float(finite.std()) if finite.size else 0.0
    drawn = rng.standard_normal(array.shape) * (spread or 1.0) + (float(finite.mean()) if finite.size else 0.0)
    return (gain * drawn).astype(array.dtype)


def largest(array: Array) -> float:
    """Return the largest finite magnitude, 0 where there is none."""
    wide = np.abs(array.astype(np.float64))
    return float(wide.max(initial=0.0, where=np.isfinite(wide)))


def distance(got: Array, want: Array) -> float:
    """Return the largest distance of two arrays of one shape; infinite where only one is NaN, or an Inf differs."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        apart = np.abs(got - want)
    apart[same] = 0.0
    return math.inf if np.isnan(apart).any() else float(apart.max(initial=0.0))
