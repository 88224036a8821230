import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.results.strategies import cell

from crosshead.results import ComparisonRecord, RunRecord, records

UNITS = ("_s", "_bytes", "_mhz", "_db", "_log10", "_share")

# Counts, ratios and errors relative to something: no unit to name.
DIMENSIONLESS = {
    "AgreementRecord": {"error", "yardsticks", "noise"},
    "ArtifactRecord": {"opset", "ops"},
    "CellRecord": {"threads", "settings"},
    "ComparisonRecord": {"ratio", "ci_low", "ci_high"},
    "EnvironmentRecord": {"cores", "physical_cores", "cpu_quota", "load_1m"},
    "GivenRecord": {"rel_l2", "yardsticks"},
    "GpuRecord": {"other_processes"},
    "GraphRecord": {"rel_l2", "literal_sensitivity"},
    "GrowthRecord": {"calls", "shapes"},
    "HistogramRecord": {"counts", "zeros"},
    "LatencyRecord": {"missing_samples", "samples", "calls_per_sample", "processes"},
    "LawRecord": {"violation", "limit", "cases"},  # the unit stands beside them
    "NoiseRecord": {"repeat", "other_batch", "other_threads"},
    "OutputRecord": {
        "shape",
        "max_abs",  # in the unit of the output itself
        "max_rel",
        "rel_l2",
        "rel_l2_row",
        "times_expected",
        "yardstick",
        "yardstick_row",
        "times_native",
        "cosine_distance",
        "nan",
        "expected_nan",
        "inf",
        "expected_inf",
        "argmax_agreement",
    },
    "PaddedRecord": {"positions", "max_abs", "rel_l2", "nonfinite"},
    "PeakRecord": {"threads"},
    "PlanRecord": {"growth_calls", "options", "opsets", "threads", "processes", "seed"},
    "ProviderRecord": {"nodes"},
    "SurroundingsRecord": {
        "turns",
        "others_cores",
        "switches",
        "temperature_c",
        "throttles",
        "gpu_throttled_turns",
        "gpu_shared_turns",
    },
    "UlpRecord": {"median", "p99", "max"},  # units in the last place, as the record's name says
    "WorstElement": {"index", "got", "want"},
}

RECORDS = [kind for kind in vars(records).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def parts(kind: Any) -> Iterator[Any]:
    yield kind
    for argument in typing.get_args(kind):
        yield from parts(argument)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_number_says_its_unit_or_has_none(record: type[msgspec.Struct]) -> None:
    numeric = {
        name
        for name, kind in typing.get_type_hints(record).items()
        if {int, float} & set(parts(kind)) and kind is not bool
    }
    without = {name for name in numeric if not name.endswith(UNITS)}
    assert without == DIMENSIONLESS.get(record.__name__, set())


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_records_are_frozen_and_made_by_name(record: type[msgspec.Struct]) -> None:
    assert record.__struct_config__.frozen
    with pytest.raises(TypeError, match="positional"):
        record(1)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_is_part_of_a_run(record: type[msgspec.Struct]) -> None:
    reached: set[Any] = set()
    todo: list[Any] = [RunRecord]
    while todo:
        kind = todo.pop()
        if kind not in reached:
            reached.add(kind)
            hints = typing.get_type_hints(kind).values()
            todo += [p for hint in hints for p in parts(hint) if isinstance(p, type) and issubclass(p, msgspec.Struct)]
    assert record in reached


def test_a_cell_is_named_by_backend_and_artifact() -> None:
    one = cell("ort-cpu", "mha-standard-23-fp32")
    assert one.label == "ort-cpu/mha-standard-23-fp32"
    comparison = ComparisonRecord(a=one.label, b="torch-eager/x", case=one.case, ratio=1.0, verdict="same")
    assert comparison.a == one.label
