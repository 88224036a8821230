"""What is kept of each turn of the measuring: when it was, and what went on around it. Stored beside the samples."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class TurnRow(NamedTuple):
    """One turn of one process.

    Attributes:
        began_s: seconds since the measuring of the run began.
        seconds: how long it took, waking and stopping included.
        samples: how many samples it gave; they follow one another in the process's samples, turn by turn.
        steal_share: share of the processors' time that the host gave to other guests.
        others_cores: processors kept busy by other programs; a little below 0 where the counters are coarse.
        switches: how often the worker was made to give up a processor.
        frequency_mhz: of the processors at the end of the turn; None where the system does not say.
        temperature_c: the hottest sensor at the end of the turn; None where there is none.
        throttles: how often the processors were held back for their heat.
        gpu_clock_mhz: of the GPU's multiprocessors; None where the cell runs on none.
        gpu_throttled: whether the GPU's clock was held down.
        gpu_shared: whether other processes computed on it.
    """

    began_s: float
    seconds: float
    samples: int
    steal_share: float = 0.0
    others_cores: float = 0.0
    switches: int = 0
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    throttles: int = 0
    gpu_clock_mhz: float | None = None
    gpu_throttled: bool = False
    gpu_shared: bool = False


_OPTIONAL = {"frequency_mhz", "temperature_c", "gpu_clock_mhz"}
_WHOLE = {"samples", "switches", "throttles"}
_TRUTHS = {"gpu_throttled", "gpu_shared"}


def pack_turns(rows: list[TurnRow]) -> NDArray[np.float64]:
    """Return turns as an array (turns, fields); None is NaN."""
    values = [[np.nan if value is None else float(value) for value in row] for row in rows]
    return np.array(values, dtype=np.float64).reshape(len(rows), len(TurnRow._fields))


def unpack_turns(array: NDArray[np.float64]) -> list[TurnRow]:
    """Return the turns that `pack_turns` made an array of; fields that came later are left at their defaults.

    Raises:
        ValueError: the array has another number of fields than any version wrote.
    """
    if array.ndim != 2 or array.shape[1] > len(TurnRow._fields):
        raise ValueError(f"turns have up to {len(TurnRow._fields)} fields, got an array of shape {array.shape}")
    return [
        TurnRow(**{name: _value(name, value) for name, value in zip(TurnRow._fields, row, strict=False)})
        for row in array.tolist()
    ]


def _value(name: str, value: float) -> Any:  # of the type of the field
    if name in _OPTIONAL and np.isnan(value):
        return None
    if name in _TRUTHS:
        return bool(value)
    return int(value) if name in _WHOLE else value
