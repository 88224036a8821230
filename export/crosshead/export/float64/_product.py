"""Matrix products, formed in one place so that `emulation` can form them as a math mode does."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

_Array = NDArray[Any]


def multiply(a: _Array, b: _Array) -> _Array:
    """Return the matrix product of (…, m, k) and (…, k, n), or of vectors, as `numpy.matmul` has it.

    A matrix of weights is multiplied once, and not once for each entry of the batch.
    """
    if a.ndim > 2 and b.ndim == 2:
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])  # (…, m, k) -> (… m, k)
        return np.asarray((rows @ b).reshape(*a.shape[:-1], b.shape[-1]))
    return np.asarray(np.matmul(a, b))


class Multiplying(OpRun):
    """An operator that sums products: all of them are formed by its `multiply`, which `emulation` replaces."""

    def multiply(self, a: _Array, b: _Array) -> _Array:
        """Return a product as `multiply` does."""
        return multiply(a, b)
