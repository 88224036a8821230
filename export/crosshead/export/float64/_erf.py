"""The error function on float64 arrays."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """Return the error function of each element, exact to the last places."""
    try:
        from scipy.special import erf as vectorized
    except ModuleNotFoundError:  # scipy is an extra; libm's erf is as exact, about ten times slower
        vectorized = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(vectorized(x))
