"""Look up arrays in a collection by their bits: as a whole under any order of axes, or line by line."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_AXES = 4  # orders of axes tried: 24
_Key = tuple[str, bytes]


class BitIndex:
    """Arrays to look others up in, bit for bit.

    A *line* is what runs along one axis of an array. Parts of a weight that was split, packed with others or
    transposed share lines with it in one direction, whatever became of the other; the elements of a vector are its
    lines as well.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        self._arrays = [np.asarray(array) for array in arrays]
        self._whole = {_key(array) for array in self._arrays}
        self._lines: dict[tuple[str, int], set[bytes]] = {}

    def has(self, array: NDArray[Any]) -> bool:
        """Return whether the array stands in the collection, reshaped or with its axes in another order."""
        flat = np.squeeze(array)
        return any(_key(flat.transpose(order)) in self._whole for order in axis_orders(flat.ndim))

    def missing(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which elements stand in no line of the collection, in the direction that finds most."""
        flat = np.squeeze(array)
        missing = np.full(flat.shape, not self.has(array))
        if flat.ndim == 0 or flat.size == 0 or not missing.any():
            return missing.reshape(array.shape)
        for axis in range(flat.ndim):
            absent = self._absent(np.moveaxis(flat, axis, -1))  # (…, n, …) -> (…, n) -> (…)
            missing &= np.expand_dims(absent, axis)  # (…) -> (…, 1, …)
        if flat.ndim == 1:
            missing &= self._absent(flat[:, np.newaxis])  # (n,) -> (n, 1) -> (n,)
        return missing.reshape(array.shape)

    def _absent(self, given: NDArray[Any]) -> NDArray[np.bool_]:
        """Return, for each line of a (…, n) array, whether it stands nowhere in the collection."""
        known = self._known(given.dtype, given.shape[-1])
        flat = np.ascontiguousarray(given).reshape(-1, given.shape[-1])
        absent = [line.tobytes() not in known for line in flat]
        return np.array(absent, dtype=np.bool_).reshape(given.shape[:-1])

    def _known(self, dtype: np.dtype[Any], length: int) -> set[bytes]:
        key = (dtype.name, length)
        if key not in self._lines:
            self._lines[key] = {
                line.tobytes()
                for array in self._arrays
                if array.dtype == dtype
                for some in lines(array, length)
                for line in some
            }
        return self._lines[key]


def axis_orders(ndim: int) -> Iterator[tuple[int, ...]]:
    """Yield every order of up to four axes; of more, the first and the last only."""
    axes = tuple(range(ndim))
    yield from itertools.permutations(axes) if ndim <= _MOST_AXES else (axes, axes[::-1])


def lines(array: NDArray[Any], length: int) -> Iterator[NDArray[Any]]:
    """Yield the lines of a given length, (lines, length) an axis; elements are lines of vectors alone.

    Among the elements of a matrix almost any number may be found.
    """
    flat = np.squeeze(array)
    if length == 1:
        if flat.ndim == 1:
            yield flat[:, np.newaxis]  # (n,) -> (n, 1)
        return
    for axis, size in enumerate(flat.shape):
        if size == length:
            yield np.ascontiguousarray(np.moveaxis(flat, axis, -1)).reshape(-1, length)  # (…, n, …) -> (lines, n)


def _key(array: NDArray[Any]) -> _Key:
    data = np.ascontiguousarray(array).reshape(-1)
    return data.dtype.name, hashlib.blake2b(data.view(np.uint8).data, digest_size=16).digest()
