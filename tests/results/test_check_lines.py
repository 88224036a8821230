import io
import re

from rich.console import Console
from tests.results.strategies import artifact, cell, run

from crosshead.results import (
    AgreementRecord,
    CauseRecord,
    LawRecord,
    NoiseRecord,
    RunRecord,
    render_run,
    summary,
)
from crosshead.results._check_lines import check_lines, matrices

ARTIFACT = "mha-standard-23-fp32"


def law(
    name: str, violation: float | None = 0.0, verdict: str = "pass", reason: str = "", limit: float = 10.0
) -> LawRecord:
    return LawRecord(
        law=name,
        artifact=ARTIFACT,
        backend="ort-cpu",
        verdict=verdict,  # type: ignore[arg-type]  # one of its words
        violation=violation,
        limit=limit,
        reason=reason,
    )


def noise(**fields: float) -> NoiseRecord:
    return NoiseRecord(artifact=ARTIFACT, backend="ort-cpu", case="1x128", **fields)  # type: ignore[arg-type]


def agreement(a: str, b: str, yardsticks: float, verdict: str = "pass", case: str = "1x128") -> AgreementRecord:
    return AgreementRecord(
        a=f"{a}/{ARTIFACT}",
        b=f"{b}/{ARTIFACT}",
        case=case,
        error=4e-7 * yardsticks,
        yardsticks=yardsticks,
        noise=1e-9,
        verdict=verdict,  # type: ignore[arg-type]  # one of its words
    )


def shown(record: RunRecord, width: int = 150) -> str:
    stream = io.StringIO()
    render_run(record, Console(file=stream, width=width))
    return " ".join(stream.getvalue().split())


BACKENDS = ("torch-eager", "ort-cpu", "fake")


def compared(*agreements: AgreementRecord, **fields: object) -> RunRecord:
    cells = [cell(name, ARTIFACT) for name in BACKENDS]
    return run(artifacts=[artifact()], cells=cells, agreements=list(agreements), **fields)


def test_laws_and_noise_that_are_as_they_should_be_take_one_line() -> None:
    laws = [
        law("causality", limit=4.0),
        law("token-permutation", 4.5),
        law("convexity", None, reason="does not apply: so"),
    ]
    record = compared(laws=laws, noise=[noise(repeat=0.0, other_batch=2e-7, other_threads=0.0)])
    (line,) = check_lines(record)
    assert line.verdict == "pass"
    assert line.reasons == (), "that a law does not apply is in the record, not in the report"
    assert line.sentence == (
        "2 laws hold, nearest token-permutation at 4.50 u of 10; "
        "against itself same bits (repeated, other threads), other batch rel_l2 2.0e-07"
    )
    assert f"laws standard 23 ort-cpu: {line.sentence}" in shown(record)


def test_laws_that_hold_bit_for_bit_say_so() -> None:
    (line,) = check_lines(compared(laws=[law("causality"), law("same-input-twice")]))
    assert line.sentence == "2 laws hold, bit for bit"


def test_each_breach_is_spelled_out_and_counted() -> None:
    laws = [
        law("causality", 7e4, "fail", "outputs do not move when later tokens do: output 'y' breaks that"),
        law("key-permutation", 12.0, "suspect", "2 yardsticks"),
        law("batch-independence", None, reason="not asked: no worker"),
        law("padding-isolation"),
    ]
    record = compared(laws=laws, verdict="fail")
    (line,) = check_lines(record)
    assert line.verdict == "FAIL"
    assert line.laws == "1 of 3 laws hold, bit for bit"
    assert line.reasons == (
        "causality: fail: outputs do not move when later tokens do: output 'y' breaks that",
        "key-permutation: suspect: 2 yardsticks",
        "batch-independence: not asked: no worker",
    )
    for text in (shown(record), summary(record)):
        assert "causality: fail: outputs do not move when later tokens do" in text
        assert "1 laws suspect, 1 laws FAIL" in text


def test_the_matrix_holds_every_pair_once_in_each_half() -> None:
    record = compared(
        agreement("torch-eager", "ort-cpu", 0.5),
        agreement("torch-eager", "fake", 4e4, "fail"),
        agreement("ort-cpu", "fake", 3e4, "fail"),
        verdict="fail",
    )
    (matrix,) = matrices(record)
    assert matrix.names == ("torch-eager", "ort-cpu standard 23", "fake standard 23")
    assert matrix.fields == (
        ("–", "0.5×", "40000× DIFFER"),
        ("0.5×", "–", "30000× DIFFER"),
        ("40000× DIFFER", "30000× DIFFER", "–"),
    )
    assert matrix.verdict == "fail"
    text = shown(record)
    assert "agreement 1x128: 1 of 3 pairs agree, furthest apart torch-eager and fake standard 23: 40000×" in text
    assert "3 fake standard 23 40000× DIFFER 30000× DIFFER –" in text, "where a pair differs the matrix is shown"
    assert "2 of 3 pairs of backends DIFFER" in text
    assert "| fake standard 23 | 40000× DIFFER | 30000× DIFFER | – |" in summary(record)


def test_pairs_that_all_agree_take_one_line_in_the_terminal_and_a_table_in_the_summary() -> None:
    record = compared(agreement("torch-eager", "ort-cpu", 0.5), agreement("torch-eager", "fake", 0.25))
    assert "agreement 1x128: 2 of 2 pairs agree" in shown(record)
    assert not re.search(r"1 torch-eager", shown(record))
    assert "| torch-eager | – | 0.5× | 0.2× |" in summary(record)


def test_causes_name_kind_and_place() -> None:
    cause = CauseRecord(where="fake/x 1x128", kind="math-mode", message="factors rounded to bfloat16 explain 100 %")
    record = compared(causes=[cause])
    assert "cause math-mode (fake/x 1x128): factors rounded to bfloat16 explain 100 %" in shown(record)
    assert "## Causes\n\n- **math-mode**, fake/x 1x128: factors rounded to bfloat16 explain 100 %" in summary(record)


def test_a_run_without_any_of_it_has_none_of_the_sections() -> None:
    text = summary(run(artifacts=[artifact()], cells=[cell()]))
    assert not {"## Agreement", "## Laws", "## Causes"} & {line.split(",")[0] for line in text.splitlines()}
