"""The environment that a child process starts in.

Settings of allocators and thread libraries have to stand in the environment when a process starts; set later, they are
not seen.
"""

import os
import platform
import sys
from pathlib import Path

import psutil

from crosshead.runtimes.base import Settings

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb"

MEMORY_SHARE = 0.9
"""A worker may take this share of the memory that is free, unless a limit is given."""


def python_command(module: str) -> list[str]:
    """Return the command that runs a module with this interpreter.

    `-P` keeps the current folder off the import path: what lies there must not meet names of libraries.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment(settings: Settings, cache_folder: Path | None = None) -> dict[str, str]:
    """Return a copy of the environment with thread counts, allocator settings and the way to crosshead's own code.

    Args:
        settings: how the child is to run.
        cache_folder: takes compiled code and what compilers put aside; None for a child that compiles nothing.
    """
    environment = dict(os.environ)
    environment |= dict.fromkeys(THREAD_VARIABLES, str(settings.threads))
    tunables = merge_tunables(environment.get(_TUNABLES, ""), huge_pages=settings.huge_pages and has_huge_pages())
    environment.pop(_TUNABLES, None)
    if tunables:
        environment[_TUNABLES] = tunables
    if cache_folder is not None:
        environment |= _compiling(cache_folder)
    own = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own, *import_roots()]))
    return environment


def _compiling(folder: Path) -> dict[str, str]:
    """Return what keeps a compiler's files in one folder, and its work in this process.

    A cache of the user's own would be filled already, so that compiling would seem to cost nothing; and a pool of
    compiling processes would go on beside the process that is timed.
    """
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TMPDIR": str(temporary),
    }


def import_roots() -> list[str]:
    """Return the folders that crosshead is imported from, unless the interpreter looks there by itself."""
    import crosshead

    roots = [str(Path(portion).resolve().parent) for portion in crosshead.__path__]
    return [root for root in roots if Path(root).name not in {"site-packages", "dist-packages"}]


def import_path() -> str:
    """Return this process's import path, for a child to add at the *end* of its own (`extend_import_path`).

    Not by `PYTHONPATH`, which comes before the standard library: a user's `queue.py` would end a child at once.
    """
    return os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)


def extend_import_path(path: str) -> None:
    """Add what the parent finds its modules in and this process does not look into."""
    sys.path.extend(entry for entry in path.split(os.pathsep) if entry and entry not in sys.path)


def has_huge_pages() -> bool:
    """Whether the C library can be asked for huge pages: glibc on Linux."""
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def merge_tunables(own: str, *, huge_pages: bool) -> str:
    """Return glibc tunables with huge pages on or off, and the user's others kept.

    Huge pages make equal processes differ less; `benchmarks/truth_of_time.py` shows what they do on a machine. A value
    of the user's own (2 asks for reserved huge pages) is left alone.
    """
    entries = [entry for entry in own.split(":") if entry]
    names = [entry.partition("=")[0] for entry in entries]
    if not huge_pages:
        entries = [entry for entry, name in zip(entries, names, strict=True) if name != _HUGE_PAGES]
    elif _HUGE_PAGES not in names:
        entries.append(f"{_HUGE_PAGES}=1")
    return ":".join(entries)


def default_memory_limit_bytes() -> int:
    """Return `MEMORY_SHARE` of what is free, on the machine and in the control group that this process is in."""
    free = psutil.virtual_memory().available
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(Path(most).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return max(0, int(free * MEMORY_SHARE))
