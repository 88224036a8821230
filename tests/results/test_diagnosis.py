import typing
from typing import Any

import msgspec
import pytest
from rich.console import Console

from crosshead.results import StoreError, diagnosis, fuzz
from crosshead.results.diagnosis import (
    BundleRecord,
    CulpritRecord,
    DiagnosisRecord,
    RungRecord,
    SmallestRecord,
    TensorRecord,
    decode_diagnosis,
    encode_diagnosis,
)
from crosshead.results.diagnosis_text import diagnosis_summary, figures, render_diagnosis
from crosshead.results.fuzz import FindRecord, FuzzRecord, SearchedRecord, decode_fuzz, encode_fuzz
from crosshead.results.fuzz_text import fuzz_summary, render_fuzz

DIAGNOSIS = DiagnosisRecord(
    id="x",
    run="x",
    crosshead="0",
    started="2026-01-01T00:00:00+00:00",
    source="mha",
    subject="output",
    artifact="mha-decomposed",
    backend="ort-cpu",
    case="1x128",
    reason="error is 5,200 times what rounding explains [see /home/somebody/x.py]",
    error=float("inf"),
    ladder=[
        RungRecord(change="graph optimisation off", outcome="gone", error=1.9e-7, times_expected=0.9),
        RungRecord(change="one thread", outcome="not-run", reason="it is not to be had here"),
    ],
    ladder_message="with graph optimisation off the error falls",
    culprit=CulpritRecord(
        node="scores",
        op="ai.onnx::MatMul",
        graph="as exported",
        inputs=[TensorRecord(name="q", dtype="float32", shape=[1, 8, 128, 64])],
        own_error=3.1e-2,
        own_times=5200.0,
        inherited_error=0.0,
        count=9,
        message="MatMul node 'scores' is off",
    ),
    cause="kernel",
    message="kernel: MatMul node 'scores' is off",
    smallest=SmallestRecord(shapes={"query": [1, 1, 64]}, values={"query": "ones"}, error=1e-2, tried=12),
    bundle=BundleRecord(path="bundle", script="onnxruntime", cut=True, reproduces=True, message="the culprit alone"),
)
FUZZ = FuzzRecord(
    id="x",
    run="x",
    crosshead="0",
    started="2026-01-01T00:00:00+00:00",
    source="mha",
    seed=3,
    budget_s=60.0,
    spent_s=59.6,
    draws=200,
    skipped=20,
    searched=[SearchedRecord(artifact="a", backend="ort-cpu", inputs=180, refused=2, worst_times=4.2)],
    finds=[
        FindRecord(artifact="a", backend="ort-cpu", number=17, idea="gain 40", shapes={"query": [2, 9, 64]}, error=1.0)
    ],
    verdict="found",
)


def shown(render: Any, record: Any) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        render(record, console)
    return captured.get()


def test_a_diagnosis_is_read_as_it_was_written() -> None:
    again = decode_diagnosis(encode_diagnosis(DIAGNOSIS))
    assert again.error == float("inf")
    assert again.reason == "error is 5,200 times what rounding explains [see x.py]"
    assert msgspec.structs.replace(again, reason=DIAGNOSIS.reason) == DIAGNOSIS
    assert decode_fuzz(encode_fuzz(FUZZ)) == FUZZ
    with pytest.raises(StoreError, match="no record of a search"):
        decode_fuzz(encode_diagnosis(DIAGNOSIS))


def test_a_diagnosis_says_what_it_found() -> None:
    text = shown(render_diagnosis, DIAGNOSIS)
    assert "graph optimisation off: takes it away: 1.9e-07 (0.9 times expected)" in text
    assert "one thread: not tried: it is not to be had here" in text
    assert "reads q float32[1, 8, 128, 64]" in text
    assert "own error 3.1e-02 (5,200 times expected), inherited 0.0e+00" in text
    assert "query [1, 1, 64], ones" in text
    markdown = diagnosis_summary(DIAGNOSIS)
    assert "somebody" not in markdown
    assert "## Where it arises" in markdown
    assert "\\[see x.py\\]" in markdown


def test_nothing_found_is_one_line() -> None:
    record = DiagnosisRecord(id="x", run="x", crosshead="0", started="", source="mha", message="Nothing wrong.")
    assert shown(render_diagnosis, record) == "Nothing wrong.\n"


def test_a_search_says_what_it_found() -> None:
    text = shown(render_fuzz, FUZZ)
    assert "ort-cpu, a: 180 inputs, 2 refused; at most 4.2 times expected" in text
    assert "ort-cpu, a: 1.0e+00, on draw 17: gain 40" in text
    assert "1 find among 180 inputs in 60 s, seed 3." in text
    assert "## Find 1" in fuzz_summary(FUZZ)
    assert "Nothing was found" in shown(render_fuzz, msgspec.structs.replace(FUZZ, finds=[]))


def test_what_is_not_finite_is_said_in_words() -> None:
    assert figures(float("inf"), None) == "NaN or Inf where numbers belong"
    assert figures(None, 3.0) == "–"
    assert figures(1e-3, 7.25) == "1.0e-03 (7.2 times expected)"


@pytest.mark.parametrize("module", [diagnosis, fuzz])
def test_records_are_frozen_and_times_name_their_unit(module: Any) -> None:
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    dimensionless = {"error", "number", "inputs", "refused", "draws", "skipped", "seed", "tried", "count", "alike"}
    for kind in kinds:
        if kind.__module__ != module.__name__:
            continue
        assert kind.__struct_config__.frozen
        for name, hint in typing.get_type_hints(kind).items():
            if hint in (int, float, float | None):
                assert name in dimensionless or name.endswith(("_s", "_error", "times", "times_expected")), name
