"""The fault bench in its reduced form; `benchmarks/faults.py` runs all of it, and prints both counts."""

from unittest import mock

import pytest
from tests.faults.bench import Subject, examine
from tests.faults.graph_edits import GRAPH_EDITS
from tests.faults.table import HEALTHY, PLANTED, REDUCED, REDUCED_NAMES, planted

from crosshead.harness import accuracy, pipeline, stress
from crosshead.results import OutputRecord
from crosshead.runtimes._faults import FAULTS

FEWEST = 30
"""Planted faults and healthy cells that there are at least."""


@pytest.mark.parametrize("subject", REDUCED, ids=lambda subject: subject.name)
def test_a_planted_fault_is_caught_and_its_kind_named(subject: Subject) -> None:
    finding = examine(subject)
    assert finding.moved is not False, "the edit changed nothing that is computed"
    assert finding.caught
    assert finding.kinds == (subject.kind,), [cause.message for cause in finding.record.causes]


def test_the_whole_bench_holds_every_fault_there_is() -> None:
    assert {subject.fault for subject in PLANTED} - {""} == set(FAULTS)
    assert {subject.edit.name for subject in PLANTED if subject.edit is not None} == set(GRAPH_EDITS)
    assert len(FAULTS) + len(GRAPH_EDITS) >= FEWEST
    assert sum(len(subject.forms) * len(subject.backends) for subject in HEALTHY) >= FEWEST
    names = [subject.name for subject in (*PLANTED, *HEALTHY)]
    assert len(set(names)) == len(names)


def test_the_reduced_form_has_every_kind() -> None:
    assert [subject.name for subject in REDUCED] == sorted(REDUCED_NAMES, key=[s.name for s in PLANTED].index)
    assert {subject.kind for subject in REDUCED} == {subject.kind for subject in PLANTED}


def _indulgent(name: str, *_: object, **facts: object) -> OutputRecord:
    return OutputRecord(name=name, verdict="pass", rule="exact")


def test_a_bench_without_judges_catches_nothing() -> None:
    """Of a kernel whose every output is wrong, nothing is left to find once neither outputs nor laws are judged."""
    subject = planted("kernel: matmul-last-k bf16")
    with (
        mock.patch.object(accuracy, "judge_output", _indulgent),
        mock.patch.object(stress, "judge_output", _indulgent),
        mock.patch.object(pipeline, "STAGES", {}),
        mock.patch.object(pipeline, "agreements", return_value=[]),
    ):
        finding = examine(subject)
    assert not finding.caught
    assert finding.kinds == ()


def test_a_bench_without_the_check_of_weights_misses_a_last_place() -> None:
    """The weight's last place is found by its bits and by nothing else."""
    from crosshead.export.float64 import parameters

    subject = planted("graph: weight-last-place standard")
    nothing = parameters.ParameterCheck((), ())
    with mock.patch.object(parameters, "check_parameters", return_value=nothing):
        assert not examine(subject).caught


def test_a_bench_with_a_stricter_rule_raises_an_alarm() -> None:
    """A healthy cell is judged by figures, and not waved through."""
    from crosshead.harness import judge

    with mock.patch.object(judge, "PASS_TIMES", 1e-3):
        assert examine(Subject("strict", "feed-forward", backends=("ort-cpu",))).caught
