import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from tests.results.strategies import cell, full_run, output, records, run

from crosshead.results import (
    SCHEMA,
    AgreementRecord,
    OutputRecord,
    RunRecord,
    StoreError,
    VersionError,
    WorstElement,
    decode_run,
    encode_run,
    scrub_record,
)


def refuse(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


@settings(max_examples=60, deadline=None)
@given(records(RunRecord))
def test_a_run_comes_back_as_it_went_in_through_strict_json(record: RunRecord) -> None:
    data = encode_run(record)
    json.loads(data, parse_constant=refuse)
    back = decode_run(data)
    assert repr(back) == repr(scrub_record(record))  # repr, since NaN equals nothing
    assert encode_run(back) == data


def test_numbers_that_are_not_finite_stay_apart_from_what_was_not_measured() -> None:
    worst = WorstElement(index=[0, 3], got=math.nan, want=-math.inf)
    record = run(
        cells=[cell(outputs=[output(rel_l2=math.inf, max_abs=None, worst=worst)])],
        agreements=[AgreementRecord(a="x", b="y", case="1x128", error=math.inf, yardsticks=math.inf, verdict="fail")],
    )
    tree = json.loads(encode_run(record), parse_constant=refuse)
    written = tree["cells"][0]["outputs"][0]
    assert written["rel_l2"] == "Infinity"
    assert written["max_abs"] is None
    assert (written["worst"]["got"], written["worst"]["want"]) == ("NaN", "-Infinity")
    assert float(written["rel_l2"]) == math.inf  # what a reader's script does
    back: OutputRecord = decode_run(encode_run(record)).cells[0].outputs[0]
    assert back.rel_l2 == math.inf
    assert back.worst is not None
    assert math.isnan(back.worst.got)


def test_text_that_spells_a_number_stays_text() -> None:
    record = run(cells=[cell(reason="NaN", settings={"mode": "Infinity"})])
    back = decode_run(encode_run(record))
    assert (back.cells[0].reason, back.cells[0].settings) == ("NaN", {"mode": "Infinity"})


def test_bytes_that_no_encoding_knew_are_written_as_question_marks() -> None:
    record = run(cells=[cell(status="failed", stderr_tail="caf\udce9")])  # what `errors="surrogateescape"` leaves
    assert decode_run(encode_run(record)).cells[0].stderr_tail == "caf?"


def test_the_pinned_names_stand_in_the_json() -> None:
    tree = json.loads(encode_run(full_run()))
    assert tree["schema"] == SCHEMA == "crosshead.run/1"
    assert {"environment", "artifacts", "cells", "agreements", "comparisons", "notices", "verdict"} <= set(tree)
    artifact = {"id", "path", "sha256", "exporter", "opset", "form", "precision", "ops", "graph", "notices"}
    assert artifact <= set(tree["artifacts"][0])
    assert {"verdict", "rel_l2", "literal_sensitivity", "parameters_equal"} <= set(tree["artifacts"][0]["graph"])
    one = tree["cells"][0]
    assert {"artifact", "backend", "case", "threads", "status", "reason", "placement", "outputs", "latency"} <= set(one)
    assert {"settings", "peak_rss_bytes"} <= set(one)
    assert {"name", "verdict", "max_abs", "rel_l2", "times_expected"} <= set(one["outputs"][0])
    latency = {"median_s", "p90_s", "ci_low_s", "ci_high_s", "samples", "processes", "first_call_s", "session_s"}
    assert latency <= set(one["latency"])
    assert {"a", "b", "ratio", "ci_low", "ci_high", "verdict"} <= set(tree["comparisons"][0])


def test_nothing_private_is_in_the_json() -> None:
    record = run(cells=[cell(status="failed", reason="no such file: '/home/jane doe/model.onnx'")])
    assert b"jane" not in encode_run(record)


def test_fields_of_a_later_minor_change_are_passed_over() -> None:
    tree = json.loads(encode_run(full_run()))
    tree["cells"][0]["something_new"] = {"a": [1]}
    assert decode_run(json.dumps(tree)) == full_run()


@pytest.mark.parametrize("schema", ["crosshead.run/0", "crosshead.run/2", "crosshead.run/11"])
def test_another_version_is_refused_with_what_to_do(schema: str) -> None:
    tree = json.loads(encode_run(run())) | {"schema": schema, "crosshead": "9.8.7"}
    with pytest.raises(VersionError) as caught:
        decode_run(json.dumps(tree))
    message = str(caught.value)
    assert "\n" not in message
    for part in (schema, SCHEMA, "9.8.7", "run again"):
        assert part in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ('{"schema": "crosshead.run/1", "id":', "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1, 2]", "no record of a run"),
        ('{"schema": "crosshead.artifact/1"}', "no record of a run"),
        ('{"schema": 1}', "no record of a run"),
        ('{"schema": "crosshead.run/1"}', "damaged"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(data: bytes | str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as caught:
        decode_run(data)
    assert "\n" not in str(caught.value)


def test_a_field_of_the_wrong_type_is_named() -> None:
    tree = msgspec.json.decode(encode_run(full_run()))
    tree["cells"][1]["threads"] = "two"
    with pytest.raises(StoreError, match=r"\$\.cells\[1\]\.threads|\$\.cells\[\.\.\.\]\.threads"):
        decode_run(msgspec.json.encode(tree))
