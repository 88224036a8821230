"""Inputs for a search, drawn by the ideas of the stress set: sizes, numbers and masks at random, reproducibly.

NumPy only. Where the stress set has one case for each idea, at sizes and factors that were chosen, a draw takes any of
them at any size of the dynamic axes and any factor, and two of them together now and then.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export._stress_drafts import Draft, Drafts
from crosshead.export._stress_inputs import Inputs, Structure, recognise
from crosshead.export.artifact import Apart, Arrays, Artifact

MOST_ELEMENTS: Final = 1 << 15
"""Elements of the inputs of a draw: small ones are run by the thousand, and nothing here needs large ones."""

_LARGEST_SIZE: Final = 70
_GAINS: Final = {"fp32": 40.0, "bf16": 20.0, "fp16": 6.0}


@dataclass(frozen=True)
class Draw:
    """One set of inputs.

    Attributes:
        idea: what it tries, in a few words.
        inputs: by name.
        apart: rows that decide nothing.
    """

    idea: str
    inputs: Arrays
    apart: tuple[Apart, ...]


class StressDraws:
    """Draws for one artifact; the n-th draw under a seed is always the same."""

    def __init__(
        self,
        artifact: Artifact,
        seed: int,
        *,
        structure: Structure = Structure(),  # noqa: B008  # frozen
        blocks_where_true: bool = False,
    ) -> None:
        """Take the inputs of an artifact.

        Args:
            artifact: with one case at least.
            seed: of everything that is drawn.
            structure: which keys a query sees whatever the masks say, where that is known.
            blocks_where_true: of a boolean attn_mask, as in `nn.MultiheadAttention`.
        """
        manifest = artifact.manifest
        examples = artifact.inputs(manifest.cases[0].name)
        recognised = recognise(manifest.inputs, examples, manifest.roles, blocks_where_true=blocks_where_true)
        self._inputs = Inputs(tuple(recognised), structure, seed)
        self._precision = manifest.precision
        self._seed = seed
        self._example = {
            axis: size
            for spec in manifest.inputs
            for axis, size in zip(spec.shape, examples[spec.name].shape, strict=True)
            if isinstance(axis, str)
        }

    def draw(self, number: int) -> Draw | None:
        """Return one draw; None where its sizes or numbers do not go together, or would be too large."""
        rng = np.random.default_rng((self._seed, number))
        inputs = replace(self._inputs, seed=int(rng.integers(1 << 31)))
        drafts = Drafts(inputs, self._example, self._precision)
        drafts.base = self._sizes(drafts, rng)
        offered = list(drafts.all())
        if not offered:
            return None
        draft: Draft = offered[int(rng.integers(len(offered)))]
        factor = self._factor(draft, rng)
        try:
            size = sum(int(np.prod(each.shape(draft.sizes), dtype=np.int64)) for each in inputs.all)
            if size > MOST_ELEMENTS:
                return None
            arrays, more = draft.build(factor)
        except (ValueError, IndexError, KeyError):
            return None
        idea = draft.name(round(factor, 2))
        if rng.random() < 0.5:
            arrays, said = self._changed(inputs, arrays, rng)
            idea = f"{idea}, {said}"
        sizes = ", ".join(f"{axis} {draft.sizes[axis]}" for axis in sorted(draft.sizes))
        return Draw(f"{idea} ({sizes})" if sizes else idea, arrays, (*more, *inputs.apart(arrays)))

    def _sizes(self, drafts: Drafts, rng: np.random.Generator) -> dict[str, int]:
        """Draw the size of each dynamic axis, small ones as likely as large ones; a past may be empty."""
        if not drafts._free:  # some axes are bound to each other: the example's sizes are what is known
            return dict(drafts.base)
        sizes = {}
        for axis in self._example:
            small = 8 if axis == drafts._batch else _LARGEST_SIZE
            sizes[axis] = int(np.exp(rng.uniform(0.0, np.log(small + 1))))
            if "past" in axis and rng.random() < 0.2:
                sizes[axis] = 0
        return sizes

    def _factor(self, draft: Draft, rng: np.random.Generator) -> float:
        """Draw a factor up to the largest that the stress set tries."""
        most = max(draft.factors)
        return float(np.exp(rng.uniform(0.0, np.log(most)))) if most > 1 else most

    def _changed(self, inputs: Inputs, arrays: Arrays, rng: np.random.Generator) -> tuple[Arrays, str]:
        """Change the numbers of one input of tokens in another way still."""
        tokens = [each for each in inputs.of("tokens", "past") if arrays[each.spec.name].size]
        if not tokens:
            return arrays, "as drawn"
        chosen = tokens[int(rng.integers(len(tokens)))]
        name, array = chosen.spec.name, arrays[chosen.spec.name].astype(np.float64)
        said, changed = _CHANGES[int(rng.integers(len(_CHANGES)))]
        gain = float(np.exp(rng.uniform(0.0, np.log(_GAINS[self._precision]))))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # Inf and NaN stand where a mask hides them
            return {**arrays, name: changed(array, gain, rng).astype(chosen.example.dtype)}, f"{name} {said}"


def _scaled(array: NDArray[Any], gain: float, _: np.random.Generator) -> NDArray[Any]:
    return array * gain


def _sparse(array: NDArray[Any], _: float, rng: np.random.Generator) -> NDArray[Any]:
    return np.where(rng.random(array.shape) < 0.1, array, 0.0)


def _one_channel(array: NDArray[Any], gain: float, rng: np.random.Generator) -> NDArray[Any]:
    array = array.copy()
    array[..., int(rng.integers(array.shape[-1]))] *= gain
    return array


def _whole(array: NDArray[Any], _: float, __: np.random.Generator) -> NDArray[Any]:
    return np.asarray(np.rint(array))


def _offset(array: NDArray[Any], gain: float, _: np.random.Generator) -> NDArray[Any]:
    return array + gain / 4


def _zero_rows(array: NDArray[Any], _: float, rng: np.random.Generator) -> NDArray[Any]:
    return np.where(rng.random((*array.shape[:-1], 1)) < 0.5, array, 0.0)


_CHANGES: Final = (
    ("scaled", _scaled),
    ("mostly zeros", _sparse),
    ("with one large channel", _one_channel),
    ("rounded to whole numbers", _whole),
    ("far from a mean of 0", _offset),
    ("with rows of zeros", _zero_rows),
)


def source_structure(loaded: Any) -> Mapping[str, Any]:
    """Return what a module tells of masks and causality, as keywords of `StressDraws`. Imports torch."""
    from crosshead.export._findings import blocks_where_true
    from crosshead.export._stress_module import _structure

    return {"structure": _structure(loaded), "blocks_where_true": blocks_where_true(loaded)}
