"""`diagnose` and `fuzz` on the command line: exit status, JSON, one line for what cannot be done."""

import json
from pathlib import Path

import pytest
from tests.faults.in_process import in_process

from crosshead.harness.cli import _main

SMALL = ["mha", "--set", "d_model=64", "--set", "num_heads=4", "--batch", "2", "--seq", "9", "--threads", "1"]
FAULTY = ["--backend", "fake", "--setting", "fake.fault=softmax-axis", "--form", "decomposed"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    with in_process():
        return _main([*arguments])


def test_a_diagnosis_is_status_one_and_its_record_all_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", *SMALL, *FAULTY, "--json") == 1
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "crosshead.diagnosis/1"
    assert record["culprit"]["op"] == "ai.onnx::Softmax"
    assert [path.name for path in Path().iterdir()] == ["results"]  # nothing else is left behind


def test_nothing_wrong_is_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", *SMALL, "--backend", "onnx-reference", "--no-stress", "--quiet") == 0
    assert capsys.readouterr().out.startswith("Nothing wrong was found")


def test_a_find_is_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fuzz", *SMALL, *FAULTY, "--tries", "3", "--zip") == 1
    out = capsys.readouterr().out
    assert "1 find among" in out
    (folder,) = Path("results/runs").iterdir()
    assert (folder / "finds" / "1-fake" / "bundle.zip").is_file()


def test_a_search_without_finds_is_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fuzz", *SMALL, "--backend", "onnx-reference", "--form", "standard", "--tries", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "nothing-found"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "mha", "--against", "ort-cdua"], ["no backend 'ort-cdua'", "ort-cuda"]),
        (["diagnose", "mah"], ["no block named 'mah'"]),
        (["diagnose", "."], ["holds no artifact"]),
        (["fuzz", "mha", "--seconds", "0"], ["seconds", "above 0"]),
        (["fuzz", "mha", "--backend", "ort-cdua"], ["no backend 'ort-cdua'"]),
        (["fuzz", "mah"], ["no block named 'mah'"]),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--quiet") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(word in error for word in words), error
