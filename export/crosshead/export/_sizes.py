"""Sizes to export on: no two dynamic axes alike and none of size 1, so that nothing is bound by accident."""

from collections.abc import Mapping

import numpy as np

from crosshead.export.artifact import Arrays


def accidents(inputs: Arrays, dynamic: Mapping[str, Mapping[int, str]]) -> dict[str, int]:
    """Return the dynamic axes whose example size could be mistaken, with that size.

    A size of 1 looks like a broadcast; a size that another axis has too, dynamic or static, looks like the same axis.
    """
    sizes = _sizes(inputs, dynamic)
    taken = _static(inputs, dynamic)
    found = {}
    for symbol, size in sizes.items():
        if size <= 1 or size in taken:
            found[symbol] = size
        taken.add(size)
    return found


def distinct(inputs: Arrays, dynamic: Mapping[str, Mapping[int, str]]) -> Arrays:
    """Return inputs of the same dtypes whose dynamic axes have sizes of their own, each the next free one upwards.

    Values are zeros: an exporter traces shapes, not values. Inputs without such an axis are returned as they are.
    """
    moved = accidents(inputs, dynamic)
    sizes = _sizes(inputs, dynamic)
    taken = _static(inputs, dynamic) | {size for symbol, size in sizes.items() if symbol not in moved}
    for symbol, size in moved.items():
        new = max(size, 2)
        while new in taken:
            new += 1
        sizes[symbol] = new
        taken.add(new)
    drawn: Arrays = {}
    for name, array in inputs.items():
        symbols = dynamic.get(name, {})
        shape = tuple(sizes[symbols[axis]] if axis in symbols else size for axis, size in enumerate(array.shape))
        drawn[name] = array if shape == array.shape else np.zeros(shape, array.dtype)
    return drawn


def _sizes(inputs: Arrays, dynamic: Mapping[str, Mapping[int, str]]) -> dict[str, int]:
    return {symbol: inputs[name].shape[axis] for name, axes in dynamic.items() for axis, symbol in axes.items()}


def _static(inputs: Arrays, dynamic: Mapping[str, Mapping[int, str]]) -> set[int]:
    return {
        size
        for name, array in inputs.items()
        for axis, size in enumerate(array.shape)
        if axis not in dynamic.get(name, {})
    }
