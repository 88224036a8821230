"""`crosshead load` on the command line: one clear line for what a person can get wrong, and what it prints."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crosshead.harness.cli import _main
from crosshead.results import LOAD_SCHEMA, LoadRecord, decode_record


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "fast"], ["--rate", "50,100", "'fast'"]),
        (["--rate", "0"], ["rate", "above 0"]),
        (["--rate", "inf"], ["rate", "inf"]),
        (["--concurrency", "0"], ["--concurrency", "'0'"]),
        (["--concurrency", "two"], ["--concurrency", "'two'"]),
        (["--concurrency", "2000"], ["concurrency", "1024", "2000"]),
        (["--workers", "0"], ["workers", "0"]),
        (["--objective", "p99"], ["p99=20ms", "'p99'"]),
        (["--objective", "p99=20"], ["ns, us, ms, s", "'p99=20'"]),
        (["--objective", "p99=1ms", "--objective", "p99=2ms"], ["two objectives", "p99"]),
        (["--time-budget", "0"], ["time_budget_s", "0"]),
        (["--backend", "ort-cdua"], ["no backend 'ort-cdua'"]),
        (["--rat", "5"], ["--rat", "--rate"]),
        (["--rate", "1e12"], ["rate", "up to 1e+06", "1e+12"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("--") else None,
)
def test_a_wrong_request_is_one_line(
    arguments: list[str], words: list[str], linear: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = _main(["load", str(linear), *arguments, "--quiet", "--out", str(tmp_path / "runs")])
    told = capsys.readouterr()
    assert status == 2
    assert not told.out
    assert len(told.err.splitlines()) == 1
    assert all(word in told.err for word in words), told.err
    assert not (tmp_path / "runs").exists(), "nothing half-written is left"


@pytest.fixture
def loaded(linear: Path, tmp_path: Path) -> Any:
    """Return a function that runs the verb on the tiny artifact and the fake backend."""

    def run(*arguments: str) -> int:
        fixed = ["--backend", "fake", "--setting", "fake.sleep_s=0.002", "--threads", "1", "--time-budget", "2"]
        return _main(["load", str(linear), *fixed, "--out", str(tmp_path / "runs"), *arguments])

    return run


def test_the_record_alone_goes_to_standard_output(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("--concurrency", "1", "--rate", "50,100", "--json") == 0
    record = decode_record(capsys.readouterr().out, LoadRecord, LOAD_SCHEMA, "a load test")
    assert record.plan.clients == [1]
    assert record.plan.rates_per_s == [50.0, 100.0]
    assert not record.plan.search
    assert record.cells[0].settings["fake.sleep_s"] == 0.002


def test_the_exit_status_says_that_an_objective_is_missed(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("--rate", "50", "--objective", "p50=1us", "--quiet") == 1
    assert capsys.readouterr().out == "fail\n"
    assert loaded("--rate", "50", "--objective", "p50=30s", "--quiet") == 0
    assert capsys.readouterr().out == "pass\n"


def test_the_table_goes_to_standard_output_and_progress_to_the_other(
    loaded: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loaded("--rate", "50,auto") == 0
    told = capsys.readouterr()
    assert "50.0/s" in told.out
    assert "Verdict: pass." in told.out
    assert "results: " in told.out
    assert "requests/s" in told.err


def test_what_cannot_serve_is_told_by_name(loaded: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = loaded("--concurrency", "2", "--setting", "fake.unsupported=no kernel for Sin of float8", "--quiet")
    assert status == 2
    lines = capsys.readouterr().err.splitlines()
    assert all("fake was asked for by name and cannot serve linear" in line for line in lines)
    assert "no kernel for Sin" in lines[0]


def test_its_options_are_shown_without_heavy_imports() -> None:
    script = (
        "import sys\n"
        "from crosshead.harness.cli import _main\n"
        "assert _main(['load', '-h']) == 0\n"
        "heavy = {'numpy', 'torch', 'onnx', 'scipy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    for option in ("--concurrency", "--rate", "--objective", "--workers", "--time-budget", "[60]", "[default: 1]"):
        assert option in done.stdout
