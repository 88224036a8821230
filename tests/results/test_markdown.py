from hypothesis import given, settings
from tests.results.strategies import artifact, cell, full_run, latency, output, records, run

from crosshead.results import CellRecord, Notice, RunRecord, summary


def table(text: str, head: str) -> list[list[str]]:
    """Cells of the table under a heading, without its two head lines."""
    lines = text.split(f"## {head}")[1].split("\n\n")[1].splitlines()
    return [[part.strip() for part in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_verdict_comes_first() -> None:
    title, verdict, *_ = summary(full_run()).split("\n\n")
    assert title == "# mha"
    assert verdict.startswith("Verdict: FAIL. 2 of 3 cells")
    assert verdict.endswith(
        "Fastest that passes: 1x128 ort-cpu with standard 23, 1.42 ms (0.784 of torch-eager, faster)."
    )


def test_a_run_that_compared_nothing_says_so() -> None:
    refused = cell(status="unsupported", reason="no kernel", outputs=[], latency=None)
    text = summary(run(cells=[refused, refused], verdict="suspect"))
    assert "Verdict: suspect. Nothing was compared, 2 unsupported." in text
    assert "Nothing was compared" not in summary(run(cells=[cell(outputs=[])]))
    assert "Nothing was compared" not in summary(run(cells=[]))


def test_every_cell_is_a_row_with_units() -> None:
    rows = table(summary(full_run()), "Cells")
    assert len(rows) == 6
    assert rows[1] == [
        "1x128", "standard 23", "ort-cpu", "pass", "0.9×", "4.1e-07", "3.8e-07", "1.2e-06", "1.42 ms ±1.3 %", "1.56 ms",
        "needs 359 more", "0.784 faster", "9.10 ms", "250 ms",
    ]  # fmt: skip
    assert rows[2][3] == "**FAIL**"
    assert rows[3][3:] == ["failed", *["–"] * 10]


def test_reasons_stand_below_the_table() -> None:
    text = summary(full_run())
    assert "- 1x128, standard 23, fake: killed by signal 11 (SIGSEGV)" in text
    assert r"- 1x128, standard 23, openvino: no kernel for Attention \[fp16\]" in text
    assert "- 1x128, standard 23, onnx-reference: NaN where the oracle has none" in text


def test_graphs_show_their_verdict_and_what_they_are_made_of() -> None:
    first, _ = table(summary(full_run()), "Graphs, in float64")
    assert first == [
        "standard 23",
        "`mha-standard-23-fp32`",
        "pass, rel_l2 1.1e-16 in float64, literal sensitivity 0, parameters equal",
        "1 Attention, 4 MatMul, 9 in all",
    ]


def test_text_cannot_break_a_table_or_name_anybody() -> None:
    reason = "a|b <script> [x](y)\nnext '/home/jane/secret/model.onnx'"
    text = summary(
        run(cells=[cell(outputs=[output(verdict="fail", reason=reason)])], notices=[Notice(code="c", message=reason)])
    )
    assert r"a\|b \<script\> \[x\](y) next 'model.onnx'" in text
    assert "jane" not in text
    (row,) = table(text, "Cells")
    assert len(row) == 8, "columns of latency and memory are left out where no cell has any"


def test_notices_are_a_list_with_codes() -> None:
    notice = Notice(code="trend", message="calls got 4 % slower", where="ort-cpu/x")
    text = summary(run(artifacts=[artifact(notices=[notice])], notices=[notice]))
    assert text.endswith("## Notices\n\n- `trend`: calls got 4 % slower (ort-cpu/x)\n")


def test_a_run_without_anything_yet_has_a_summary() -> None:
    text = summary(run(finished=False, verdict=None))
    assert "Unfinished: the run was interrupted." in text
    assert "## Cells" not in text


def test_latencies_say_what_the_interval_is() -> None:
    assert "± is the 95 % interval of the median over processes." in summary(run(cells=[cell(latency=latency())]))


@settings(max_examples=30, deadline=None)
@given(records(CellRecord))
def test_every_row_has_every_column_whatever_is_in_it(one: CellRecord) -> None:
    record: RunRecord = run(cells=[one])
    lines = summary(record).split("## Cells")[1].split("\n\n")[1].splitlines()
    unescaped = [line.replace("\\\\", "").replace(r"\|", "") for line in lines]
    (count,) = {line.count("|") for line in unescaped}
    assert 5 <= count <= 16
