"""The processor quota of this process's control group (containers, systemd slices, batch systems)."""

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return how many processors' worth of time may be used, e.g. 1.5; None where there is no limit or no Linux.

    The limit of a group holds for everything below it, so the smallest on the way to the top counts.

    Args:
        root: of the file system to read; another one in tests.
    """
    quotas = [
        quota for folder in _folders(root) for quota in (_quota_v2(folder), _quota_v1(folder)) if quota is not None
    ]
    return min(quotas, default=None)


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it, in either hierarchy.

    A line of /proc/self/cgroup is `number:controllers:path`; version 2 has number 0 and no controllers. Inside a
    container the path may be the host's, which is not mounted; the top of what is mounted is then the right place.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            tops = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [mount / controllers, mount / "cpu"]
        else:
            continue
        below = Path(path.lstrip("/"))
        for top in tops:
            for part in (below, *below.parents):
                if ".." not in part.parts:
                    yield top / part


def _quota_v2(folder: Path) -> float | None:
    """Read `cpu.max`, which holds `quota period` in microseconds, or `max period`."""
    fields = _read(folder / "cpu.max").split()
    return _share(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    """Read `cpu.cfs_quota_us`, which is -1 where there is no limit."""
    return _share(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> float | None:
    try:
        granted, every = int(quota), int(period)
    except ValueError:  # `max`, or no such file
        return None
    return granted / every if granted > 0 and every > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
