import os
import platform
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tests.results.strategies import environment

from crosshead.results import CpuTimes, GpuRecord, environment_notices, read_environment

Times = namedtuple("Times", ["user", "system", "idle", "steal", "guest"])
TimesWithoutSteal = namedtuple("TimesWithoutSteal", ["user", "system", "idle"])


def test_it_knows_this_machine() -> None:
    found = read_environment({"torch": "2.13.0", "onnxruntime": "1.32.0"})
    assert found.os == platform.system()
    assert found.python == platform.python_version()
    assert found.cpu_model
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_bytes == psutil.virtual_memory().total
    assert list(found.versions.items()) == [("onnxruntime", "1.32.0"), ("torch", "2.13.0")]
    if found.os == "Linux":
        assert found.libc
        assert found.steal_share is not None
        assert 0.0 <= found.steal_share <= 1.0


def test_it_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/home/jane/lib/libjemalloc.so")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    found = read_environment({})
    assert found.tunables["LD_PRELOAD"] == "libjemalloc.so"
    assert found.tunables["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    text = msgspec.json.encode(found).decode()
    assert "hunter2" not in text
    assert "jane" not in text
    if len(socket.gethostname()) > 3:
        assert socket.gethostname() not in text


def test_nothing_readable_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("not on this system")

    monkeypatch.setattr(Path, "read_text", fail)
    monkeypatch.setattr("subprocess.run", fail)
    monkeypatch.setattr(platform, "freedesktop_os_release", fail)
    monkeypatch.setattr(psutil, "getloadavg", fail)
    monkeypatch.setattr(os, "confstr", fail, raising=False)
    found = read_environment({})
    assert (found.governor, found.cpu_quota, found.load_1m, found.distribution) == (None, None, None, "")
    assert found.cpu_model
    assert found.gpus == []


def readings(monkeypatch: pytest.MonkeyPatch, *times: Any) -> list[CpuTimes]:
    queue = list(times)
    monkeypatch.setattr(psutil, "cpu_times", lambda: queue.pop(0))
    return [CpuTimes() for _ in times]


def test_the_stolen_share_is_counted_from_the_earlier_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    # Time of our own guests is part of user time and must not be counted twice.
    before, after = readings(monkeypatch, Times(100, 0, 0, 50, 40), Times(160, 10, 20, 60, 90))
    assert after.steal_share(before) == pytest.approx(10 / 100)
    assert after.steal_share() == pytest.approx(60 / 250)
    assert after.steal_share(after) is None


def test_a_system_that_does_not_tell_has_no_stolen_share(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = readings(monkeypatch, TimesWithoutSteal(1, 1, 1), TimesWithoutSteal(2, 2, 2))
    assert after.steal_share(before) is None


def test_a_quiet_machine_gives_no_notice() -> None:
    gpu = GpuRecord(name="H200", utilization_share=0.0, other_processes=0)
    assert environment_notices(environment(load_1m=0.4, steal_share=0.001, gpus=[gpu])) == []
    assert environment_notices(environment()) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"steal_share": 0.083}, "8.3%"),
        ({"load_1m": 3.4, "cores": 2}, "3.4 on 2 cores"),
        ({"gpus": [GpuRecord(name="H200", utilization_share=0.9)]}, "H200 is 90% busy with some other"),
        ({"gpus": [GpuRecord(name="H200", utilization_share=0.0, other_processes=3)]}, "3 other processes"),
        ({"gpus": [GpuRecord(name="H200", throttle_reasons=["power cap"])]}, "held down (power cap)"),
    ],
)
def test_each_sign_of_company_gives_one(fields: dict[str, Any], says: str) -> None:
    (notice,) = environment_notices(environment(**fields))
    assert notice.code == "noisy-machine"
    assert says in notice.message
