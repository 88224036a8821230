"""Two arrays of one shape side by side, in blocks: what is compared need not be in memory. NumPy only."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Readable, StoredArray

BLOCK = 1 << 18
"""Elements of one block: as float64, 2 MiB a side."""

SMALL = 1 << 22
"""Arrays of at most so many elements are read once and kept (as float64, 32 MiB a side), others anew in each pass."""


class Block(NamedTuple):
    """Whole rows, or a part of one row.

    Attributes:
        got, want: shape (rows, width), or (1, part of the width); each of its own dtype.
        ends: False where the row goes on in the next block.
    """

    got: NDArray[Any]
    want: NDArray[Any]
    ends: bool


class Pair:
    """Two arrays of one shape, as rows along their last axis; a scalar or a 1-D array is one row.

    Attributes:
        shape: of what is compared: (positions, …) where some positions are left out.
        size: number of elements that are compared.
        width: length of a row.
        rows: number of rows.
    """

    def __init__(self, got: Readable, want: Readable, kept: NDArray[np.bool_] | None = None) -> None:
        """Put two arrays side by side.

        Args:
            got: in memory or on disk.
            want: of the same shape.
            kept: the leading axes of them; what is false there is left out, as by `array[kept]`.

        Raises:
            ValueError: two shapes, or a `kept` that does not fit them.
        """
        if got.shape != want.shape or (kept is not None and kept.shape != got.shape[: kept.ndim]):
            raise ValueError(f"expected one shape, got {got.shape}, {want.shape}")
        self._got, self._want = _in_memory_if_small(got), _in_memory_if_small(want)
        self._whole = got.shape
        self._kept = None if kept is None else kept.ravel()  # (B, S) -> (B S,)
        self.shape = got.shape if kept is None else (int(kept.sum()), *got.shape[kept.ndim :])
        self.size = math.prod(self.shape)
        self.width = self.shape[-1] if self.shape else 1
        self.rows = self.size // self.width if self.width else 0

    @property
    def dtypes(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """The dtypes of `got` and `want`."""
        return self._got.dtype, self._want.dtype

    def blocks(self) -> Iterator[Block]:
        """Read both from the beginning to the end; blocks without an element are left out.

        Raises:
            ArtifactError: a file is gone, or was changed.
        """
        if not self.size:
            return
        width = self._whole[-1] if self._whole else 1
        pieces = zip(_pieces(self._got, width), _pieces(self._want, width), strict=True)
        begins, seen = 0, 0
        for got, want in pieces:
            ends = begins + got.size
            if self._kept is not None:
                chosen = self._chosen(begins, ends)
                got, want = got[chosen], want[chosen]  # (elements,) -> (chosen,)
            begins, seen = ends, seen + got.size
            if got.size:
                row = self.width if got.size % self.width == 0 else got.size
                yield Block(got.reshape(-1, row), want.reshape(-1, row), seen % self.width == 0)  # (n,) -> (rows, row)

    def _chosen(self, begins: int, ends: int) -> NDArray[np.bool_]:
        """Return which of the elements from `begins` to `ends` are kept."""
        assert self._kept is not None
        each = math.prod(self._whole) // self._kept.size  # elements of one position
        first, last = begins // each, -(-ends // each)
        offset = begins - first * each
        return np.repeat(self._kept[first:last], each)[offset : offset + ends - begins]  # (positions,) -> (elements,)

    def identical(self) -> bool:
        """Whether both are of one dtype and hold the same bits."""
        if self._got.dtype != self._want.dtype:
            return False
        return all(block.got.tobytes() == block.want.tobytes() for block in self.blocks())


def in_memory(array: Readable) -> NDArray[Any]:
    """Return an array, read from disk where it is there."""
    return array.read() if isinstance(array, StoredArray) else array


def _in_memory_if_small(array: Readable) -> Readable:
    return in_memory(array) if array.size <= SMALL else array


def _pieces(array: Readable, width: int) -> Iterator[NDArray[Any]]:
    """Cut an array into 1-D pieces of at most about `BLOCK` elements: whole rows, or parts of one row."""
    if isinstance(array, StoredArray):
        yield from array.pieces(lambda: _sizes(array.size, width))
        return
    flat, begins = array.reshape(-1), 0  # shape -> (elements,)
    for size in _sizes(array.size, width):
        yield flat[begins : begins + size]
        begins += size


def _sizes(size: int, width: int) -> Iterator[int]:
    if width <= BLOCK:
        each = BLOCK // width * width
        yield from (min(each, size - begins) for begins in range(0, size, each))
        return
    for _ in range(size // width):
        yield from (min(BLOCK, width - begins) for begins in range(0, width, BLOCK))
