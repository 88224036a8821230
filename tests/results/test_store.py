import errno
import json
import stat
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.results.strategies import cell, full_run, run

from crosshead.results import RunStore, StoreError, VersionError, new_run_id, read_run, read_samples

NOW = datetime(2026, 11, 30, 20, 15, 3, tzinfo=UTC)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- ids


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("mha", "mha"),
        ("encoder-layer", "encoder-layer"),
        ("path/to/handed.py:grouped_query", "handed-grouped_query"),
        ("my.package.module:factory", "my.package.module-factory"),
        ("/home/jane/models/big model.onnx", "big-model"),
        (r"C:\Users\jane\model.onnx", "model"),
        ("../..", "run"),
        ("x" * 100, "x" * 40),
    ],
)
def test_an_id_sorts_by_time_and_names_the_source(source: str, name: str) -> None:
    assert new_run_id(NOW, source) == f"2026-11-30T20-15-03-{name}"


def test_an_id_is_in_utc() -> None:
    there = NOW.astimezone(timezone(timedelta(hours=9)))
    assert new_run_id(there, "mha") == new_run_id(NOW, "mha")
    with pytest.raises(ValueError, match="time zone"):
        new_run_id(NOW.replace(tzinfo=None), "mha")


@given(st.text())
def test_any_source_makes_a_name_that_every_file_system_takes(source: str) -> None:
    name = new_run_id(NOW, source)
    assert name.isascii()
    assert not set(name) & set('/\\:*?"<>| ')
    assert len(name) <= 64
    assert not name.endswith(".")


# --- writing and reading


def test_a_run_is_written_while_it_goes_on(tmp_path: Path) -> None:
    started = run(finished=False, verdict=None)
    store = RunStore.create(tmp_path / "new" / "runs", "an-id", started)
    assert store.path == tmp_path / "new" / "runs" / "an-id"
    assert read_run(store.path) == store.record == msgspec.structs.replace(started, id="an-id")
    store.update(full_run())
    assert read_run(store.path / "run.json") == msgspec.structs.replace(full_run(), id="an-id")
    assert names(store.path) == ["run.json"]
    assert stat.S_IMODE((store.path / "run.json").stat().st_mode) & 0o044, "others may read it as the umask says"


def test_a_second_run_of_the_same_second_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    stores = [RunStore.create(tmp_path, "an-id", run()) for _ in range(3)]
    assert [store.run_id for store in stores] == ["an-id", "an-id-2", "an-id-3"]
    assert [read_run(store.path).id for store in stores] == ["an-id", "an-id-2", "an-id-3"]


def test_samples_are_appended_and_written_with_the_next_update(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    assert read_samples(store.path) == {}
    store.add_samples(0, 0, [1e-3, 2e-3])
    store.add_samples(12, 1, [5e-3])
    store.add_samples(0, 0, [3e-3])
    assert read_samples(store.path) == {}
    store.update(run())
    found = read_samples(store.path)
    assert {place: samples.tolist() for place, samples in found.items()} == {
        (0, 0): [1e-3, 2e-3, 3e-3],
        (12, 1): [5e-3],
    }
    assert found[0, 0].dtype == np.float64


def test_samples_are_not_written_again_when_none_came(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    store.add_samples(0, 0, [1e-3])
    store.update(run())
    before = (store.path / "samples.npz").stat().st_ino
    store.update(run())
    assert (store.path / "samples.npz").stat().st_ino == before


def test_a_summary_is_written_beside_the_record(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    store.write_summary("# mha ± \udcff\n")
    assert (store.path / "summary.md").read_text(encoding="utf-8") == "# mha ± ?\n"


def test_discarding_leaves_nothing_that_was_not_there(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "runs", "an-id", run())
    (store.path / "artifacts").mkdir()
    store.discard()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    RunStore.create(tmp_path / "runs", "an-id", run()).discard()
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_discarding_spares_what_others_put_beside_it(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "runs", "an-id", run())
    other = RunStore.create(tmp_path / "runs", "other", run())
    store.discard()
    assert read_run(other.path).id == "other"


# --- what goes wrong


def test_a_write_that_fails_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    before = (store.path / "run.json").read_bytes()

    def half_a_write(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half_a_write)
    with pytest.raises(StoreError, match=r"cannot write run\.json .*: the disk is full; .*still there") as caught:
        store.update(full_run())
    assert isinstance(caught.value.__cause__, OSError)
    assert (store.path / "run.json").read_bytes() == before
    assert names(store.path) == ["run.json"], "half a file was left behind"
    assert store.record == msgspec.structs.replace(run(), id="an-id")


def test_an_interruption_in_the_middle_of_a_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    before = (store.path / "run.json").read_bytes()

    def interrupted(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.update(full_run())
    assert (store.path / "run.json").read_bytes() == before
    assert names(store.path) == ["run.json"]


def test_samples_that_could_not_be_written_are_written_by_the_next_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    store.add_samples(0, 0, [1e-3])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StoreError):
            store.update(run())
    store.update(run())
    assert read_samples(store.path)[0, 0].tolist() == [1e-3]


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"a file is in the way; give another folder with --out") as caught:
            RunStore.create(out, "an-id", run())
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that lets nobody make a folder")
def test_a_folder_that_nobody_may_write_is_one_line() -> None:
    with pytest.raises(StoreError, match=r"cannot make a results folder in /proc/crosshead: .*; give another folder"):
        RunStore.create(Path("/proc/crosshead"), "an-id", run())


def test_a_first_record_that_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", denied)
    with pytest.raises(StoreError, match="permission denied"):
        RunStore.create(tmp_path / "runs", "an-id", run())
    assert list(tmp_path.iterdir()) == []


def test_reading_nothing_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"it is not there; expected a run's folder or its run\.json"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"it is not there; expected a run's folder"):
        read_run(tmp_path)


def test_a_damaged_record_names_the_file(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "an-id", full_run())
    data = (store.path / "run.json").read_bytes()
    (store.path / "run.json").write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError, match=r"an-id/run\.json: the record is damaged"):
        read_run(store.path)


def test_a_record_of_another_version_names_the_file(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "an-id", run())
    tree = json.loads((store.path / "run.json").read_bytes())
    (store.path / "run.json").write_text(json.dumps(tree | {"schema": "crosshead.run/2"}))
    with pytest.raises(VersionError, match=r"run\.json: the record is of schema crosshead\.run/2"):
        read_run(store.path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and then nothing", b"no archive"])
def test_damaged_samples_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "samples.npz").write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        read_samples(tmp_path)


def test_samples_that_would_run_code_are_refused(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "samples.npz", cell0_process0=objects)
    with pytest.raises(StoreError, match="damaged"):
        read_samples(tmp_path)


def test_what_is_written_names_nobody(tmp_path: Path) -> None:
    reason = f"cannot load {tmp_path / 'secret' / 'model.onnx'}"
    store = RunStore.create(tmp_path, "an-id", run(cells=[cell(status="failed", reason=reason)]))
    assert str(tmp_path) not in (store.path / "run.json").read_text()
    assert read_run(store.path).cells[0].reason == "cannot load model.onnx"
