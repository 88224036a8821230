"""The NVIDIA GPUs of this machine, from NVML (package nvidia-ml-py) or from nvidia-smi; never fails."""

import csv
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from crosshead.results.records import GpuRecord

SMI_TIMEOUT_S = 10.0

_MIB = 1024**2

# Bits of nvmlClocksEventReasons in nvml.h. Bit 0, idle, holds nothing back.
_THROTTLE_REASONS = {
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clocks",
}


def read_gpus() -> list[GpuRecord]:
    """Return the GPUs as they are now; an empty list where there are none, or no driver answers."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # not installed, no driver, or a driver of another version: ask nvidia-smi
        return _ask_smi()
    try:
        count = nvml.nvmlDeviceGetCount()
        return [_read_device(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    except Exception:  # noqa: BLE001  # a GPU that has fallen off the bus; the run is about more than GPUs
        return []
    finally:
        nvml.nvmlShutdown()


def _read_device(nvml: Any, handle: Any) -> GpuRecord:
    def ask(question: Callable[[], Any]) -> Any:
        """Return the answer, or None: many boards, and slices of a board, do not support every question."""
        try:
            return question()
        except (nvml.NVMLError, AttributeError):
            return None

    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    processes = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    return GpuRecord(
        name=_text(ask(lambda: nvml.nvmlDeviceGetName(handle))),
        memory_bytes=memory.total if memory is not None else None,
        memory_used_bytes=memory.used if memory is not None else None,
        driver=_text(ask(nvml.nvmlSystemGetDriverVersion)),
        utilization_share=rates.gpu / 100.0 if rates is not None else None,
        sm_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        sm_clock_limit_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        throttle_reasons=[name for bit, name in _THROTTLE_REASONS.items() if reasons & bit],
        other_processes=sum(process.pid != os.getpid() for process in processes) if processes is not None else None,
    )


def _ask_smi() -> list[GpuRecord]:
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "name,memory.total,memory.used,driver_version,utilization.gpu,clocks.sm,clocks.max.sm"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [_read_smi(row) for row in csv.reader(answer.stdout.splitlines(), skipinitialspace=True) if len(row) == 7]


def _read_smi(row: list[str]) -> GpuRecord:
    """Read one line of nvidia-smi: memory in MiB, utilization in percent, clocks in MHz; `[N/A]` where not known."""
    name, total, used, driver, busy, clock, limit = row
    total_mib, used_mib, busy_percent = _number(total), _number(used), _number(busy)
    return GpuRecord(
        name=name,
        memory_bytes=int(total_mib) * _MIB if total_mib is not None else None,
        memory_used_bytes=int(used_mib) * _MIB if used_mib is not None else None,
        driver=driver,
        utilization_share=busy_percent / 100.0 if busy_percent is not None else None,
        sm_clock_mhz=_number(clock),
        sm_clock_limit_mhz=_number(limit),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
