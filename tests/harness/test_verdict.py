"""The verdict of a whole run where nothing, or next to nothing, was there to be judged."""

from typing import Any

import pytest
from tests.results.strategies import artifact, cell, output, plan, run

from crosshead.harness.verdict import exit_status, overall
from crosshead.results import CellRecord, RunRecord

REFUSED: dict[str, Any] = {"status": "unsupported", "reason": "no kernel", "outputs": [], "latency": None}


def of(*cells: CellRecord, timed: bool = False, **fields: Any) -> RunRecord:
    return run(plan=plan(timed=timed), artifacts=[artifact()], cells=list(cells), **fields)


def status(record: RunRecord, *by_name: str, strict: bool = False) -> int:
    return exit_status(record, by_name=by_name, strict=strict, interrupted=False)


@pytest.mark.parametrize("timed", [False, True])
def test_a_run_that_judged_no_output_is_not_passed(timed: bool) -> None:
    record = of(cell(**REFUSED), cell(**REFUSED), timed=timed)
    assert overall(record) == "suspect"
    assert (status(record), status(record, strict=True)) == (0, 1)
    assert overall(of(cell(**REFUSED), cell(outputs=[output()]), timed=timed)) == "pass"


@pytest.mark.parametrize("strict", [False, True])
def test_what_was_asked_by_name_and_not_taken_is_told_by_status_2(strict: bool) -> None:
    record = of(cell(**REFUSED))
    assert status(record, record.cells[0].backend, strict=strict) == 2


def test_a_suspect_output_beside_a_refusal_fails_where_strict() -> None:
    record = of(cell(**REFUSED), cell(outputs=[output(verdict="suspect")]))
    assert status(record, record.cells[0].backend, strict=True) == 1


def test_runs_without_outputs_by_design_pass() -> None:
    assert overall(of(cell(outputs=[]), timed=True)) == "pass"
    assert overall(of()) == "pass"
    assert overall(of(cell(outputs=[]))) == "suspect"
