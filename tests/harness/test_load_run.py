"""A load test from plan to record, on the fake backend: verdicts, statuses without figures, interruption."""

import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from crosshead.harness import LoadFinished, LoadPlan, Plan, RequestError, load, poisson_arrivals, read_objective
from crosshead.harness import load_cell as load_cell_module
from crosshead.harness.load_verdict import load_exit_status
from crosshead.results import CpuTimes, LoadPointRecord, read_load, read_load_samples
from crosshead.runtimes import Worker
from crosshead.runtimes.messages import Load, Loaded

MakeLoadPlan = Callable[..., LoadPlan]


@pytest.fixture
def make_load_plan(make_plan: Callable[..., Plan]) -> MakeLoadPlan:
    """Return a function that makes a short load plan over the tiny artifact, whose second case is left out."""

    def make(*, objectives: tuple[str, ...] = (), fake: dict[str, Any] | None = None, **fields: Any) -> LoadPlan:
        names = [name for name in fields if name in Plan.__struct_fields__]
        plan = make_plan(fake=fake, **{"time_budget_s": 2.0} | {name: fields.pop(name) for name in names})
        return LoadPlan(plan=plan, objectives=tuple(map(read_objective, objectives)), **fields)

    return make


def status(finished: LoadFinished, *, strict: bool = False) -> int:
    return load_exit_status(finished.record, by_name=finished.by_name, strict=strict, interrupted=finished.interrupted)


def has_no_figures(point: LoadPointRecord) -> bool:
    names = ("latency", "queue", "service", "throughput_per_s", "busy_share", "wake_median_s", "expected_queue_s")
    return all(getattr(point, name) is None for name in (*names, "window_s")) and not point.requests + point.unanswered


def test_every_load_that_was_asked_for_is_recorded(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(clients=(1, 2), rates_per_s=(40.0, 80.0), fake={"sleep_s": 0.002}))
    record = finished.record
    assert record.finished
    assert record.verdict == "pass"
    assert status(finished) == 0
    assert [cell.case for cell in record.cells] == ["1x3", "2x5"]
    for cell in record.cells:
        assert [point.clients for point in cell.points] == [1, 2, None, None]
        assert [point.rate_per_s for point in cell.points] == [None, None, 40.0, 80.0]
        assert [point.workers for point in cell.points] == [1, 2, 1, 1]
        assert all(point.given for point in cell.points)
        assert cell.call_s is not None
        assert cell.saturation is not None
        assert cell.kept is None
    assert read_load(finished.folder) == record
    assert "80" in (finished.folder / "summary.md").read_text()


def test_raw_times_are_kept_and_figures_follow_from_them(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(rates_per_s=(100.0,), fake={"sleep_s": 0.002}, seed=5))
    samples = read_load_samples(finished.folder)
    for place, cell in enumerate(finished.record.cells):
        (point,) = cell.points
        assert point.latency is not None
        assert point.queue is not None
        assert point.service is not None
        times = samples[place, 0]
        counted = times.counted(point.lead_s)
        assert len(counted.intended_s) == point.requests
        assert point.latency.mean_s == pytest.approx(float(counted.latency_s.mean()))
        assert point.latency.mean_s == pytest.approx(point.queue.mean_s + point.service.mean_s)
        assert point.seed is not None
        drawn = poisson_arrivals(100.0, point.duration_s, point.seed)
        assert np.allclose(times.intended_s, drawn[: len(times.intended_s)])
    first, second = (cell.points[0] for cell in finished.record.cells)
    assert first.seed == second.seed


def test_an_objective_that_is_missed_at_a_given_load_fails(make_load_plan: MakeLoadPlan) -> None:
    fake = {"sleep_s": 0.003}
    kept = load(make_load_plan(rates_per_s=(60.0,), objectives=("p50=20s",), fake=fake))
    assert [p.objectives[0].verdict for cell in kept.record.cells for p in cell.points] == ["met", "met"]
    assert all(cell.kept is not None and cell.kept.kept_per_s == 60.0 for cell in kept.record.cells)
    assert status(kept) == 0
    missed = load(make_load_plan(rates_per_s=(60.0,), objectives=("p50=1ms",), fake=fake))
    assert missed.record.verdict == "fail"
    assert status(missed) == 1
    closed = load(make_load_plan(clients=(2,), objectives=("p50=1ms",), fake=fake))
    assert status(closed) == 1


def test_an_objective_with_too_few_requests_is_undecided(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(rates_per_s=(20.0,), objectives=("p99.9=20s",), fake={"sleep_s": 0.001}))
    (objective,) = finished.record.cells[0].points[0].objectives
    assert objective.verdict == "undecided"
    assert objective.missing_samples > 4_000
    assert finished.record.verdict == "suspect"
    assert (status(finished), status(finished, strict=True)) == (0, 1)


def test_a_rate_beyond_the_server_is_saturated_and_has_no_latency(make_load_plan: MakeLoadPlan) -> None:
    finished = load(
        make_load_plan(rates_per_s=(20.0, 2_000.0), objectives=("p50=20s",), fake={"sleep_s": 0.004}, batches=(1,))
    )
    for cell in finished.record.cells:
        slow, fast = cell.points
        assert slow.status == "ok"
        assert fast.status == "saturated"
        assert fast.latency is None
        assert fast.queue is None
        assert fast.service is not None
        assert fast.unanswered > 0
        assert fast.objectives[0].verdict == "missed"
        assert cell.saturation is not None
        assert (cell.saturation.follows_per_s, cell.saturation.stops_per_s) == (20.0, 2_000.0)
        assert cell.saturation.throughput_per_s < 250.0
    assert status(finished) == 1


def test_without_rates_they_are_searched(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(objectives=("p50=1s",), fake={"sleep_s": 0.002}, time_budget_s=4.0))
    for cell in finished.record.cells:
        assert cell.points[0].clients == 1
        assert not any(point.given for point in cell.points)
        assert sum(point.loop == "open" for point in cell.points) >= 2
        assert cell.kept is not None
        assert cell.kept.kept_per_s is not None
    assert status(finished) == 0
    hopeless = load(make_load_plan(objectives=("p50=1us",), fake={"sleep_s": 0.002}, time_budget_s=3.0))
    assert status(hopeless) == 1
    assert all(cell.kept is not None and cell.kept.kept_per_s is None for cell in hopeless.record.cells)


def test_a_search_without_the_time_for_its_objective_says_so(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(objectives=("p99.9=1s",), fake={"sleep_s": 0.01}))
    cell = finished.record.cells[0]
    assert cell.kept is not None
    assert "give a longer --time-budget" in cell.kept.reason
    assert finished.record.verdict == "suspect"


@pytest.mark.parametrize("fields", [{"clients": (1,)}, {"rates_per_s": (50.0,)}, {}])
def test_a_budget_too_short_for_one_call_is_a_status(make_load_plan: MakeLoadPlan, fields: dict[str, Any]) -> None:
    finished = load(make_load_plan(time_budget_s=0.05, fake={"sleep_s": 0.4}, **fields))
    for cell in finished.record.cells:
        assert cell.status == "void"
        assert all(point.status == "too-short" and has_no_figures(point) for point in cell.points)
        assert "--time-budget" in cell.reason
    assert finished.record.verdict == "suspect"


def test_a_rate_at_which_none_comes_is_too_short(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(rates_per_s=(1e-4,), objectives=("p50=1s",)))
    (point,) = finished.record.cells[0].points
    assert point.status == "too-short"
    assert has_no_figures(point)
    assert point.objectives[0].verdict == "undecided"


@pytest.mark.parametrize(
    ("finding", "stolen"), [("the process stood still for 3 s", 0.0), ("", 0.5)], ids=["stood still", "stolen"]
)
def test_a_load_that_was_disturbed_is_void(
    make_load_plan: MakeLoadPlan, monkeypatch: pytest.MonkeyPatch, finding: str, stolen: float
) -> None:
    really = Worker.load

    def disturbed(self: Worker, request: Load) -> Loaded:
        return msgspec.structs.replace(really(self, request), finding=finding)

    monkeypatch.setattr(Worker, "load", disturbed)
    monkeypatch.setattr(CpuTimes, "steal_share", lambda self, since=None: stolen)
    finished = load(make_load_plan(rates_per_s=(50.0,), objectives=("p50=1s",)))
    for cell in finished.record.cells:
        (point,) = cell.points
        assert point.status == "void"
        assert has_no_figures(point)
        assert point.reason == (finding or "50% of the processors' time went to other guests of this host")
        assert cell.status == "void"
    assert read_load_samples(finished.folder)  # whoever wants may look
    assert (status(finished), status(finished, strict=True)) == (0, 1)


def test_a_worker_that_is_lost_ends_its_own_cell_and_keeps_what_was_finished(
    make_load_plan: MakeLoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, asked = Worker.load, iter(range(10))

    def killed(self: Worker, request: Load) -> Loaded:
        if next(asked) == 1:
            os.kill(self.pid or 0, signal.SIGKILL)
        return really(self, request)

    monkeypatch.setattr(Worker, "load", killed)
    finished = load(make_load_plan(clients=(1,), rates_per_s=(50.0,)))
    lost, other = finished.record.cells
    assert lost.status == "failed"
    assert "SIGKILL" in lost.reason
    assert [point.status for point in lost.points] == ["ok", "failed"]
    assert has_no_figures(lost.points[1])
    assert other.status == "ok"
    assert status(finished) == 1


def test_a_backend_that_fails_before_any_load(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(clients=(1,), fake={"raises": "no such thing"}))
    assert all(cell.status == "failed" and not cell.points for cell in finished.record.cells)
    refused = load(make_load_plan(clients=(1,), fake={"unsupported": "op Sin of float8"}))
    assert status(refused) == 2


def test_workers_beyond_one_need_a_backend_that_takes_several_calls(make_load_plan: MakeLoadPlan) -> None:
    finished = load(make_load_plan(clients=(2,), workers=2, backends=("onnx-reference",)))
    assert all(cell.status == "unsupported" and "one call at a time" in cell.reason for cell in finished.record.cells)
    assert status(finished) == 2
    shared = load(make_load_plan(clients=(2,), backends=("onnx-reference",)))
    assert [cell.points[0].workers for cell in shared.record.cells] == [1, 1]


def test_an_interrupted_test_keeps_what_was_finished(make_load_plan: MakeLoadPlan) -> None:
    def interrupt(step: str, share: float | None = None) -> None:
        if "90 requests/s" in step:
            raise KeyboardInterrupt

    finished = load(make_load_plan(clients=(1,), rates_per_s=(40.0, 90.0)), interrupt)
    assert finished.interrupted
    assert status(finished) == 130
    record = read_load(finished.folder)
    assert not record.finished
    (cell,) = record.cells
    assert [point.status for point in cell.points] == ["ok", "ok"]
    assert "interrupted" in [notice.code for notice in record.notices]
    assert "Unfinished" in (finished.folder / "summary.md").read_text()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clients": (0,)}, "concurrency"),
        ({"clients": (5_000,)}, "5000"),
        ({"workers": 0}, "workers"),
        ({"rates_per_s": (0.0,)}, "rate"),
        ({"rates_per_s": (float("nan"),)}, "rate"),
        ({"objectives": ("p99=1s", "p99=2s")}, "two objectives"),
        ({"objectives": ("p99<1s",)}, "p99=20ms"),
        ({"objectives": ("p0=1s",)}, "percentile"),
        ({"objectives": ("p100=1s",)}, "percentile"),
        ({"objectives": ("p99=0ms",)}, "percentile"),
        ({"against": "other.onnx"}, "one source"),
    ],
)
def test_what_cannot_be_asked_is_refused(make_load_plan: MakeLoadPlan, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_load_plan(**fields)


def test_a_load_holds_no_more_requests_than_can_be_kept(
    make_load_plan: MakeLoadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_cell_module, "MOST_REQUESTS", 50)
    finished = load(make_load_plan(rates_per_s=(200.0,), fake={"sleep_s": 0.001}))
    for cell in finished.record.cells:
        assert cell.points[0].duration_s == pytest.approx(0.99 * 50 / 200.0)
        assert cell.points[0].status == "ok"


def test_objectives_are_read() -> None:
    objective = read_objective("p99.9=1.5ms")
    assert objective.name == "p99.9"
    assert objective.quantile == pytest.approx(0.999)
    assert objective.limit_s == pytest.approx(1.5e-3)
    assert read_objective("p50=20us").limit_s == pytest.approx(2e-5)
