"""What went on around a turn, and when that voids a cell."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from crosshead.harness import Plan, bench
from crosshead.harness import surroundings as module
from crosshead.harness import timing as timing_module
from crosshead.harness.surroundings import Reading, read_surroundings, together, turn_row, why_void
from crosshead.results import GpuRecord, SurroundingsRecord, TurnRow, read_turns

MakePlan = Callable[..., Plan]
BEFORE = Reading(at_s=10.0, busy_s=100.0, stolen_s=1.0, total_s=400.0, own_s=50.0, switches=7, throttles=3)
AFTER = Reading(
    at_s=12.0,
    busy_s=103.0,
    stolen_s=1.5,
    total_s=404.0,
    own_s=51.0,
    switches=9,
    frequency_mhz=2600.0,
    temperature_c=71.0,
    throttles=4,
    gpu=GpuRecord(name="a GPU", sm_clock_mhz=1500.0, throttle_reasons=["power cap"], other_processes=2),
)


class Times(NamedTuple):
    """What psutil gives on Linux, or some of it."""

    user: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_a_turn_is_the_difference_of_two_readings() -> None:
    row = turn_row(BEFORE, AFTER, began_s=4.0, samples=20)
    assert row == TurnRow(
        began_s=4.0,
        seconds=2.0,
        samples=20,
        steal_share=0.125,
        others_cores=1.0,  # 3 s were busy and 1 s of them ours, in 2 s
        switches=2,
        frequency_mhz=2600.0,
        temperature_c=71.0,
        throttles=1,
        gpu_clock_mhz=1500.0,
        gpu_throttled=True,
        gpu_shared=True,
    )
    nothing = turn_row(BEFORE, BEFORE, began_s=0.0, samples=0)
    assert (nothing.steal_share, nothing.others_cores, nothing.gpu_clock_mhz) == (0.0, 0.0, None)


def test_turns_are_weighed_by_their_length() -> None:
    rows = [
        TurnRow(0.0, 1.0, 5, steal_share=0.4, others_cores=2.0, switches=1, frequency_mhz=2000.0),
        TurnRow(1.0, 3.0, 9, others_cores=-0.1, switches=2, frequency_mhz=3000.0, temperature_c=60.0, throttles=1),
    ]
    seen = together(rows)
    assert (seen.steal_share, seen.others_cores) == pytest.approx((0.1, (2.0 - 0.3) / 4.0))
    assert seen == SurroundingsRecord(
        turns=2,
        steal_share=seen.steal_share,
        others_cores=seen.others_cores,
        switches=3,
        frequency_low_mhz=2000.0,
        frequency_high_mhz=3000.0,
        temperature_c=60.0,
        throttles=1,
    )
    assert together([]) == SurroundingsRecord(turns=0)


@pytest.mark.parametrize(
    ("seen", "threads", "cores", "reason"),
    [
        ({}, 2, 2, ""),
        ({"steal_share": 0.09, "others_cores": 0.4}, 2, 2, ""),
        ({"steal_share": 0.11}, 1, 8, "11% of the processors' time went to other guests of this host"),
        ({"others_cores": 0.9}, 2, 2, "other programs kept 0.9 of 2 processors busy while its 2 threads were measured"),
        ({"others_cores": 0.9}, 1, 2, ""),
        ({"others_cores": 1.6}, 1, 2, "other programs kept 1.6 of 2 processors busy"),
        ({"others_cores": 0.4}, 8, 2, ""),
        ({"throttles": 2}, 1, 2, "the processors were held back for their heat 2 times"),
        ({"gpu_throttled_turns": 2}, 1, 2, ""),
        ({"gpu_throttled_turns": 3}, 1, 2, "the GPU's clock was held down in 3 of 4 turns"),
        ({"gpu_shared_turns": 4}, 1, 2, "other processes computed on the GPU in 4 of 4 turns"),
    ],
)
def test_what_voids_a_cell(seen: dict[str, Any], threads: int, cores: int, reason: str) -> None:
    found = why_void(SurroundingsRecord(turns=4, **seen), threads, cores)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)


def test_reading_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    times = Times(10.0, 5.0, 80.0, 2.0, 3.0, 4.0)
    monkeypatch.setattr(module.psutil, "cpu_times", lambda: times)  # type: ignore[attr-defined]  # imported there
    monkeypatch.setattr(module.psutil, "cpu_freq", lambda: None)  # type: ignore[attr-defined]  # likewise
    monkeypatch.setattr(module.psutil, "sensors_temperatures", dict)  # type: ignore[attr-defined]  # likewise
    seen = read_surroundings(None)
    assert (seen.total_s, seen.stolen_s, seen.busy_s) == (100.0, 3.0, 15.0)
    assert (seen.frequency_mhz, seen.temperature_c, seen.switches, seen.gpu) == (None, None, 0, None)
    assert seen.own_s > 0.0


def test_every_turn_is_kept_with_what_was_seen_around_it(make_plan: MakePlan) -> None:
    finished = bench(make_plan(fake={"sleep_s": 1e-3}))
    turns = read_turns(finished.folder)
    assert set(turns) == {(cell, process) for cell in range(2) for process in range(2)}
    for index, cell in enumerate(finished.record.cells):
        assert cell.latency is not None
        rows = [row for process in range(2) for row in turns[index, process]]
        assert sum(row.samples for row in rows) == cell.latency.samples
        assert cell.latency.surroundings == together(rows)
        assert all(row.seconds > 0.0 for row in rows)


def test_a_disturbed_cell_is_void_and_says_why(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_module, "why_void", lambda seen, threads, cores: f"{seen.turns} loud turns")
    record = bench(make_plan()).record
    assert [cell.status for cell in record.cells] == ["void", "void"]
    assert all(cell.reason.endswith("loud turns") for cell in record.cells)
    assert record.comparisons == []
    (notice,) = [notice for notice in record.notices if notice.code == "noisy-machine" and "void" in notice.message]
    assert notice.where == "fake/linear 1x3, fake/linear 2x5"
