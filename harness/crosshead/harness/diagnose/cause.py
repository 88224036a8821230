"""The kind of cause that a culprit shows: kernel, math mode, nondeterminism or data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, FormError
from crosshead.export.error import relative_l2
from crosshead.harness.diagnose.culprit import LIMIT_TIMES, Ask, Own
from crosshead.harness.modes import CORRELATION, EXPLAINED_SHARE, NAMES
from crosshead.results import Cause
from crosshead.runtimes import BackendError, WorkerError

NOISE_SHARE: Final = 0.1
"""Two runs that differ by this share of the error: it changes from call to call."""


@dataclass(frozen=True)
class Reason:
    """A kind of cause, and what speaks for it, as a clause that follows the node's name."""

    kind: Cause
    clause: str


def reason_of(own: Own, ask: Ask) -> Reason:
    """Return the kind of cause that a cut shows.

    Args:
        own: the cut on its own; it gave something.
        ask: runs a model on the backend.
    """
    if own.failed:
        return Reason("kernel", f"does not run: {own.failed}")
    try:
        second = ask(own.model, own.inputs)
    except (BackendError, WorkerError) as error:
        return Reason("kernel", f"ran once, and failed the second time: {error}")
    spread = max((relative_l2(second[name], own.got[name]) for name in own.got if name in second), default=0.0)
    if spread > NOISE_SHARE * own.error and own.times > LIMIT_TIMES:
        return Reason("nondeterminism", f"gives other numbers each time: two runs differ by {spread:.1e}")
    beyond = _beyond(own.want, own.got)
    if beyond:
        return Reason("data", beyond)
    mode = _mode(own)
    if mode is not None:
        name, explained = mode
        told = f"forms its products with {NAMES.get(name, name)}, which explains {explained:.0%} of its error"
        return Reason("math-mode", told)
    return Reason("kernel", "computes something else than the operator is defined to")


def _beyond(want: Mapping[str, NDArray[Any]], got: Arrays) -> str:
    """Say where the right value is beyond the range of the dtype, and became infinite or NaN."""
    for name, array in want.items():
        mine = got.get(name)
        if mine is None or array.dtype.kind != "f" or mine.dtype.kind not in "fV":
            continue
        most = _largest(mine.dtype)
        finite = np.abs(array[np.isfinite(array)])
        lost = ~np.isfinite(mine.astype(np.float64)) & np.isfinite(array)
        if finite.size and finite.max() > most and lost.any():
            return f"has to give {finite.max():.3g}, and {mine.dtype.name} ends at {most:.3g}"
    return ""


def _largest(dtype: np.dtype[Any]) -> float:
    if dtype.name == "bfloat16":
        import ml_dtypes

        return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]  # ships no types for it
    return float(np.finfo(dtype).max)


def _mode(own: Own) -> tuple[str, float] | None:
    from crosshead.export.float64.emulation import explain_by_mode

    try:
        shares = explain_by_mode(own.got, own.want, own.model, own.inputs)
    except FormError:
        return None
    best = shares[0] if shares else None
    if best is None or best.explained < EXPLAINED_SHARE or best.correlation < CORRELATION:
        return None
    return best.mode, best.explained
