"""Facts of the machine that a figure depends on. Every one is best effort: what cannot be read is None or empty."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from crosshead.results._cgroup import cpu_quota
from crosshead.results.gpus import read_gpus
from crosshead.results.privacy import scrub
from crosshead.results.records import EnvironmentRecord, Notice

TUNABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GLIBC_TUNABLES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
    "ORT_DISABLE_FLASH_ATTENTION",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables that change a latency or a result, and that people set and forget."""

STEAL_LIMIT = 0.02
LOAD_LIMIT = 1.0
"""A process waiting or running on every core."""

GPU_BUSY_LIMIT = 0.05

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPU_INFO = Path("/proc/cpuinfo")


class CpuTimes:
    """A reading of the processors' clocks; `read_environment` measures the stolen share since then."""

    def __init__(self) -> None:
        self._times = psutil.cpu_times()

    def steal_share(self, since: "CpuTimes | None" = None) -> float | None:
        """Return the share, 0 to 1, of processor time that the host gave to other guests.

        Args:
            since: an earlier reading; without one, since the machine came up.

        Returns:
            None where the system does not say, or no time has gone by.
        """
        steal, total = _steal_and_total_s(self._times)
        if steal is None:
            return None
        if since is not None:
            earlier_steal, earlier_total = _steal_and_total_s(since._times)
            steal, total = steal - (earlier_steal or 0.0), total - earlier_total
        return min(1.0, max(0.0, steal / total)) if total > 0.0 else None


def read_environment(versions: Mapping[str, str], *, since: CpuTimes | None = None) -> EnvironmentRecord:
    """Return the machine and its libraries, without host name, user name or path; raises nothing.

    Args:
        versions: library versions by distribution name.
        since: reading from which on the stolen share is counted, e.g. from before the measuring.
    """
    return EnvironmentRecord(
        os=platform.system(),
        distribution=_distribution(),
        kernel=scrub(platform.release()),
        machine=platform.machine(),
        cpu_model=_cpu_model(),
        cores=_cores(),
        physical_cores=psutil.cpu_count(logical=False),
        cpu_quota=cpu_quota(),
        governor=_read(_GOVERNOR) or None,
        memory_bytes=psutil.virtual_memory().total,
        load_1m=_load(),
        steal_share=CpuTimes().steal_share(since),
        python=platform.python_version(),
        libc=_libc(),
        versions=dict(sorted(versions.items())),
        gpus=read_gpus(),
        huge_pages=any(f"[{policy}]" in _read(_HUGE_PAGES) for policy in ("always", "madvise")),
        tunables={name: scrub(os.environ[name]) for name in TUNABLES if name in os.environ},
    )


def environment_notices(environment: EnvironmentRecord) -> list[Notice]:
    """Return a `noisy-machine` notice for each fact that makes latencies on this machine doubtful."""
    found: list[str] = []
    if environment.steal_share is not None and environment.steal_share > STEAL_LIMIT:
        found.append(
            f"{environment.steal_share:.1%} of the processors' time went to other guests of this host; "
            "measure on a machine of your own, or at another time"
        )
    if environment.load_1m is not None and environment.load_1m > LOAD_LIMIT * environment.cores:
        found.append(
            f"the load was {environment.load_1m:.1f} on {environment.cores} cores when the machine was looked at; "
            "close other programs and measure again"
        )
    for gpu in environment.gpus:
        if gpu.other_processes or (gpu.utilization_share or 0.0) > GPU_BUSY_LIMIT:
            found.append(
                f"{gpu.name} is {gpu.utilization_share or 0.0:.0%} busy with {gpu.other_processes or 'some'} other "
                "processes; wait for them, or choose another GPU with CUDA_VISIBLE_DEVICES"
            )
        if gpu.throttle_reasons:
            found.append(
                f"the clock of {gpu.name} is held down ({', '.join(gpu.throttle_reasons)}); "
                "let it cool or raise its limit, and measure again"
            )
    return [Notice(code="noisy-machine", message=message, where="environment") for message in found]


def _steal_and_total_s(times: Any) -> tuple[float | None, float]:
    """Return stolen and total seconds; the time of our own guests is already counted as user time."""
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return getattr(times, "steal", None), total


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:  # no Linux, or one that does not say
        return ""


def _cpu_model() -> str:
    """Return the processor's name: /proc/cpuinfo on x86, lscpu on arm64 (it knows part numbers), sysctl on macOS."""
    for line in _read(_CPU_INFO).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    if platform.system() == "Darwin":
        return _ask("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    for line in _ask("lscpu").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _libc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None) or ""
    except (ValueError, OSError):  # another C library
        return " ".join(platform.libc_ver()).strip()


def _load() -> float | None:
    try:
        return psutil.getloadavg()[0]
    except OSError:
        return None


def _ask(*command: str) -> str:
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=False, env=environment)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
