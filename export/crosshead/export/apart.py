"""Rows that decide nothing: where in an output they are. NumPy only: a target machine without torch judges too."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Apart

Rows = NDArray[np.bool_]
"""True where a row decides nothing; its axes are the leading ones of an output."""


def apart_rows(shape: tuple[int, ...], aparts: Iterable[Apart]) -> Rows | None:
    """Return which rows of an output decide nothing; None where all of them count.

    Rows are told by sequence and query position. In an output (batch, queries, …) they are just these; in one (batch,
    heads, queries, keys) those of every head. An output that has only the batch axis mixes positions: there the whole
    sequence decides nothing, and where not even that axis is there, nothing does.

    Args:
        shape: of the output.
        aparts: of the case.
    """
    found: Rows | None = None
    for each in aparts:
        rows = _in_output(shape, each)
        found = rows if found is None else found | rows
    return found if found is not None and found.any() else None


def _in_output(shape: tuple[int, ...], apart: Apart) -> Rows:
    batch, queries = apart.shape
    marked = np.zeros(apart.shape, np.bool_)
    for sequence, query in apart.rows:
        marked[sequence, query] = True
    if shape[:2] == (batch, queries):
        return marked
    if len(shape) == 4 and (shape[0], shape[2]) == (batch, queries):
        return np.broadcast_to(marked[:, None], shape[:3])  # (B, L) -> (B, H, L)
    return np.asarray(marked.any(axis=1) if shape[:1] == (batch,) else marked.any())  # (B, L) -> (B,) or ()


def counted(array: NDArray[np.generic], rows: Rows | None) -> NDArray[np.generic]:
    """Return the rows of an output that count: (…, width) -> (rows, …); all of it where none is apart."""
    return array if rows is None else array[~rows]
