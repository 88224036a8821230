"""Healthy cells of the fault bench in its reduced form: no alarm on any."""

import pytest
from tests.faults.bench import Subject, examine
from tests.faults.table import HEALTHY_REDUCED


@pytest.mark.parametrize("subject", HEALTHY_REDUCED, ids=lambda subject: subject.name)
def test_a_healthy_cell_raises_no_alarm(subject: Subject) -> None:
    finding = examine(subject)
    assert finding.evidence == ()
    assert finding.kinds == ()
    assert finding.cells == len(subject.backends)  # one form each
    assert all(cell.status == "ok" for cell in finding.record.cells)


def test_there_is_a_healthy_cell_of_every_precision() -> None:
    assert {subject.precision for subject in HEALTHY_REDUCED} == {"fp32", "fp16", "bf16"}
