"""The record of a load test: its fields, its folder, and how it is shown."""

import io
import typing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from rich.console import Console
from tests.results.strategies import records as any_record
from tests.results.test_records import UNITS, parts

from crosshead.results import (
    LOAD_SCHEMA,
    EnvironmentRecord,
    KeptRecord,
    LoadCellRecord,
    LoadPlanRecord,
    LoadPointRecord,
    LoadRecord,
    LoadSamples,
    LoadStore,
    Notice,
    ObjectiveRecord,
    SaturationRecord,
    SpreadRecord,
    StoreError,
    VersionError,
    decode_record,
    encode_record,
    load_records,
    load_summary,
    read_load,
    read_load_samples,
    render_load,
)

DIMENSIONLESS = {
    "LoadCellRecord": {"threads", "settings"},
    "LoadPlanRecord": {"options", "clients", "workers", "threads", "seed"},
    "LoadPointRecord": {"clients", "workers", "seed", "requests", "unanswered"},
    "ObjectiveRecord": {"requests", "over", "missing_samples"},
    "SpreadRecord": {"missing_samples"},
}

RECORDS = [
    kind
    for kind in vars(load_records).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == load_records.__name__
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_number_says_its_unit_or_has_none(record: type[msgspec.Struct]) -> None:
    numeric = {name for name, kind in typing.get_type_hints(record).items() if {int, float} & set(parts(kind))}
    without = {name for name in numeric if not name.endswith(UNITS)}
    assert without == DIMENSIONLESS.get(record.__name__, set())
    assert record.__struct_config__.frozen


@settings(deadline=None, max_examples=50)
@given(any_record(LoadCellRecord))
def test_a_cell_comes_back_as_it_was_written(cell: LoadCellRecord) -> None:
    once = decode_record(encode_record(record(cells=[cell])), LoadRecord, LOAD_SCHEMA, "a load test")
    again = decode_record(encode_record(once), LoadRecord, LOAD_SCHEMA, "a load test")
    assert encode_record(again) == encode_record(once)


def spread(base_s: float, **fields: Any) -> SpreadRecord:
    known: dict[str, Any] = {"mean_s": base_s, "median_s": base_s, "p90_s": 2 * base_s, "p99_s": 4 * base_s}
    return SpreadRecord(**known | {"max_s": 8 * base_s, "missing_samples": {"p999": 321}} | fields)


def point(**fields: Any) -> LoadPointRecord:
    known: dict[str, Any] = {
        "loop": "open",
        "rate_per_s": 50.0,
        "workers": 1,
        "status": "ok",
        "duration_s": 4.0,
        "requests": 200,
        "throughput_per_s": 49.5,
        "busy_share": 0.25,
        "latency": spread(7e-3),
        "queue": spread(2e-3),
        "service": spread(5e-3),
    }
    return LoadPointRecord(**known | fields)


def record(**fields: Any) -> LoadRecord:
    environment = EnvironmentRecord(
        os="Linux", kernel="6", machine="x86_64", cpu_model="a CPU", cores=2, memory_bytes=1, python="3.11"
    )
    plan = LoadPlanRecord(
        source="mha", backends=["fake"], objectives=["p99=20ms"], threads=2, time_budget_s=9.0, seed=0
    )
    known: dict[str, Any] = {"id": "x", "crosshead": "0.1.0", "started": "now", "finished": True, "verdict": "pass"}
    return LoadRecord(**known | {"plan": plan, "environment": environment} | fields)


def objective(verdict: Any, missing: int = 0) -> ObjectiveRecord:
    return ObjectiveRecord(name="p99", limit_s=0.02, verdict=verdict, requests=200, missing_samples=missing)


NO_FIGURES: dict[str, Any] = dict.fromkeys(("throughput_per_s", "busy_share", "latency", "queue", "service"))
POINTS = [
    point(objectives=[objective("met")]),
    point(rate_per_s=80.0, objectives=[objective("undecided", 259)]),
    point(
        rate_per_s=90.0,
        status="saturated",
        reason="they come faster than they are answered",
        latency=None,
        queue=None,
        objectives=[objective("missed")],
    ),
    point(rate_per_s=95.0, status="void", reason="the process stood still for 3 s", **NO_FIGURES),
    point(loop="closed", rate_per_s=None, clients=2),
]
CELL = LoadCellRecord(
    artifact="mha",
    backend="fake",
    case="1x128",
    threads=2,
    status="ok",
    points=POINTS,
    saturation=SaturationRecord(follows_per_s=80.0, stops_per_s=90.0, throughput_per_s=85.0),
    kept=KeptRecord(kept_per_s=50.0, lost_per_s=90.0),
)
LOST = LoadCellRecord(
    artifact="mha", backend="ort-cpu", case="1x128", threads=2, status="failed", reason="it was [ended] by SIGKILL"
)


def rendered(shown: LoadRecord, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    render_load(shown, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_fits_and_says_everything() -> None:
    text = rendered(record(cells=[CELL, LOST], notices=[Notice(code="noisy-machine", message="busy", where="here")]))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for words in (
        "2 clients",
        "50.0/s",
        "7.00 ms",
        "28.0 ms",
        "needs 321",
        "49.5/s",
        "25%",
        "met",
        "it takes 259 more requests",
        "saturated 25%",
        "95.0/s void: the process stood still for 3 s",
        "The objectives are kept up to 50.0 requests/s, missed at 90.0.",
        "Throughput follows to 80.0 requests/s and stops following at 90.0; the most that was answered is 85.0",
        "failed: it was [ended] by SIGKILL",
        "noisy-machine: busy (here)",
        "Verdict: pass. Objectives at the loads that were given: 1 met, 1 missed, 1 undecided.",
    ):
        assert words in flat, words
    assert flat.index("2 clients") < flat.index("50.0/s")


def test_what_was_not_found_is_said() -> None:
    followed = SaturationRecord(follows_per_s=9.0, throughput_per_s=9.0)
    none = msgspec.structs.replace(CELL, kept=KeptRecord(reason="no rate was decided"), saturation=followed)
    text = " ".join(rendered(record(cells=[none], finished=False)).split())
    assert "No rate that keeps the objectives was found (no rate was decided)." in text
    assert "Throughput follows at every rate tried, to 9.00 requests/s." in text
    assert "Unfinished" in text


def test_the_summary_is_markdown_without_paths() -> None:
    lost = msgspec.structs.replace(LOST, reason="no file /home/jane/model.onnx | <b>")
    missed = [ObjectiveRecord(name=name, limit_s=0.1, verdict="missed") for name in ("p90", "p99.9")]
    points = [*POINTS, point(rate_per_s=70.0, objectives=missed)]
    text = load_summary(record(cells=[msgspec.structs.replace(CELL, points=points), lost]))
    assert "MISSED" in rendered(record(cells=[msgspec.structs.replace(CELL, points=points)]))
    assert "jane" not in text
    assert "model.onnx \\| \\<b\\>" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") - line.count("\\|") for line in rows}) == 1
    assert "| **MISSED p90, p99.9** |" in text
    assert "| saturated |" in text


def samples() -> LoadSamples:
    return LoadSamples(np.array([0.1, 0.2]), np.array([0.1, 0.3]), np.array([0.3, 0.4]), np.array([True, False]))


def test_a_store_keeps_record_and_times(tmp_path: Path) -> None:
    store = LoadStore.create(tmp_path / "runs", "load-mha", record())
    store.add_samples(1, 0, samples())
    store.update(record(cells=[CELL]))
    store.write_summary("# text")
    assert read_load(store.path) == store.record == record(id="load-mha", cells=[CELL])
    ((place, found),) = read_load_samples(store.path).items()
    assert place == (1, 0)
    for name in LoadSamples._fields:
        assert np.array_equal(getattr(found, name), getattr(samples(), name))
    again = LoadStore.create(tmp_path / "runs", "load-mha", record())
    assert again.record.id == "load-mha-2"
    assert read_load_samples(again.path) == {}
    again.discard()
    assert not again.path.exists()


def test_what_is_no_record_of_a_load_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read"):
        read_load(tmp_path)
    path = tmp_path / "load.json"
    path.write_bytes(encode_record(record()).replace(b"crosshead.load/1", b"crosshead.load/2"))
    with pytest.raises(VersionError, match=r"crosshead\.load/2"):
        read_load(tmp_path)
    path.write_text('{"schema": "crosshead.run/1"}')
    with pytest.raises(StoreError, match="no record of a load test"):
        read_load(tmp_path)
    (tmp_path / "samples.npz").write_text("rubbish")
    with pytest.raises(StoreError, match="damaged"):
        read_load_samples(tmp_path)
    np.savez(tmp_path / "samples.npz", cell0_point0_intended_s=np.zeros(1))
    with pytest.raises(StoreError, match="damaged"):
        read_load_samples(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        LoadStore.create(tmp_path / "file", "x", record())
