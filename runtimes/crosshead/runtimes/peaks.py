"""What the machine can do: the rate of a large matrix product, and of copying memory, by the process that is asked.

The ceilings of a roofline (Williams, Waterman and Patterson 2009). A product through the backend's own library, in the
worker that was timed, has its threads, its memory and its math mode; the copy counts what it reads and what it writes,
as STREAM does (McCalpin 1995).
"""

import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from crosshead.runtimes.base import Step
from crosshead.runtimes.timing import collection_off, timed

SMALLEST, LARGEST = 1024, 8192
"""Rows and columns of the product: doubled until a call takes `LEAST_S`."""

LEAST_S = 2e-3
COPY_BYTES = 2**27
"""128 MiB to each of two arrays: no cache holds them."""

_WARM_CALLS = 2


def product_flop_s(product: Callable[[int], Step], duration_s: float) -> float:
    """Return the floating-point operations a second of a square matrix product, at its best.

    Args:
        product: returns a call that multiplies two (size, size) matrices.
        duration_s: seconds of calling; the first calls, and making the matrices, come on top.
    """
    size = SMALLEST
    while True:
        step = product(size)
        for _ in range(_WARM_CALLS):
            step()
        if timed(step) >= LEAST_S or size >= LARGEST:
            return 2.0 * size**3 / best_s(step, duration_s)
        size *= 2


def copy_bytes_s(threads: int, duration_s: float, size: int = COPY_BYTES) -> float:
    """Return the bytes read and written a second while a large array is copied by some threads, at their best.

    Args:
        threads: how many copy, each a part of its own.
        duration_s: seconds of copying; one copy before it comes on top.
        size: bytes of the array.
    """
    source, target = np.ones(size, dtype=np.uint8), np.empty(size, dtype=np.uint8)
    cuts = [size * part // threads for part in range(threads + 1)]
    parts = [slice(begin, end) for begin, end in itertools.pairwise(cuts)]

    def copy(part: slice) -> None:
        np.copyto(target[part], source[part])  # without the interpreter's lock

    with ThreadPoolExecutor(threads) as pool:

        def step() -> None:
            for _ in pool.map(copy, parts):
                pass

        step()
        return 2.0 * size / best_s(step, duration_s)


def best_s(step: Step, duration_s: float) -> float:
    """Return the shortest time of one call, of all that begin within `duration_s`; at least one does."""
    best = math.inf
    end = time.perf_counter() + duration_s
    with collection_off():
        while math.isinf(best) or time.perf_counter() < end:
            best = min(best, timed(step))
    return best
