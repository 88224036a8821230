from pathlib import Path

import pytest

from crosshead.results import cpu_quota


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_2(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "0::/user.slice/job\n", "sys/fs/cgroup/user.slice/job/cpu.max": "150000 100000\n"},
    )
    assert cpu_quota(root) == 1.5


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job",
            "sys/fs/cgroup/slice/job/cpu.max": "400000 100000",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
    )
    assert cpu_quota(root) == 2.0


def test_version_1(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "12:memory:/job\n4:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu_quota(root) == 0.5


def test_inside_a_container_the_top_of_the_mount_is_the_group(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/0123456789ab\n0::/../../outside\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu_quota(root) == 3.0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n"},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"},
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"},
        {"proc/self/cgroup": "nonsense\n"},
        {"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"},
    ],
)
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert cpu_quota(write(tmp_path, files)) is None
