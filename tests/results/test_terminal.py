import io
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.results.strategies import artifact, cell, full_run, latency, output, plan, records, run

from crosshead.results import (
    CellRecord,
    ComparisonRecord,
    GraphRecord,
    GrowthRecord,
    Notice,
    RunRecord,
    render_backends,
    render_run,
    summary,
)

WIDE, NARROW = 150, 80


def shown(record: RunRecord, width: int = WIDE, **console: object) -> str:
    stream = io.StringIO()
    render_run(record, Console(file=stream, width=width, **console))  # type: ignore[arg-type]  # any of its options
    return stream.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def line_of(text: str, *parts: str) -> str:
    (line,) = [line for line in text.splitlines() if all(part in line for part in parts)]
    return words(line)


def test_a_wide_terminal_has_one_line_a_cell_with_every_figure() -> None:
    text = shown(full_run())
    heads = "case artifact backend verdict × yardstick rel_l2 max_abs median ± p90 p99 ratio first call load"
    assert words(line_of(text, "case", "rel_l2", "median")) == heads
    assert line_of(text, "module") == (
        "1x128 module torch-eager pass 0.9× 4.1e-07 3.8e-07 1.2e-06 1.81 ms ±1.3 % 1.99 ms needs 359 more 1 baseline "
        "9.10 ms 250 ms"
    )
    assert line_of(text, "standard 23 ", "ort-cpu ", "pass") == (
        "1x128 standard 23 ort-cpu pass 0.9× 4.1e-07 3.8e-07 1.2e-06 1.42 ms ±1.3 % 1.56 ms needs 359 more 0.784 "
        "faster 9.10 ms 250 ms"
    )


def test_peak_memory_is_shown_where_there_is_room() -> None:
    record = run(artifacts=[artifact()], cells=[cell(latency=latency(), peak_rss_bytes=261_400_000)])
    assert line_of(shown(record), "standard 23 ", "ort-cpu ", "pass").endswith("250 ms 261 MB")
    assert "peak memory" not in shown(record, 110)
    assert "261 MB" in summary(record)


def test_growth_and_compiling_are_told_under_the_table() -> None:
    growth = GrowthRecord(
        calls=150,
        shapes=50,
        rss_start_bytes=83_000_000,
        rss_end_bytes=146_500_000,
        new_shape_call_s=0.02,
        repeat_call_s=0.01,
    )
    compiled = latency(compile_s=17.3, compile_cached_s=1.9)
    cells = [cell(latency=latency(), growth=growth), cell("torch-compile", latency=compiled)]
    text = words(shown(run(artifacts=[artifact()], cells=cells)))
    assert (
        "What a process keeps more after 150 calls with varying lengths, and what the first call of a length costs "
        "against its later ones: 1x128 standard 23 ort-cpu +64 MB, 2.00 times."
    ) in text
    assert "no part of it: torch-compile 1x128 17.3 s (again, from the run's cache: 1.90 s)." in text


def test_a_cell_without_figures_says_why_in_its_row() -> None:
    text = shown(full_run())
    assert line_of(text, "SIGSEGV") == "1x128 standard 23 fake failed killed by signal 11 (SIGSEGV)"
    assert line_of(text, "openvino") == "1x128 standard 23 openvino unsupported no kernel for Attention [fp16]"
    assert line_of(text, "disturbed") == "1x128 decomposed 18 ort-cpu void the machine was disturbed"
    assert "9.99" not in text, "the time of a void cell means nothing"


def test_a_failing_output_says_why_under_its_row() -> None:
    lines = shown(full_run()).splitlines()
    (row,) = [i for i, line in enumerate(lines) if "onnx-reference" in line]
    assert "FAIL" in lines[row]
    assert "4e+05×" in lines[row]
    assert " inf " in lines[row]
    assert lines[row + 1].strip() == "NaN where the oracle has none"


def test_a_narrow_terminal_shows_the_same_figures_and_fits() -> None:
    text = shown(full_run(), NARROW)
    assert max(map(len, text.splitlines())) <= NARROW
    for figure in (
        "0.9×",
        "3.8e-07",
        "1.2e-06",
        "1.42 ms",
        "±1.3 %",
        "1.56 ms",
        "needs 359 more",
        "0.784",
        "faster",
        "250 ms",
    ):
        assert figure in text
    for reason in ("killed by signal 11 (SIGSEGV)", "no kernel for Attention [fp16]", "the machine was disturbed"):
        assert reason in words(text)
    lines = [words(line) for line in text.splitlines()]
    assert "standard 23 pass 3.8e-07 1.42 ms 1.56 ms 0.784 9.10 ms" in lines
    assert "ort-cpu 0.9× 1.2e-06 ±1.3 % needs 359 more faster 250 ms" in lines
    assert any(line.startswith("─ 1x128 ─") for line in lines)


def test_a_comparison_without_times_shows_no_columns_for_them() -> None:
    for width in (WIDE, NARROW):
        text = words(shown(run(artifacts=[artifact()], cells=[cell()]), width))
        assert "yardstick" in text
        assert "4.1e-07" in text
        assert "median" not in text
        assert "first call" not in text


def test_the_head_says_what_and_where_and_the_graphs_follow() -> None:
    graph = GraphRecord(verdict="fail", rel_l2=0.03, parameters_equal=False, detail="weight q_proj")
    record = run(
        plan=plan(source="gqa", options={"num_heads": 16}, threads=1, processes=1),
        artifacts=[artifact(), artifact("decomposed", 18, graph)],
    )
    text = shown(record)
    assert (
        line_of(text, "gqa")
        == "crosshead 0.1.0 · gqa (num_heads=16) · 1 thread · 1 process a cell · 2026-11-30T20:15:03+00:00"
    )
    assert "Some Processor 9000 · 2 cores · Linux x86_64 · Python 3.11.7 · onnxruntime 1.32.0 · torch 2.13.0" in text
    assert line_of(text, "graph standard 23") == (
        "graph standard 23: pass, rel_l2 1.1e-16 in float64, literal sensitivity 0, parameters equal"
    )
    assert line_of(text, "graph decomposed 18") == (
        "graph decomposed 18: FAIL, rel_l2 3.0e-02 in float64, parameters DIFFER, weight q_proj"
    )
    assert "1 of 2 graphs FAIL" in text


def test_artifacts_of_one_form_and_opset_are_told_apart() -> None:
    same = [artifact("given", 17, id="old"), artifact("given", 17, id="new")]
    text = shown(run(artifacts=same, cells=[cell(artifact="old"), cell(artifact="new")]))
    assert "graph old:" in text
    assert line_of(text, "1x128", "new ")
    precisions = [artifact(id="a"), artifact(id="b", precision="fp16")]
    text = shown(run(artifacts=precisions))
    assert "graph standard 23 fp32:" in text
    assert "graph standard 23 fp16:" in text
    modules = [cell(backend="torch-eager", artifact=each.id) for each in precisions]
    text = shown(run(artifacts=precisions, cells=modules))
    assert line_of(text, "1x128", "module fp32")
    assert line_of(text, "1x128", "module fp16")


def test_the_last_sentence_names_the_fastest_that_passes_in_each_case() -> None:
    text = words(shown(full_run()).split("Verdict: ")[1])
    assert text == (
        "FAIL. 2 of 3 cells compute the same function as the float64 oracle, 1 FAIL, 1 failed, 1 unsupported, 1 void. "
        "Fastest that passes: 1x128 ort-cpu with standard 23, 1.42 ms (0.784 of torch-eager, faster)."
    )


def test_a_cell_that_fails_is_never_the_fastest() -> None:
    wrong = cell("ort-cpu", outputs=[output(verdict="fail")], latency=latency(1e-4))
    right = cell("torch-eager", latency=latency(1e-3))
    assert "Fastest that passes: 1x128 torch-eager, 1" in words(shown(run(cells=[wrong, right])))


def test_a_cell_on_a_failing_graph_is_not_either() -> None:
    bad = artifact(graph=GraphRecord(verdict="fail", rel_l2=0.1))
    cells = [cell("ort-cpu", latency=latency(1e-4)), cell("torch-eager", latency=latency(1e-3))]
    assert "Fastest that passes: 1x128 torch-eager, 1" in words(shown(run(artifacts=[bad], cells=cells)))


def test_a_winner_by_chance_is_not_called_one() -> None:
    a, b = cell("ort-cpu", latency=latency(1e-3)), cell("openvino", latency=latency(1.01e-3))
    tie = ComparisonRecord(
        a=b.label, b=a.label, case="1x128", ratio=1.01, ci_low=0.98, ci_high=1.04, verdict="undecided"
    )
    assert "ort-cpu with mha-standard-23-fp32, 1.00 ms, not told apart from openvino" in words(
        shown(run(cells=[a, b], comparisons=[tie]))
    )


def test_without_torch_the_first_timed_cell_is_the_baseline() -> None:
    a, b = cell("openvino", latency=latency(2e-3)), cell("ort-cpu", latency=latency(1e-3))
    comparison = ComparisonRecord(
        a=a.label, b=b.label, case="1x128", ratio=2.0, ci_low=1.9, ci_high=2.1, verdict="slower"
    )
    text = shown(run(cells=[cell("onnx-reference"), a, b], comparisons=[comparison]))
    assert "baseline" in line_of(text, "openvino ", "2.00 ms")
    assert "0.500 faster" in line_of(text, "ort-cpu ", "1.00 ms", "±")
    assert "ratio is the latency over that of openvino in the same case" in text


def test_a_bench_without_comparison_of_outputs_still_ranks() -> None:
    text = words(shown(run(cells=[cell(outputs=[], latency=latency())])))
    assert "backend verdict median ± p90" in text, "columns that no row fills are left out"
    assert "timed 1.42 ms" in text
    assert "Fastest: 1x128 ort-cpu" in text


def test_one_process_and_short_calls_are_said() -> None:
    one = cell(latency=latency(2e-6, ci_low_s=None, ci_high_s=None, processes=1, calls_per_sample=64, steady=False))
    text = words(shown(run(cells=[one])))
    assert "2.00 µs 1 process" in text
    assert "timed 64 at a time" in text
    assert "Never reached a steady state in its warm-up: ort-cpu/mha-standard-23-fp32." in text


def test_all_latencies_of_a_run_are_in_one_unit() -> None:
    text = shown(run(cells=[cell(latency=latency(5e-4)), cell("openvino", latency=latency(0.25))]))
    assert "500 µs" in text
    assert "250000 µs" in text


def test_the_limits_shown_are_those_that_were_used() -> None:
    strict, loose = output(), output(rule="sensitivity")
    both = "pass to 5, suspect to 50 (10 and 100 where PyTorch's own error cannot serve as the measure)."
    assert both in words(shown(run(cells=[cell("torch-eager", outputs=[loose]), cell(outputs=[strict])])))
    assert "pass to 10, suspect to 100." in words(shown(run(cells=[cell(outputs=[loose])])))
    assert "suspect to" not in words(shown(run(cells=[cell(outputs=[output(rule="user")])])))


def test_threads_show_where_they_differ() -> None:
    text = shown(run(cells=[cell(threads=1), cell(threads=2)]))
    assert "ort-cpu (1 threads)" in text
    assert "ort-cpu (2 threads)" in text


def test_several_outputs_show_the_worst_and_name_the_failing_one() -> None:
    outputs = [output(), output(name="weights", verdict="suspect", rel_l2=5e-6, times_expected=12.0, reason="12 times")]
    text = shown(run(cells=[cell(outputs=outputs)]))
    assert "suspect 12× 4.1e-07 5.0e-06" in line_of(text, "ort-cpu", "suspect", "mha")
    assert "    weights: 12 times" in text


def test_notices_show_once_with_code_and_place() -> None:
    notice = Notice(code="fully-masked-row", message="row 3 of [4] attends to nothing", where="mask")
    text = shown(run(artifacts=[artifact(notices=[notice])], notices=[notice]))
    assert text.count("fully-masked-row: row 3 of [4] attends to nothing (mask)") == 1


def test_an_interrupted_run_shows_what_there_is() -> None:
    text = words(shown(run(finished=False, verdict=None, cells=[cell(latency=latency())])))
    assert "Unfinished: the run was interrupted. 1 of 1 cells" in text
    assert "Unfinished: the run was interrupted." in words(shown(run(finished=False, verdict=None)))


def test_colour_only_on_a_terminal_and_no_control_codes_from_messages() -> None:
    record = full_run(notices=[Notice(code="x", message="red \x1b[31m\x07alarm\r\nand more [bold]markup[/bold]")])
    plain = shown(record)
    assert "\x1b" not in plain
    assert "\x07" not in plain
    assert "x: red alarm and more [bold]markup[/bold]" in words(plain)
    coloured = shown(record, force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[1;31mFAIL", coloured)
    assert words(re.sub(r"\x1b\[[0-9;]*m", "", coloured)) == words(plain)


def test_an_ascii_terminal_gets_ascii() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii")
    notice = Notice(code="x", message="naïve → 3 µs")
    for width in (NARROW, WIDE):
        render_run(full_run(notices=[notice]), Console(file=stream, width=width))
    render_backends([("ort-cpu", "missing", "–", "pip install x")], Console(file=stream, width=NARROW))
    stream.flush()
    text = buffer.getvalue().decode("ascii")
    assert "+/-1.3 %" in text
    assert "x: na?ve > 3 us" in text


@settings(max_examples=25, deadline=None)
@given(records(CellRecord), st.sampled_from([40, NARROW, WIDE, 300]))
def test_no_record_breaks_the_table(one: CellRecord, width: int) -> None:
    text = shown(run(cells=[one]), width)
    assert "Verdict: pass" in text


def test_backends_say_what_is_there_and_what_adds_the_rest() -> None:
    remedy = (
        "pip install 'crosshead[cuda]' --extra-index-url https://example.org/a/very/long/address/of/some/index/simple"
    )
    stream = io.StringIO()
    render_backends(
        [
            ("ort-cpu", "available", "onnxruntime 1.32.0", ""),
            ("ort-cuda", "unavailable", "no CUDA provider in this build [cpu]", remedy),
        ],
        Console(file=stream, width=60),
    )
    first, second, third = stream.getvalue().splitlines()
    assert words(first) == "ort-cpu available onnxruntime 1.32.0"
    assert words(second) == "ort-cuda unavailable no CUDA provider in this build [cpu]"
    assert third.strip() == f"→ {remedy}", "a command must stay in one piece"
    assert first.index("available") == second.index("unavailable")
