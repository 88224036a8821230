"""The machine's peaks, found in the run that they are for."""

from collections.abc import Callable

import pytest

from crosshead.harness import Plan, bench
from crosshead.harness import timing as timing_module
from crosshead.harness.timing import _better
from crosshead.results import PeakRecord
from crosshead.runtimes import BackendError, Peaked, Worker

MakePlan = Callable[..., Plan]
UNKNOWN = PeakRecord(precision="fp32", threads=2)


def test_a_run_finds_the_peaks_of_its_machine(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing_module, "PEAK_S", 0.01)
    record = bench(make_plan(backends=("ort-cpu", "fake"))).record
    (peak,) = record.peaks
    assert (peak.precision, peak.threads, peak.backend) == ("fp32", 1, "ort-cpu")
    assert peak.gflop_s is not None
    assert peak.gflop_s > 0.1
    assert peak.gbyte_s is not None
    assert record.phases_s["peaks"] > 0.0
    assert max(cell.peak_rss_bytes or 0 for cell in record.cells) < 256e6  # what was copied is no part of it


def test_a_backend_without_a_product_finds_none(make_plan: MakePlan) -> None:
    assert bench(make_plan()).record.peaks == []


def test_trouble_with_a_peak_costs_no_time_that_was_measured(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(worker: Worker, duration_s: float) -> Peaked:
        raise BackendError("no memory for it")

    monkeypatch.setattr(Worker, "peak", fail)
    record = bench(make_plan()).record
    assert record.peaks == []
    assert [cell.status for cell in record.cells] == ["ok", "ok"]
    assert all(cell.latency is not None for cell in record.cells)


def test_the_higher_of_each_peak_is_kept() -> None:
    first = _better(UNKNOWN, Peaked(flop_s=2e11, copy_bytes_s=None), "ort-cpu")
    second = _better(first, Peaked(flop_s=1e11, copy_bytes_s=3e10), "torch-eager")
    third = _better(second, Peaked(flop_s=None, copy_bytes_s=1e10), "fake")
    assert third == PeakRecord(precision="fp32", threads=2, gflop_s=200.0, backend="ort-cpu", gbyte_s=30.0)
    assert _better(third, Peaked(flop_s=3e11, copy_bytes_s=4e10), "torch-eager").backend == "torch-eager"
