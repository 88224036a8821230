"""Calls with many lengths in one process: how resident memory grows, and what the first call of a new length costs.

A runtime may keep a plan for every set of input shapes it has met, and an arena that grows with each and is never
given back (onnxruntime#11118). One case called again and again shows nothing of that.

The first reading is taken after calls at the shortest length, the last one after all calls, and both between calls:
what is counted as growth is what the runtime keeps. The C library is asked to give back what was freed before each
reading (`malloc_trim`); what it had kept free by the end is told by itself, since it can be large: 174 MB were seen
where ONNX Runtime shrank its arena after every call.

Inputs are cut, not drawn, so that token ids and masks stay such.
"""

import ctypes
import gc
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import psutil

from crosshead.export.artifact import TensorSpec
from crosshead.runtimes.base import Array, Session
from crosshead.runtimes.errors import InputError
from crosshead.runtimes.messages import Grown

Memory = Callable[[], tuple[int, int]]
"""Bytes resident now, and bytes that the C library had kept free."""

CALLS_A_LENGTH = 3
"""One that is new, and two that come again."""

SHORTEST_SHARE = 0.125
"""Lengths are drawn from this share of the case's length up to all of it."""

FIRST_CALLS = 2


def grow(session: Session, inputs: Mapping[str, Array], *, calls: int, seed: int, memory: Memory) -> Grown:
    """Call a session with many lengths, in shuffled order, and read the resident size before and after.

    Args:
        session: an open one.
        inputs: of the case; the longest that are called with.
        calls: how many calls to count.
        seed: of the lengths and their order.
        memory: reads the memory of this process.

    Raises:
        InputError: there is no length to vary.
        BackendError: the backend failed.
    """
    specs = session.inputs
    sizes = length_axes(specs, inputs)
    shortest, order = draw_lengths(max(sizes.values()), calls, seed)
    first = cut(inputs, specs, sizes, shortest)
    for _ in range(FIRST_CALLS):
        session.run(first)
    start_bytes, _ = memory()
    times: dict[int, list[float]] = defaultdict(list)
    for length in order:
        times[length].append(_call(session, cut(inputs, specs, sizes, length)))
    end_bytes, idle_bytes = memory()
    return Grown(
        calls=len(order),
        shapes=len(times),
        axes=list(sizes),
        rss_start_bytes=start_bytes,
        rss_end_bytes=end_bytes,
        idle_bytes=idle_bytes,
        new_shape_call_s=statistics.median(taken[0] for taken in times.values()),
        repeat_call_s=statistics.median(statistics.median(taken[1:]) for taken in times.values()),
    )


def read_memory() -> tuple[int, int]:
    """Return the resident size of this process in bytes, and how much the C library had kept free until asked."""
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's own
    if trim is not None:
        trim(0)
    after = process.memory_info().rss
    return after, max(0, before - after)


def _call(session: Session, inputs: Mapping[str, Array]) -> float:
    started = time.perf_counter_ns()
    session.run(inputs)
    return (time.perf_counter_ns() - started) * 1e-9


def length_axes(specs: Sequence[TensorSpec], inputs: Mapping[str, Array]) -> dict[str, int]:
    """Return the named axes whose length is varied, with the size they have in `inputs`.

    Those that stand somewhere else than first; where there are none, those that stand first.

    Raises:
        InputError: no input has a named axis longer than 1.
    """
    first: dict[str, int] = {}
    inner: dict[str, int] = {}
    for spec in specs:
        for place, (axis, size) in enumerate(zip(spec.shape, inputs[spec.name].shape, strict=True)):
            if isinstance(axis, str) and size > 1:
                (inner if place else first)[axis] = size
    found = inner or first
    if not found:
        raise InputError("no input has a dynamic axis longer than 1, so there is no length to vary")
    return dict(sorted(found.items()))


def draw_lengths(full: int, calls: int, seed: int) -> tuple[int, list[int]]:
    """Return the shortest length, and one longer length a call, each at least twice, in shuffled order.

    Args:
        full: the longest; it is among them.
        calls: how many.
        seed: of the draw.

    Raises:
        InputError: there is nothing to draw from, or there are too few calls to repeat a length.
    """
    shortest = max(1, int(full * SHORTEST_SHARE))
    if shortest >= full or calls < CALLS_A_LENGTH:
        raise InputError(
            f"growth takes a length of at least 2 and at least {CALLS_A_LENGTH} calls; got length {full}, {calls} calls"
        )
    source = random.Random(seed)
    between = range(shortest + 1, full)
    count = min(len(between), calls // CALLS_A_LENGTH - 1)
    chosen = [full, *source.sample(between, count)]
    order = [chosen[number % len(chosen)] for number in range(calls)]
    source.shuffle(order)
    return shortest, order


def cut(
    inputs: Mapping[str, Array], specs: Sequence[TensorSpec], sizes: Mapping[str, int], length: int
) -> dict[str, Array]:
    """Return the inputs with their named axes cut short, all in the same proportion.

    Args:
        inputs: at full length.
        specs: of the inputs.
        sizes: full length of each axis to cut.
        length: what is left of the longest of them.
    """
    longest = max(sizes.values())
    left = {axis: max(1, size * length // longest) for axis, size in sizes.items()}
    places = {
        spec.name: tuple(slice(left.get(axis) if isinstance(axis, str) else None) for axis in spec.shape)
        for spec in specs
    }
    return {name: np.ascontiguousarray(inputs[name][place]) for name, place in places.items()}
