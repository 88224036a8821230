"""Which kind a failing cell gets, on the tiny artifact and a backend that is wrong on purpose."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from crosshead.export.artifact import Artifact, ArtifactNotice
from crosshead.harness import Plan, compare
from crosshead.harness.cause import find_causes
from crosshead.results import CauseRecord, LawRecord, RunRecord


def causes(plan: Plan) -> list[CauseRecord]:
    return compare(plan).record.causes


def test_nothing_wrong_has_no_cause(make_plan: Callable[..., Plan]) -> None:
    assert causes(make_plan()) == []


def test_an_error_that_is_the_same_every_time_is_the_kernels(make_plan: Callable[..., Plan]) -> None:
    (cause,) = causes(make_plan(fake={"relative_error": 1e-3}))
    assert cause.kind == "kernel"
    assert cause.where == "fake/linear 2x5"
    assert "the graph in float64 is the measure" in cause.message
    assert "no math mode explains it (at best" in cause.message
    assert cause.message.endswith("so it is in case 1x3"), "one cause a backend, and the other cases named"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("tf32", "(TF32)"),
        ("bf16-products", "products formed with factors rounded to bfloat16 explain"),
        ("fp16-accumulation", "sums in float16"),
    ],
)
def test_a_math_mode_is_named_with_what_it_explains(make_plan: Callable[..., Plan], fault: str, told: str) -> None:
    (cause,) = causes(make_plan(fake={"fault": fault}))
    assert cause.kind == "math-mode"
    assert told in cause.message
    assert float(cause.message.split(" explain ")[1].split("%")[0]) > 95
    assert "yardsticks (correlation 1.00); ask this backend for full precision" in cause.message


def test_a_backend_that_differs_from_itself_by_its_error_is_nondeterministic(make_plan: Callable[..., Plan]) -> None:
    (cause,) = causes(make_plan(fake={"noise": 1e-3}))
    assert cause.kind == "nondeterminism"
    assert "two runs on the same inputs in one process differ by rel_l2" in cause.message


def test_nan_that_the_oracle_has_not_is_the_kernels(make_plan: Callable[..., Plan]) -> None:
    (cause,) = causes(make_plan(fake={"nan": True}))
    assert cause.kind == "kernel"
    assert "1 NaN here, 0 in the oracle" in cause.message


def test_a_backend_that_remembers_its_last_call_is_a_kernel_at_fault(make_plan: Callable[..., Plan]) -> None:
    record = compare(make_plan(fake={"fault": "stale-output"})).record
    (cause,) = record.causes
    assert cause.kind == "kernel"
    assert "it breaks call-independence" in cause.message
    assert record.verdict == "fail", "every case passes, and the law does not"
    assert {output.verdict for cell in record.cells for output in cell.outputs} == {"pass"}


def judged(make_plan: Callable[..., Plan], **fields: Any) -> Any:
    """Return the arguments of `find_causes` for a run whose graph verdict or laws are replaced."""
    seen: dict[str, Any] = {}

    def keep(visits: Any, artifacts: Any, record: RunRecord) -> list[CauseRecord]:
        seen.update(visits=visits, artifacts=artifacts, record=record)
        return find_causes(
            visits, _changed(artifacts, fields), msgspec.structs.replace(record, **_given(record, fields))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crosshead.harness.pipeline.find_causes", keep)
        return compare(make_plan(**{name: value for name, value in fields.items() if name in ("fake", "backends")}))


def _given(record: RunRecord, fields: dict[str, Any]) -> dict[str, Any]:
    given = {name: fields[name] for name in ("laws",) if name in fields}
    if "graph" in fields:
        graphs = [msgspec.structs.replace(each, graph=fields["graph"](each.graph)) for each in record.artifacts]
        given["artifacts"] = graphs
    return given


def _changed(artifacts: dict[str, Artifact], fields: dict[str, Any]) -> dict[str, Artifact]:
    if "notices" not in fields:
        return artifacts
    return {
        name: dataclasses.replace(each, manifest=msgspec.structs.replace(each.manifest, notices=fields["notices"]))
        for name, each in artifacts.items()
    }


def test_a_wrong_graph_is_the_cause_and_whoever_runs_it_is_not(make_plan: Callable[..., Plan]) -> None:
    finished = judged(
        make_plan,
        fake={"relative_error": 1e-2},
        graph=lambda graph: msgspec.structs.replace(graph, verdict="fail", detail="W differs; y is off; z is off"),
    )
    (cause,) = finished.record.causes
    assert (cause.where, cause.kind) == ("linear", "graph")
    assert cause.message == "the exported graph is not the module: W differs (and 2 more)"


def test_a_narrowing_cast_explains_errors_of_its_size(make_plan: Callable[..., Plan]) -> None:
    notices = (ArtifactNotice(code="narrowing-cast", message="Cast 'c' narrows float32 to float16"),)
    for error, kind in ((1e-3, "graph"), (0.4, "kernel")):
        finished = judged(make_plan, fake={"relative_error": error}, notices=notices)
        (cause,) = finished.record.causes
        assert cause.kind == kind, error


def test_a_breach_of_a_law_alone_is_the_kernels(make_plan: Callable[..., Plan]) -> None:
    law = LawRecord(law="causality", artifact="linear", backend="fake", verdict="fail", violation=70.0, limit=4.0)
    (cause,) = judged(make_plan, laws=[law]).record.causes
    assert (cause.where, cause.kind) == ("fake/linear", "kernel")
    assert "it breaks causality (70 u, limit 4)" in cause.message


def test_a_spread_alone_is_nondeterminism(make_plan: Callable[..., Plan]) -> None:
    law = LawRecord(law="same-input-twice", artifact="linear", backend="fake", verdict="suspect", limit=4.0, reason="!")
    (cause,) = judged(make_plan, laws=[law]).record.causes
    assert (cause.kind, cause.message) == ("nondeterminism", "!")
