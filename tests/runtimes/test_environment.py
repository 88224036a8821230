import os
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from crosshead.runtimes import Settings
from crosshead.runtimes import _environment as environment


@pytest.mark.parametrize(
    ("own", "huge_pages", "merged"),
    [
        ("", True, "glibc.malloc.hugetlb=1"),
        ("", False, ""),
        ("glibc.malloc.arena_max=1", True, "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.arena_max=1", True, "glibc.malloc.hugetlb=2:glibc.malloc.arena_max=1"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.arena_max=1", False, "glibc.malloc.arena_max=1"),
    ],
)
def test_tunables_are_merged_with_the_users_own(own: str, huge_pages: bool, merged: str) -> None:
    assert environment.merge_tunables(own, huge_pages=huge_pages) == merged


def test_a_child_gets_threads_tunables_and_the_way_to_crosshead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    monkeypatch.setattr(environment, "has_huge_pages", lambda: True)
    child = environment.child_environment(Settings(threads=3))
    assert {child[name] for name in environment.THREAD_VARIABLES} == {"3"}
    assert child["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"
    own, *roots = child["PYTHONPATH"].split(os.pathsep)
    assert own == "/of/the/user"
    assert all((Path(root) / "crosshead").is_dir() for root in roots)
    assert "GLIBC_TUNABLES" in os.environ  # a copy was changed
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.arena_max=1"


def test_a_child_that_compiles_keeps_all_its_files_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/the/user")
    child = environment.child_environment(Settings(), tmp_path / "cache")
    assert child["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert Path(child["TMPDIR"]).is_dir()
    assert Path(child["TMPDIR"]).is_relative_to(tmp_path)
    assert environment.child_environment(Settings())["TORCHINDUCTOR_CACHE_DIR"] == "/of/the/user"


def test_huge_pages_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert "GLIBC_TUNABLES" not in environment.child_environment(Settings(huge_pages=False))


def test_the_memory_limit_is_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Free:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", Free)
    files: dict[str, str] = {}

    def read(path: Path, *_: Sequence[object], **__: object) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert environment.default_memory_limit_bytes() == 900
    files |= {"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory.current": "1\n"}
    assert environment.default_memory_limit_bytes() == 900
    files |= {"/sys/fs/cgroup/memory.max": "500\n", "/sys/fs/cgroup/memory.current": "100\n"}
    assert environment.default_memory_limit_bytes() == 360


def test_the_import_path_is_added_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/first"])
    assert environment.import_path() == os.pathsep.join([str(Path.cwd()), "/first"])
    environment.extend_import_path(os.pathsep.join(["/first", "/more", ""]))
    assert sys.path == ["", "/first", "/more"]
