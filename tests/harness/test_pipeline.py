"""The main job over the fake backend: every way a backend can misbehave is one cell's own trouble."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from crosshead.export.artifact import Artifact, ArtifactError, GraphVerdict
from crosshead.harness import Plan, RequestError, Tolerance, Tolerances, bench, compare, export, run
from crosshead.harness.pipeline import Finished
from crosshead.harness.verdict import exit_status
from crosshead.results import CellRecord, Notice, read_run, read_samples
from crosshead.runtimes import CAN_PAUSE, Measured, Worker

MakePlan = Callable[..., Plan]
WriteLinear = Callable[..., Artifact]


def cells(finished: Finished, backend: str = "fake") -> list[CellRecord]:
    found = [cell for cell in finished.record.cells if cell.backend == backend]
    assert found
    return found


def codes(notices: list[Notice]) -> set[str]:
    return {notice.code for notice in notices}


def status(finished: Finished, *, strict: bool = False) -> int:
    return exit_status(finished.record, by_name=finished.by_name, strict=strict, interrupted=finished.interrupted)


def no_worker_is_left() -> bool:
    children = psutil.Process().children(recursive=True)
    return not any("worker_main" in " ".join(child.cmdline()) for child in children if child.is_running())


def test_a_right_backend_passes_and_is_timed(make_plan: MakePlan) -> None:
    finished = run(make_plan(backends=("fake", "ort-cpu")))
    record = finished.record
    assert (record.verdict, status(finished)) == ("pass", 0)
    assert [(cell.backend, cell.case) for cell in record.cells] == [
        ("ort-cpu", "1x3"),
        ("ort-cpu", "2x5"),
        ("fake", "1x3"),
        ("fake", "2x5"),
    ]
    for cell in record.cells:
        assert cell.status == "ok"
        assert cell.outputs[0].verdict == "pass"
        assert cell.latency is not None
        assert cell.latency.processes == 2
        assert cell.latency.first_call_s > 0
        assert cell.peak_rss_bytes is not None
        assert cell.details["repeat"] == "same bits"
    assert {comparison.verdict for comparison in record.comparisons} == {"undecided"}, "two processes name no winner"
    assert {(pair.case, pair.verdict) for pair in record.agreements} == {("1x3", "pass"), ("2x5", "pass")}
    assert no_worker_is_left()


def test_the_record_on_disk_is_the_record(make_plan: MakePlan) -> None:
    finished = run(make_plan())
    assert read_run(finished.folder) == finished.record
    assert (finished.folder / "summary.md").read_text()
    samples = read_samples(finished.folder)
    for index, cell in enumerate(finished.record.cells):
        assert cell.latency is not None
        assert sum(len(samples[index, process]) for process in range(2)) == cell.latency.samples


def test_the_record_names_no_person_machine_or_path(make_plan: MakePlan, linear: Path) -> None:
    finished = run(make_plan(fake={"raises": f"cannot open {linear}/secret.bin"}))
    text = (finished.folder / "run.json").read_text() + (finished.folder / "summary.md").read_text()
    assert "secret.bin" in text
    assert str(linear) not in text
    assert str(Path.home()) not in text
    assert str(finished.folder.parent) not in text


@pytest.mark.parametrize(
    ("times", "verdict", "plain", "strict"), [(3, "pass", 0, 0), (30, "suspect", 0, 1), (300, "fail", 1, 1)]
)
def test_an_error_of_a_chosen_size(make_plan: MakePlan, times: float, verdict: str, plain: int, strict: int) -> None:
    # without PyTorch's own error the limits are 10 and 100
    finished = compare(make_plan(fake={"relative_error": times * 6e-8}))
    assert {cell.outputs[0].verdict for cell in cells(finished)} == {verdict}
    assert finished.record.verdict == verdict
    assert (status(finished), status(finished, strict=True)) == (plain, strict)


def test_a_tolerance_asked_for_rules(make_plan: MakePlan) -> None:
    tolerances = Tolerances(by_output={"y": Tolerance(budget=1e-3)})
    finished = compare(make_plan(fake={"relative_error": 1e-4}, tolerances=tolerances))
    assert {(cell.outputs[0].verdict, cell.outputs[0].rule) for cell in cells(finished)} == {("pass", "user")}


def test_nan_fails_and_is_counted(make_plan: MakePlan) -> None:
    output = cells(compare(make_plan(fake={"nan": True})))[0].outputs[0]
    assert (output.verdict, output.nan, output.expected_nan) == ("fail", 1, 0)


def test_a_missing_output_fails(make_plan: MakePlan) -> None:
    output = cells(compare(make_plan(fake={"drop_output": "y"})))[0].outputs[0]
    assert output.verdict == "fail"
    assert "no output of this name" in output.reason


def test_noise_between_two_runs_is_said(make_plan: MakePlan) -> None:
    finished = compare(make_plan(fake={"noise": 1e-7}))
    assert "nondeterministic" in codes(finished.record.notices)


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ({"ending": "segfault"}, "SIGSEGV"),
        ({"ending": "abort"}, "SIGABRT"),
        ({"ending": "kill"}, "SIGKILL"),
        ({"ending": "exit", "exit_status": 7}, "exited with status 7"),
        ({"ending": "segfault", "at": "open"}, "SIGSEGV"),
        ({"rubbish": "%%% not a message\n"}, "no message"),
        ({"raises": "boom"}, "boom"),
        ({"wrong_placement": True}, "placement"),
    ],
)
def test_trouble_is_one_failed_cell_and_the_rest_goes_on(
    make_plan: MakePlan, fake: dict[str, object], reason: str
) -> None:
    finished = run(make_plan(backends=("fake", "ort-cpu"), fake=fake))
    assert {cell.status for cell in cells(finished)} == {"failed"}
    assert all(reason in cell.reason for cell in cells(finished))
    assert {cell.status for cell in cells(finished, "ort-cpu")} == {"ok"}
    assert all(cell.latency is not None for cell in cells(finished, "ort-cpu"))
    assert (finished.record.verdict, status(finished)) == ("fail", 1)
    assert no_worker_is_left()


def test_a_hanging_backend_is_ended(make_plan: MakePlan) -> None:
    finished = compare(make_plan(fake={"ending": "hang"}, cell_timeout_s=1.0))
    assert all("no answer within 1 s" in cell.reason for cell in cells(finished))
    assert no_worker_is_left()


def test_a_hungry_backend_is_ended(make_plan: MakePlan) -> None:
    plan = make_plan(fake={"eat_bytes": 600_000_000}, memory_limit_bytes=400_000_000)
    finished = compare(plan)
    assert all("over its limit" in cell.reason for cell in cells(finished))


def test_a_backend_that_dies_while_it_is_timed_loses_only_its_own_times(make_plan: MakePlan) -> None:
    finished = run(make_plan(backends=("fake", "ort-cpu"), fake={"ending": "abort", "after_calls": 4}))
    for cell in cells(finished):
        assert cell.status == "failed"
        assert cell.reason.startswith("while timing: ")
        assert cell.outputs[0].verdict == "pass", "its numbers were right, and are kept"
    assert all(cell.latency is not None for cell in cells(finished, "ort-cpu"))
    assert no_worker_is_left()


def test_a_budget_too_short_for_one_call_is_said_and_gives_no_number(make_plan: MakePlan) -> None:
    finished = run(make_plan(fake={"sleep_s": 0.2}, time_budget_s=0.1))
    for cell in cells(finished):
        assert (cell.status, cell.latency) == ("void", None)
        assert cell.reason.startswith("while timing: one call takes 0.2")
        assert "of the time budget of 0.1 s this cell has 0.05 s; give --time-budget 2 or more" in cell.reason
    assert (status(finished), status(finished, strict=True)) == (0, 1)


@pytest.mark.skipif(not CAN_PAUSE, reason="workers can be stopped on Linux only")
def test_a_worker_that_somebody_stops_is_a_failed_cell(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Worker.measure

    def stopped(worker: Worker, settle_s: float, duration_s: float, min_samples: int = 1) -> Measured:
        assert worker.pid is not None
        worker.resume()
        os.kill(worker.pid, signal.SIGSTOP)
        return measure(worker, settle_s, duration_s, min_samples)

    monkeypatch.setattr(Worker, "measure", stopped)
    record = run(make_plan(cell_timeout_s=1.0)).record
    assert [cell.status for cell in record.cells] == ["failed", "failed"]
    assert all("the worker gave no answer within 1 s" in cell.reason for cell in record.cells)
    assert all(cell.latency is None for cell in record.cells)


def test_what_a_backend_does_not_take_is_no_failure_but_no_success_when_named(make_plan: MakePlan) -> None:
    finished = run(make_plan(backends=("fake", "ort-cpu"), fake={"unsupported": "Mul of bfloat16"}))
    assert {(cell.status, cell.reason) for cell in cells(finished)} == {("unsupported", "Mul of bfloat16")}
    assert status(finished) == 2


def test_a_graph_that_failed_fails_the_run(make_plan: MakePlan, write_linear: WriteLinear, tmp_path: Path) -> None:
    write_linear(tmp_path / "bad", graph=GraphVerdict(verdict="fail", rel_l2=0.3, detail="output y"))
    finished = compare(make_plan(source=str(tmp_path / "bad"), backends=("ort-cpu",)))
    assert finished.record.verdict == "fail"


def test_bench_measures_without_judging(make_plan: MakePlan) -> None:
    finished = bench(make_plan())
    assert all(cell.latency is not None and not cell.outputs for cell in cells(finished))


def test_compare_judges_without_measuring(make_plan: MakePlan) -> None:
    finished = compare(make_plan())
    assert all(cell.latency is None and cell.outputs for cell in cells(finished))
    assert not read_samples(finished.folder)


def test_export_runs_no_cell(make_plan: MakePlan) -> None:
    finished = export(make_plan())
    assert not finished.record.cells
    assert [artifact.id for artifact in finished.record.artifacts] == ["linear"]


def test_a_slow_backend_is_slower(make_plan: MakePlan) -> None:
    finished = bench(make_plan(fake={"sleep_s": 0.02}, backends=("fake", "ort-cpu")))
    assert all(pair.ratio != 1.0 for pair in finished.record.comparisons)
    slow, fast = cells(finished)[0].latency, cells(finished, "ort-cpu")[0].latency
    assert slow is not None
    assert fast is not None
    assert slow.median_s > 0.02
    assert slow.median_s > 10 * fast.median_s


def test_memory_that_grows_over_lengths_is_read_and_said(make_plan: MakePlan) -> None:
    finished = bench(make_plan(growth=30, fake={"zeros": True, "leak_bytes": 4_000_000}, backends=("fake", "ort-cpu")))
    assert finished.record.plan.growth_calls == 30
    for cell in cells(finished):
        assert cell.growth is not None
        assert cell.growth.calls == 30
        assert cell.growth.rss_end_bytes - cell.growth.rss_start_bytes > 100_000_000
        assert cell.latency is not None
    assert {cell.growth is not None for cell in cells(finished, "ort-cpu")} == {True}
    (notice,) = [notice for notice in finished.record.notices if notice.code == "memory-growth"][:1]
    assert notice.where.startswith("fake/linear")
    assert "over 30 calls with" in notice.message


def test_growth_that_cannot_be_read_is_said_and_harms_nothing(make_plan: MakePlan) -> None:
    finished = bench(make_plan(growth=30))  # without `zeros`, the fake backend takes no other lengths
    assert all(cell.status == "ok" and cell.growth is None and cell.latency is not None for cell in cells(finished))
    assert "growth-unknown" in codes(finished.record.notices)


def test_growth_needs_calls_enough(make_plan: MakePlan) -> None:
    with pytest.raises(RequestError, match="growth must be 0 or at least 10 calls, got 3"):
        make_plan(growth=3)


def test_every_second_of_a_run_counts_for_one_phase(make_plan: MakePlan) -> None:
    record = run(make_plan(fake={"compile_s": 0.1})).record
    assert record.wall_s is not None
    assert abs(sum(record.phases_s.values()) - record.wall_s) < 1e-6
    assert record.phases_s["compile"] > 0.1 * 2 * 2, "cases times processes, and the visits"
    assert record.phases_s["measure"] + record.phases_s["warm_up"] >= 0.3, "the budget"
    assert record.phases_s["measure"] >= 0.15, "half of it at least"
    for phase in ("visit_start", "visit_session", "workers_start", "workers_session", "warm_up", "judge", "record"):
        assert record.phases_s[phase] > 0.0


def test_compiling_is_told_and_is_no_part_of_a_call(make_plan: MakePlan) -> None:
    finished = run(make_plan(fake={"compile_s": 0.2}))
    for cell in cells(finished):
        assert cell.latency is not None
        assert cell.latency.compile_s is not None
        assert cell.latency.compile_cached_s is not None
        assert min(cell.latency.compile_s, cell.latency.compile_cached_s) >= 0.2
        assert cell.latency.first_call_s < 0.2
        assert cell.details["compile_s"].startswith("0.2")
    assert "Compiling for the case comes before the first call" in (finished.folder / "summary.md").read_text()
    assert all(cell.latency.compile_s is None for cell in cells(run(make_plan())) if cell.latency is not None)


def test_a_changed_artifact_is_refused_and_nothing_is_left(
    make_plan: MakePlan, write_linear: WriteLinear, tmp_path: Path
) -> None:
    artifact = write_linear(tmp_path / "changed")
    with artifact.model_path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(ArtifactError, match=r"model\.onnx was changed"):
        compare(make_plan(source=str(tmp_path / "changed")))
    assert not (tmp_path / "runs").exists()


def test_a_folder_without_artifacts_is_refused(make_plan: MakePlan, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no artifact"):
        compare(make_plan(source=str(tmp_path)))


def test_a_run_goes_in_again(make_plan: MakePlan) -> None:
    first = compare(make_plan())
    again = compare(make_plan(source=str(first.folder)))
    assert again.record.artifacts[0].sha256 == first.record.artifacts[0].sha256
    assert again.record.verdict == "pass"


def test_an_interrupted_run_keeps_what_is_finished(make_plan: MakePlan) -> None:
    class Stop:
        seen = 0

        def __call__(self, step: str, share: float | None = None) -> None:
            self.seen += step == "measuring"
            if self.seen == 4:
                raise KeyboardInterrupt

    finished = run(make_plan(time_budget_s=5.0), Stop())
    assert finished.interrupted
    assert status(finished) == 130
    on_disk = json.loads((finished.folder / "run.json").read_text())
    assert on_disk["finished"] is False
    assert on_disk["cells"][0]["outputs"][0]["verdict"] == "pass"
    assert any(cell["latency"] for cell in on_disk["cells"])
    assert "interrupted" in codes(finished.record.notices)
    assert no_worker_is_left()


def test_more_threads_than_cores_is_said(make_plan: MakePlan) -> None:
    finished = compare(make_plan(threads=512))
    assert "threads-over-cores" in codes(finished.record.notices)
