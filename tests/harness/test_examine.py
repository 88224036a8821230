from collections.abc import Callable, Mapping
from typing import Any

import pytest

from crosshead.harness import Plan, compare, pipeline
from crosshead.harness.examine import Findings, Stage, Subject
from crosshead.results import NoiseRecord, RunRecord


def noise(subject: Subject, repeat: float | None = None) -> Findings:
    record = NoiseRecord(artifact=subject.artifact.id, backend=subject.cell.runtime.name, case="1x3", repeat=repeat)
    return Findings(noise=[record])


@pytest.fixture
def examined(make_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunRecord]:
    """A function that compares under other stages."""

    def run(stages: Mapping[str, Stage], **fields: Any) -> RunRecord:
        monkeypatch.setattr(pipeline, "STAGES", stages)
        return compare(make_plan(**fields)).record

    return run


def test_every_backend_that_ran_is_asked_once_with_all_its_cases(examined: Callable[..., RunRecord]) -> None:
    asked: list[tuple[str, list[str]]] = []

    def stage(subject: Subject) -> Findings:
        assert subject.scratch.is_dir(), "a folder of its own"
        outputs = subject.runner.outputs(subject.artifact.inputs("2x5"))
        asked.append((subject.cell.label, [visited.cell.case for visited in subject.visits]))
        return noise(subject, repeat=float(outputs["y"].shape[0]))

    record = examined({"noise": stage}, backends=("fake", "onnx-reference"))
    assert asked == [("onnx-reference/linear", ["1x3", "2x5"]), ("fake/linear", ["1x3", "2x5"])]
    assert [(each.backend, each.repeat) for each in record.noise] == [("onnx-reference", 2.0), ("fake", 2.0)]
    assert record.phases_s["noise"] > 0.0


def test_a_cell_that_did_not_run_is_not_asked(examined: Callable[..., RunRecord]) -> None:
    record = examined({"noise": noise}, fake={"raises": "broken"})
    assert [cell.status for cell in record.cells] == ["failed", "failed"]
    assert record.noise == []


def test_a_worker_lost_in_one_stage_is_there_again_for_the_next(examined: Callable[..., RunRecord]) -> None:
    def asks_thrice(subject: Subject) -> Findings:
        for _ in range(3):
            subject.runner.outputs(subject.artifact.inputs("1x3"))
        return noise(subject)

    def asks_once(subject: Subject) -> Findings:
        subject.runner.outputs(subject.artifact.inputs("1x3"))
        return noise(subject, repeat=0.0)

    record = examined({"laws": asks_thrice, "noise": asks_once}, fake={"ending": "segfault", "after_calls": 2})
    assert [cell.status for cell in record.cells] == ["ok", "ok"]
    (lost,) = (notice for notice in record.notices if notice.code == "not-examined")
    assert lost.where == "fake/linear"
    assert lost.message.startswith("laws could not be asked to the end: ")
    assert "SIGSEGV" in lost.message
    assert [each.repeat for each in record.noise] == [0.0], "the next stage goes on with another worker"


def test_what_was_found_stays_when_a_person_stops_the_run(examined: Callable[..., RunRecord]) -> None:
    def stopped(subject: Subject) -> Findings:
        raise KeyboardInterrupt

    record = examined({"laws": noise, "noise": stopped})
    assert not record.finished
    assert len(record.noise) == 1
    assert "interrupted" in [notice.code for notice in record.notices]
