import os
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crosshead.results import read_gpus


class FakeError(Exception):
    pass


class FakeNvml(ModuleType):
    """NVML as nvidia-ml-py shows it, of one GPU; a question in `unsupported` fails as it does on a slice of a board."""

    NVMLError = FakeError
    NVML_CLOCK_SM = 1

    def __init__(self, unsupported: tuple[str, ...] = (), reasons: int = 0) -> None:
        super().__init__("pynvml")
        self.open = False
        self._reasons = reasons
        for name in unsupported:
            setattr(self, name, self._fail)

    def _fail(self, *_: object) -> None:
        raise FakeError("Not Supported")

    def nvmlInit(self) -> None:  # noqa: N802  # the library's names
        self.open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # noqa: N802
        return b"NVIDIA H200"  # old versions give bytes

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=139 * 2**30, used=2**30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=40, memory=1)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1), SimpleNamespace(pid=2)]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self._reasons

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1200

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return 1980


def use(monkeypatch: pytest.MonkeyPatch, nvml: ModuleType | None, path: Path | None = None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setenv("PATH", str(path or "/nowhere"))


def nvidia_smi(folder: Path, script: str) -> Path:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def test_nvml_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(reasons=0x1 | 0x4 | 0x40)
    use(monkeypatch, nvml)
    (gpu,) = read_gpus()
    assert (gpu.name, gpu.driver) == ("NVIDIA H200", "570.1")
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (139 * 2**30, 2**30)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_limit_mhz, gpu.utilization_share) == (1200, 1980, 0.4)
    assert gpu.throttle_reasons == ["power cap", "hardware thermal slowdown"]
    assert gpu.other_processes == 2
    assert not nvml.open


def test_what_a_board_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    unsupported = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetClockInfo")
    use(monkeypatch, FakeNvml((*unsupported, "nvmlDeviceGetCurrentClocksThrottleReasons")))
    (gpu,) = read_gpus()
    assert (gpu.utilization_share, gpu.other_processes, gpu.sm_clock_mhz) == (None, None, None)
    assert gpu.throttle_reasons == []
    assert gpu.memory_bytes == 139 * 2**30


def test_a_gpu_that_fell_off_the_bus_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(("nvmlDeviceGetHandleByIndex",))
    use(monkeypatch, nvml)
    assert read_gpus() == []
    assert not nvml.open


posix = pytest.mark.skipif(os.name != "posix", reason="the stand-in for nvidia-smi is a shell script")


@posix
@pytest.mark.parametrize("nvml", [None, FakeNvml(("nvmlInit",))], ids=["no library", "no driver for it"])
def test_without_nvml_nvidia_smi_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nvml: ModuleType | None
) -> None:
    line = "NVIDIA H200, 143771, 4, 570.1, [N/A], 345, 1980"
    use(monkeypatch, nvml, nvidia_smi(tmp_path, f'echo "{line}"; echo "{line}"'))
    first, second = read_gpus()
    assert first == second
    assert (first.name, first.driver, first.memory_bytes) == ("NVIDIA H200", "570.1", 143771 * 2**20)
    assert (first.utilization_share, first.sm_clock_mhz, first.other_processes) == (None, 345.0, None)


@posix
@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "echo"])
def test_nvidia_smi_without_a_driver_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    use(monkeypatch, None, nvidia_smi(tmp_path, script))
    assert read_gpus() == []


def test_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    assert read_gpus() == []
