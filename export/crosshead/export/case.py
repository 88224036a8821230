"""The cases that travel with an artifact: named inputs, with the seed and the reason for them. NumPy only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, SourceError

if TYPE_CHECKING:
    from crosshead.export.source import LoadedSource

Shape = tuple[int, ...]

DEFAULT_BATCHES: Final = (1, 8)
DEFAULT_LENGTHS: Final = (128,)


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        name: unique among the cases of a run, e.g. `1x128`.
        reason: why it is there, in one sentence.
        seed: of what was drawn.
        inputs: by input name, in the graph's order.
        given: outputs that must come out beside the oracle's, as a person gave them, with the names they came under.
    """

    name: str
    reason: str
    seed: int
    inputs: Arrays
    given: tuple[tuple[str, NDArray[np.generic]], ...] = ()


def cases_for(
    loaded: "LoadedSource",
    *,
    batches: Sequence[int] = DEFAULT_BATCHES,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    shapes: Mapping[str, Sequence[Shape]] = {},
) -> list[Case]:
    """Make the cases of a source.

    Args:
        loaded: the source.
        batches: for built-in blocks: batch sizes.
        lengths: for built-in blocks: numbers of tokens; every batch size is taken with each.
        shapes: for other sources: by input name, one shape for every case, or one shape for all of them. Inputs that
            are not named follow through their dynamic axes.

    Returns:
        For a block, cases named `<batch>x<length>`. Otherwise the factory's own inputs as the case `example`, or, where
        shapes are given, inputs drawn anew in the example's dtype: normal numbers, whole numbers in the example's
        range; masks (booleans, or with -inf) are the example's, stretched.

    Raises:
        SourceError: sizes that the block refuses, shapes that do not fit the example's inputs and dynamic axes, or
            shapes for a block.
    """
    if loaded.block is not None:
        if shapes:
            raise SourceError(f"{loaded.source.name} is a built-in block; give its sizes with --batch and --seq")
        return _block_cases(loaded, batches, lengths)
    seed = loaded.source.seed
    if not shapes:
        return [Case("example", "the inputs that the factory returned", seed, dict(loaded.inputs))]
    sizes = {name: list(each) for name, each in shapes.items()}
    count = max(len(each) for each in sizes.values())
    for name, each in sizes.items():
        if len(each) not in (1, count):
            raise SourceError(f"input {name!r} was given {len(each)} shapes, another one {count}; give it 1 or {count}")
    cases: dict[str, Case] = {}
    for index in range(count):
        wanted = {name: each[index % len(each)] for name, each in sizes.items()}
        name = case_name(wanted)
        resolved = _resolve(loaded, wanted)
        cases[name] = Case(name, "sizes asked for, drawn like the factory's inputs", seed, draw_like(loaded, resolved))
    return list(cases.values())


def _block_cases(loaded: "LoadedSource", batches: Sequence[int], lengths: Sequence[int]) -> list[Case]:
    assert loaded.block is not None
    seed, options = loaded.source.seed, loaded.source.options
    cases: dict[str, Case] = {}
    for batch in batches:
        for length in lengths:
            try:
                inputs = loaded.block.inputs(batch, length, seed, **options)
            except ValueError as error:  # ConfigError, which is one
                raise SourceError(f"{loaded.source.name}, batch {batch}, {length} tokens: {error}") from error
            name = f"{batch}x{length}"
            tokens = f"{length} token{'s' if length != 1 else ''}"
            cases[name] = Case(name, f"batch {batch}, {tokens}, standard normal", seed, inputs)
    return list(cases.values())


def case_name(shapes: Mapping[str, Shape]) -> str:
    """Name a case by the shapes asked for: `1x128x512`, or `x=1x128,mask=1x128` for several inputs."""
    sizes = {name: "x".join(map(str, shape)) or "scalar" for name, shape in shapes.items()}
    return next(iter(sizes.values())) if len(sizes) == 1 else ",".join(f"{name}={size}" for name, size in sizes.items())


def _resolve(loaded: "LoadedSource", wanted: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shape of every input: as wanted, or the example's with the dynamic axes that the wanted ones bind."""
    known = ", ".join(loaded.inputs)
    sizes: dict[str, tuple[int, str]] = {}
    for name, shape in wanted.items():
        if name not in loaded.inputs:
            raise SourceError(f"there is no input {name!r}; inputs: {known}")
        example, symbols = loaded.inputs[name].shape, loaded.dynamic.get(name, {})
        if len(shape) != len(example):
            raise SourceError(f"input {name!r}: expected {len(example)} axes as in {example}, got {shape}")
        for axis, (size, fixed) in enumerate(zip(shape, example, strict=True)):
            if axis not in symbols:
                if size != fixed:
                    raise SourceError(
                        f"input {name!r}: axis {axis} is fixed at {fixed}, got {size}; let the factory return it among "
                        f"its dynamic axes, {{{name!r}: {{{axis}: name}}}}"
                    )
                continue
            bound, where = sizes.setdefault(symbols[axis], (size, name))
            if bound != size:
                raise SourceError(
                    f"axis {symbols[axis]!r} is {bound} in {where!r} and {size} in {name!r}; give one size"
                )
    return {
        name: tuple(
            sizes[symbol][0] if (symbol := loaded.dynamic.get(name, {}).get(axis)) in sizes else size
            for axis, size in enumerate(example.shape)
        )
        for name, example in loaded.inputs.items()
    }


def draw_like(loaded: "LoadedSource", shapes: Mapping[str, Shape]) -> Arrays:
    """Draw inputs of other shapes in the likeness of a source's own; an input whose shape stays is the source's.

    Raises:
        SourceError: an empty mask cannot be stretched.
    """
    inputs: Arrays = {}
    for stream, (name, example) in enumerate(loaded.inputs.items()):
        shape = shapes[name]
        generator = np.random.default_rng((loaded.source.seed, stream))
        if shape == example.shape:
            inputs[name] = example
        elif is_mask(example):
            inputs[name] = stretch(example, shape)
        elif example.dtype.kind in "iu":
            low, high = (int(example.min()), int(example.max())) if example.size else (0, 0)
            inputs[name] = generator.integers(low, high, shape, dtype=example.dtype, endpoint=True)
        else:
            inputs[name] = generator.standard_normal(shape).astype(example.dtype)
    return inputs


def is_mask(array: NDArray[np.generic]) -> bool:
    """Whether an array looks like a mask: booleans, or numbers with -inf among them."""
    if array.dtype.kind == "b":
        return True
    return array.dtype.kind not in "iu" and bool(np.isneginf(array.astype(np.float32)).any())


def stretch(array: NDArray[np.generic], shape: Shape) -> NDArray[np.generic]:
    """Return `array` resized to `shape` by its nearest elements, so that rows which keep something still do.

    Raises:
        SourceError: an empty axis cannot be stretched.
    """
    for axis, size in enumerate(shape):
        old = array.shape[axis]
        if old == 0 and size > 0:
            raise SourceError("an empty mask cannot be stretched to another size; let the factory return a longer one")
        array = np.take(array, np.arange(size) * old // max(size, 1), axis=axis)  # axis: old -> size
    return array


def keeps_nothing(array: NDArray[np.generic], role: str | None, *, true_is_blocked: bool = False) -> bool:
    """Whether a mask keeps no key in some row (last axis).

    Args:
        array: any input.
        role: its role, if it has one; an input without one is taken for a mask if it holds -inf.
        true_is_blocked: what a boolean attn_mask means: `nn.MultiheadAttention` blocks where it is true,
            `scaled_dot_product_attention` keeps.
    """
    if array.ndim == 0 or array.size == 0:
        return False
    if array.dtype.kind == "b":
        if role == "key_padding_mask" or (role == "attn_mask" and true_is_blocked):
            return bool(array.all(axis=-1).any())
        return role == "attn_mask" and not bool(array.any(axis=-1).all())
    return is_mask(array) and bool(np.isneginf(array.astype(np.float32)).all(axis=-1).any())
