"""What went on around each turn of the measuring, and when that makes a cell's times mean nothing.

Readings stand before and after a turn, outside of what is timed. They are best effort: what the system does not tell is
0 or None, and voids nothing.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from crosshead.results import GpuRecord, SurroundingsRecord, TurnRow, read_gpus

VOID_STEAL_SHARE = 0.1
"""Above this share of stolen time during a cell's turns, its figures mean nothing."""

CROWDED_CORES = 0.5
"""So many processors' worth of time may others take from those that a cell's threads need."""

_THROTTLES = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class Reading:
    """Counters of the machine and of a worker, at one time.

    Attributes:
        at_s: `time.perf_counter`.
        busy_s: processor time that went to programs, all processors together.
        stolen_s: processor time that the host gave to other guests.
        total_s: processor time that went by.
        own_s: processor time of the worker and of this process.
        switches: how often the worker was made to give up a processor.
        frequency_mhz: of the processors now; None where the system does not say.
        temperature_c: the hottest sensor now; None where there is none.
        throttles: how often the processors were held back for their heat, since they came up.
        gpu: the GPU that the worker computes on; None where it is none.
    """

    at_s: float
    busy_s: float
    stolen_s: float
    total_s: float
    own_s: float
    switches: int
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    throttles: int = 0
    gpu: GpuRecord | None = None


def read_surroundings(pid: int | None, *, on_gpu: bool = False) -> Reading:
    """Read the counters; raises nothing.

    Args:
        pid: of the worker; None where it has ended.
        on_gpu: whether it computes on a GPU.
    """
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as user time already
    total_s = sum(times) - guests
    stolen_s = getattr(times, "steal", 0.0)
    resting_s = times.idle + getattr(times, "iowait", 0.0)
    own = psutil.Process().cpu_times()
    own_s, switches = own.user + own.system, 0
    with contextlib.suppress(psutil.Error):
        if pid is not None:
            worker = psutil.Process(pid)
            used = worker.cpu_times()
            own_s += used.user + used.system
            switches = worker.num_ctx_switches().involuntary
    gpus = read_gpus() if on_gpu else []
    return Reading(
        at_s=time.perf_counter(),
        busy_s=total_s - stolen_s - resting_s,
        stolen_s=stolen_s,
        total_s=total_s,
        own_s=own_s,
        switches=switches,
        frequency_mhz=_frequency_mhz(),
        temperature_c=_temperature_c(),
        throttles=_throttles(),
        gpu=gpus[0] if gpus else None,
    )


def turn_row(before: Reading, after: Reading, *, began_s: float, samples: int) -> TurnRow:
    """Return what is kept of one turn.

    Args:
        before: read before the worker was woken.
        after: read after it was stopped again.
        began_s: seconds since the measuring of the run began.
        samples: how many samples it gave.
    """
    seconds, total_s = after.at_s - before.at_s, after.total_s - before.total_s
    busy_s, own_s = after.busy_s - before.busy_s, after.own_s - before.own_s
    return TurnRow(
        began_s=began_s,
        seconds=seconds,
        samples=samples,
        steal_share=(after.stolen_s - before.stolen_s) / total_s if total_s > 0.0 else 0.0,
        others_cores=(busy_s - own_s) / seconds if seconds > 0.0 else 0.0,
        switches=after.switches - before.switches,
        frequency_mhz=after.frequency_mhz,
        temperature_c=after.temperature_c,
        throttles=after.throttles - before.throttles,
        gpu_clock_mhz=after.gpu.sm_clock_mhz if after.gpu is not None else None,
        gpu_throttled=after.gpu is not None and bool(after.gpu.throttle_reasons),
        gpu_shared=after.gpu is not None and (after.gpu.other_processes or 0) > 1,
    )


def together(rows: Sequence[TurnRow]) -> SurroundingsRecord:
    """Return what went on around all turns of a cell; shares and means are weighed by the length of a turn."""
    seconds = sum(row.seconds for row in rows)

    def mean(values: Sequence[float]) -> float:
        weighed = sum(value * row.seconds for value, row in zip(values, rows, strict=True))
        return max(0.0, weighed / seconds) if seconds > 0.0 else 0.0

    frequencies = [row.frequency_mhz for row in rows if row.frequency_mhz is not None]
    temperatures = [row.temperature_c for row in rows if row.temperature_c is not None]
    clocks = [row.gpu_clock_mhz for row in rows if row.gpu_clock_mhz is not None]
    return SurroundingsRecord(
        turns=len(rows),
        steal_share=mean([row.steal_share for row in rows]),
        others_cores=mean([row.others_cores for row in rows]),
        switches=sum(row.switches for row in rows),
        frequency_low_mhz=min(frequencies, default=None),
        frequency_high_mhz=max(frequencies, default=None),
        temperature_c=max(temperatures, default=None),
        throttles=sum(row.throttles for row in rows),
        gpu_clock_low_mhz=min(clocks, default=None),
        gpu_clock_high_mhz=max(clocks, default=None),
        gpu_throttled_turns=sum(row.gpu_throttled for row in rows),
        gpu_shared_turns=sum(row.gpu_shared for row in rows),
    )


def why_void(seen: SurroundingsRecord, threads: int, cores: int) -> str:
    """Return why a cell's times mean nothing; empty when they stand.

    Args:
        seen: what went on around its turns.
        threads: of the cell.
        cores: processors of the machine.
    """
    if seen.steal_share > VOID_STEAL_SHARE:
        return (
            f"{seen.steal_share:.0%} of the processors' time went to other guests of this host while it was measured; "
            "measure again on a quieter machine"
        )
    spare = max(0, cores - threads)
    if seen.others_cores > spare + CROWDED_CORES:
        return (
            f"other programs kept {seen.others_cores:.1f} of {cores} processors busy while its {threads} threads were "
            "measured; close them, or give fewer --threads, and measure again"
        )
    if seen.throttles:
        return f"the processors were held back for their heat {seen.throttles} times while it was measured; cool them"
    if seen.gpu_throttled_turns > seen.turns // 2:
        return (
            f"the GPU's clock was held down in {seen.gpu_throttled_turns} of {seen.turns} turns; let it cool or raise "
            "its limit, and measure again"
        )
    if seen.gpu_shared_turns > seen.turns // 2:
        return (
            f"other processes computed on the GPU in {seen.gpu_shared_turns} of {seen.turns} turns; wait for them, or "
            "choose another GPU with CUDA_VISIBLE_DEVICES"
        )
    return ""


def _frequency_mhz() -> float | None:
    try:
        found = psutil.cpu_freq()
    except (AttributeError, OSError, NotImplementedError):
        return None
    return float(found.current) if found is not None and found.current else None


def _temperature_c() -> float | None:
    try:
        sensors = psutil.sensors_temperatures()
    except (AttributeError, OSError):  # not on this system
        return None
    return max((entry.current for entries in sensors.values() for entry in entries), default=None)


def _throttles() -> int:
    count = 0
    for path in Path(_THROTTLES).glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        with contextlib.suppress(OSError, ValueError):
            count += int(path.read_text())
    return count
