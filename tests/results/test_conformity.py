import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from rich.console import Console
from tests.results.strategies import environment, records, run

from crosshead.results import (
    CONFORM_SCHEMA,
    ConformBackend,
    ConformCase,
    ConformRecord,
    ConformResult,
    ConformRule,
    ConformStore,
    DisagreementRecord,
    FeatureRecord,
    KnownRecord,
    Notice,
    StoreError,
    VersionError,
    WorstElement,
    conformity_summary,
    decode_conformity,
    encode_conformity,
    encode_run,
    render_conformity,
    scrub_record,
)
from crosshead.results._conformity_rows import Tally, feature_rows

ATTENTION = "ai.onnx::Attention"
WORST = WorstElement(index=[0, 1], got=2.5, want=0.5)


def case(name: str, *results: ConformResult, **features: Any) -> ConformCase:
    known = {"op": ATTENTION, "opset": 23, "dtype": "float32", "layout": "4-D", **features}
    return ConformCase(name=name, features=FeatureRecord(**known), results=list(results))


def record(**fields: Any) -> ConformRecord:
    """Two backends: `one` is right everywhere, `two` is known to be off, off in a new way, and takes no bf16."""
    right = ConformResult(backend="one", status="pass", output="y", times_tolerance=0.1)

    def two(status: Any, **more: Any) -> ConformResult:
        return ConformResult(backend="two", status=status, **more)

    known: dict[str, Any] = {
        "id": "2026-12-01T05-19-31-conform",
        "crosshead": "0.1.0",
        "started": "2026-12-01T05:19:31+00:00",
        "standard": "onnx 1.23.2",
        "match": "attention",
        "threads": 2,
        "rule": ConformRule(sentence="an element is right when it is near"),
        "environment": environment(),
        "backends": [
            ConformBackend(name="one", version="1.0", passed=4),
            ConformBackend(name="two", version="2.0", passed=1, wrong=2, unsupported=1, known=1),
        ],
        "cases": [
            case("test_plain", right, two("pass")),
            case("test_known", right, two("wrong", known="off-by", reason="2 off", worst=WORST), causal=True),
            case("test_new", right, two("wrong", reason="3 of 4 are off", worst=WORST, rel_l2=0.5), mask="bool"),
            case("test_bf16", right, two("unsupported", reason="no kernel for Add"), dtype="bfloat16"),
        ],
        "disagreements": [
            DisagreementRecord(case="test_known", a="one", b="two", supported="one", known="off-by"),
            DisagreementRecord(case="test_new", a="one", b="two", supported="one"),
        ],
        "known": [
            KnownRecord(
                id="off-by",
                backend="two",
                since="2.0",
                message="it is off by one",
                source="a test",
                seen=["test_known"],
            )
        ],
        "notices": [Notice(code="backend-missing", message="left out: not here", where="three")],
        "finished": True,
        "verdict": "fail",
    }
    return ConformRecord(**known | fields)


def shown(given: ConformRecord, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        render_conformity(given, console)
    return " ".join(captured.get().split())


@settings(max_examples=30, deadline=None)
@given(records(ConformRecord))
def test_a_record_comes_back_as_it_went_in(given: ConformRecord) -> None:
    given = ConformRecord(
        **{name: getattr(given, name) for name in given.__struct_fields__} | {"schema": CONFORM_SCHEMA}
    )
    data = encode_conformity(given)
    back = decode_conformity(data)
    assert repr(back) == repr(scrub_record(given))  # repr, since NaN equals nothing
    assert encode_conformity(back) == data
    assert conformity_summary(given).startswith("# ")
    assert shown(given)


def test_another_record_or_version_is_refused() -> None:
    with pytest.raises(StoreError, match="no record of conformity"):
        decode_conformity(encode_run(run()))
    tree = json.loads(encode_conformity(record())) | {"schema": "crosshead.conform/2"}
    with pytest.raises(VersionError, match=r"crosshead\.conform/2"):
        decode_conformity(json.dumps(tree))


def test_paths_do_not_leave() -> None:
    crashed = ConformResult(
        backend="two", status="failed", reason="at /home/jane/x.onnx", stderr_tail="/home/jane/y.py"
    )
    data = encode_conformity(record(cases=[case("test_plain", crashed)]))
    assert b"jane" not in data
    assert b"x.onnx" in data


def test_the_store_writes_the_record_under_the_folders_name_and_the_summary(tmp_path: Path) -> None:
    for name in ("now-conform", "now-conform-2"):
        store = ConformStore.create(tmp_path, "now-conform")
        written = store.update(record())
        store.write_summary("# all")
        assert written.id == store.path.name == name
        assert decode_conformity((store.path / "conform.json").read_bytes()) == written
        assert (store.path / "summary.md").read_text() == "# all"
    with pytest.raises(StoreError, match="a file is in the way"):
        ConformStore.create(tmp_path / "now-conform" / "summary.md", "again")


def test_cases_are_counted_by_feature_and_backend_known_ones_apart() -> None:
    rows = {(row.group, row.value): row for row in feature_rows(record())}
    assert rows["operator", "Attention"].cases == 4
    assert rows["operator", "Attention"].tallies["one"] == Tally(passed=4)
    assert rows["operator", "Attention"].tallies["two"] == Tally(passed=1, wrong=1, known=1, unsupported=1)
    assert rows["with", "causal"].tallies["two"] == Tally(known=1)
    assert rows["mask", "bool, rank 0"].tallies["two"] == Tally(wrong=1)
    assert rows["dtype", "bfloat16"].tallies["two"].short() == "1u"
    assert ("mask repeated along", "keys") not in rows


def test_another_operator_has_no_mask_or_heads_to_count() -> None:
    plain = case("test_softmax", op="ai.onnx::Softmax", layout="")
    assert {row.group for row in feature_rows(record(cases=[plain]))} == {"operator", "form", "opset", "dtype"}
    preview = case("test_flex", op="ai.onnx.preview::FlexAttention")
    assert feature_rows(record(cases=[preview]))[0].value == "FlexAttention (preview)"


@pytest.mark.parametrize("text", [conformity_summary(record()), shown(record()), shown(record(), width=60)])
def test_what_is_new_stands_out_from_what_is_known(text: str) -> None:
    text = " ".join(text.split())
    assert "two, test_new: wrong: 3 of 4 are off; worst at" in text
    assert "2.50, expected 0.500; rel_l2 5.0e-01" in text
    assert "two, test_known: wrong" not in text
    assert "two, 1 case (test_known): it is off by one" in text
    assert "one and two disagree on 1 case (test_new): the standard supports one" in text
    assert "two, 1 case (test_bf16): no kernel for Add (bfloat16)" in text
    assert "1 result is off in a way that is not known" in text
    assert "one 1.0: 4 pass; two 2.0: 1 pass, 2 wrong (1 known), 1 unsupported" in text


def test_the_sentences_of_other_verdicts() -> None:
    known = ConformBackend(name="two", version="2.0", passed=1, wrong=1, known=1)
    assert "1 known deviation, nothing new" in shown(record(verdict="suspect", backends=[known]))
    nothing = ConformBackend(name="two", version="2.0", unsupported=3)
    assert "no backend took any of these cases" in shown(record(verdict="suspect", backends=[nothing]))
    assert "Stopped before the end, after 8 results" in shown(record(verdict=None))
    assert "gives what the standard expects" in shown(record(verdict="pass"))


def test_a_deviation_that_is_gone_and_two_that_are_both_wrong() -> None:
    gone = KnownRecord(id="x", backend="two", since="2.0", message="it was off", source="a test", gone=["test_a"])
    text = shown(record(known=[gone], disagreements=[DisagreementRecord(case="test_a", a="one", b="two")]))
    assert "two, no longer seen in 1 case (test_a): it was off" in text
    assert "disagree on 1 case (test_a): the standard supports neither" in text


def test_the_terminal_stops_after_a_dozen_and_markdown_does_not() -> None:
    many = [case(f"test_{i}", ConformResult(backend="two", status="failed", reason=f"crash {i}")) for i in range(30)]
    assert "18 more, in summary.md" in shown(record(cases=many))
    assert "crash 29" not in shown(record(cases=many))
    assert "crash 29" in conformity_summary(record(cases=many))
