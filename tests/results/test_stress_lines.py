"""The stress set in words: one line for each backend, a reason for each case that is not right."""

from io import StringIO

import msgspec
from rich.console import Console

from crosshead.results import (
    ArtifactRecord,
    CellRecord,
    EnvironmentRecord,
    GraphRecord,
    OutputRecord,
    PaddedRecord,
    PlanRecord,
    RunRecord,
    render_run,
    summary,
)
from crosshead.results._stress_lines import left_out_line, stress_lines
from crosshead.results.records import OutputResult

APART = {"fully masked": PaddedRecord(positions=2, max_abs=1.0, rel_l2=0.5)}


def cell(case: str, backend: str, verdict: OutputResult = "pass", times: float = 1.0, reason: str = "") -> CellRecord:
    output = OutputRecord(name="y", verdict=verdict, rule="yardstick", times_expected=times, reason=reason, apart=APART)
    return CellRecord(artifact="a", backend=backend, case=case, threads=1, status="ok", outputs=[output])


def record(*stress: CellRecord) -> RunRecord:
    artifact = ArtifactRecord(
        id="a",
        path="artifacts/a/model.onnx",
        sha256="0" * 64,
        source="mha",
        exporter="dynamo",
        exporter_version="2",
        opset=18,
        form="decomposed",
        precision="fp32",
        ops={},
        graph=GraphRecord(verdict="pass"),
        stress_left_out={"NaN at masked positions": "the source itself gives NaN"},
    )
    plan = PlanRecord(
        source="mha",
        backends=["b"],
        forms=["decomposed"],
        precisions=[],
        cases=[],
        threads=1,
        processes=1,
        time_budget_s=1.0,
        seed=0,
        timed=False,
    )
    environment = EnvironmentRecord(
        os="Linux", machine="x86_64", kernel="6", cpu_model="cpu", cores=2, memory_bytes=1, python="3"
    )
    return RunRecord(
        id="r",
        crosshead="0",
        started="2026-01-01T00:00:00+00:00",
        finished=True,
        plan=plan,
        environment=environment,
        artifacts=[artifact],
        stress=list(stress),
        verdict="fail",
    )


FAILED = cell("gain 40", "b", "fail", 400.0, "error is 400 times what rounding explains")
REFUSED = CellRecord(artifact="a", backend="b", case="past 0", threads=1, status="unsupported", reason="no empty past")
RECORD = record(
    cell("one token", "b"), cell("length 9", "b", times=1.3), FAILED, REFUSED, cell("one token", "torch-eager")
)


def test_a_line_counts_and_names_the_worst_that_passes() -> None:
    first, second = stress_lines(RECORD)
    assert (first.artifact, first.backend, first.verdict) == ("decomposed 18", "b", "FAIL")
    assert first.sentence == ("2/3 pass, 1 unsupported, worst 1.3× at length 9, rows told apart: fully masked in 3")
    assert first.reasons == (
        "gain 40: fail: error is 400 times what rounding explains",
        "unsupported: no empty past (past 0)",
    )
    assert (second.artifact, second.verdict, second.reasons) == ("module", "pass", ())


def test_what_was_lost_is_told_by_its_status() -> None:
    lost = msgspec.structs.replace(REFUSED, status="failed", reason="SIGSEGV")
    (line,) = stress_lines(record(lost))
    assert (line.verdict, line.counts, line.worst) == ("failed", "0/1 pass", "")
    assert line.reasons == ("past 0: failed: SIGSEGV",)


def test_the_report_shows_the_lines_and_counts_what_is_wrong() -> None:
    console = Console(file=StringIO(), width=160)
    render_run(RECORD, console)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "stress decomposed 18 b: 2/3 pass" in shown
    assert "    gain 40: fail: error is 400 times" in shown
    assert "1 of 5 stress cases FAIL" in shown
    text = summary(RECORD)
    assert "## Stress set" in text
    assert "Left out: NaN at masked positions: the source itself gives NaN." in text
    assert left_out_line(record()) == "NaN at masked positions: the source itself gives NaN"
    assert "Stress set" not in summary(record())
