"""The command line: one clear line and the right exit status for everything a person can get wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crosshead.harness.cli import _main

FACTORIES = """
import torch
from torch import nn

class Core(nn.Module):
    def forward(self, query, mask):
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)

def raises():
    raise RuntimeError("the weights are in another castle")

def not_a_module():
    return 3

def no_inputs():
    return Core()

def wrong_mask():
    return Core(), {"query": torch.zeros(2, 4, 6, 8), "mask": torch.ones(2, 1, 6, 5, dtype=torch.bool)}

def wrong_mask_dtype():
    return Core(), {"query": torch.zeros(2, 4, 6, 8), "mask": torch.ones(2, 1, 6, 6, dtype=torch.int64)}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "mha", "--set", "num_heads=7"], ["num_heads", "d_model=512", "num_heads=7"]),
        (["run", "mah"], ["no block named 'mah'", "mha"]),
        (["run", "factories.py:absent"], ["factories.py has no 'absent'", "wrong_mask"]),
        (["run", "absent.py:factory"], ["absent.py", "not there"]),
        (["run", "no.such.package:factory"], ["no module named 'no.such.package'"]),
        (["run", "factories.py:raises"], ["RuntimeError", "the weights are in another castle"]),
        (["run", "factories.py:not_a_module"], ["int", "module"]),
        (["run", "factories.py:no_inputs"], ["inputs", "(module, inputs)"]),
        (["run", "factories.py:wrong_mask"], ["6", "5"]),
        (["run", "factories.py:wrong_mask_dtype"], ["mask", "bool"]),
        (["run", "--backend", "ort-cdua"], ["no backend 'ort-cdua'", "ort-cuda"]),
        (["run", "--backend", "tract"], ["reserved"]),
        (["run", "--bakend", "ort-cpu"], ["--bakend", "--backend"]),
        (["run", "--form", "fancy"], ["fancy", "standard"]),
        (["run", "--form", "standard", "--opset", "22"], ["standard", "23", "22"]),
        (["run", "--opset", "16"], ["16", "17"]),
        (["run", "--precision", "fp8"], ["fp8", "fp32"]),
        (["run", "--batch", "0"], ["--batch", "0"]),
        (["run", "--threads", "0"], ["threads", "0"]),
        (["run", "--setting", "spining=off"], ["spining", "spinning"]),
        (["run", "--setting", "optimization=max"], ["optimization", "basic", "max"]),
        (["run", "truncated.onnx"], ["truncated.onnx"]),
        (["run", "absent.onnx"], ["absent.onnx"]),
        (["run", "."], ["no artifact"]),
        (["compare", "mha", "gqa"], [".onnx"]),
        (["run", "--memory-limit", "nan"], ["--memory-limit", "nan"]),
        (["run", "--time-budget", "inf"], ["time_budget_s", "inf"]),
        (["run", "--out", "x" * 300], ["results folder", "--out"]),
        (["compare", "mha", "--seq", "1000000000"], ["memory"]),
        (["frobnicate"], ["frobnicate"]),
    ],
    ids=lambda value: " ".join(value[:5]) if isinstance(value, list) and value[0] in ("run", "compare") else None,
)
def test_bad_input_is_one_line_and_status_two(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    (here / "truncated.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch\x1a\xff")
    before = sorted(path.name for path in here.iterdir())
    assert _main([*arguments, *(["--quiet"] if arguments[0] in ("run", "compare") else [])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("crosshead: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err
    left = sorted(path.name for path in here.iterdir() if path.name != "__pycache__")
    assert left == before, "nothing half-written is left"


def test_a_folder_that_cannot_be_written_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "taken").write_text("")
    assert _main(["run", "--out", "taken", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "--out" in err


def test_cuda_without_cuda_is_status_two_and_no_row(
    linear: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from crosshead.runtimes import Unavailable, get_runtime

    cuda = get_runtime("ort-cuda")
    monkeypatch.setattr(type(cuda), "probe", lambda self: Unavailable("no GPU", "use a machine that has one"))
    assert _main(["compare", str(linear), "--backend", "ort-cuda", "--quiet"]) == 2
    assert capsys.readouterr().err == (
        "crosshead: backend ort-cuda is not available here: no GPU; use a machine that has one\n"
    )
    assert not (here / "results").exists()
    assert _main(["compare", str(linear), "--json", "--quiet"]) == 0, "under all the run goes on"
    record = json.loads(capsys.readouterr().out)
    assert all(cell["backend"] != "ort-cuda" for cell in record["cells"])
    missing = [notice for notice in record["notices"] if notice["code"] == "backend-missing"]
    assert [notice["where"] for notice in missing] == ["ort-cuda"]


def test_json_is_the_record_and_nothing_else(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["compare", str(linear), "--backend", "ort-cpu", "--json"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert record["schema"] == "crosshead.run/1"
    assert [cell["backend"] for cell in record["cells"]] == ["ort-cpu", "ort-cpu"]


def test_quiet_says_the_verdict_alone(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["compare", str(linear), "--backend", "ort-cpu", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("pass\n", "")


def test_the_table_names_what_a_person_needs(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["run", str(linear), "--backend", "ort-cpu", "--time-budget", "0.2", "--processes", "1"]) == 0
    out, err = capsys.readouterr()
    for word in ("ort-cpu", "1x3", "2x5", "pass", "results: results/runs/"):
        assert word in out
    assert "crosshead: " in err, "progress goes to standard error"


def test_fake_is_never_in_all(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _main(["compare", str(linear), "--json", "--quiet"])
    backends = {cell["backend"] for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert backends == {"onnx-reference", "ort-cpu"}


def test_two_onnx_files(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx

    old = linear / "linear" / "model.onnx"
    model = onnx.load(old)
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] += 0.01
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "W"))
    onnx.save(model, here / "new.onnx")
    same = ["compare", str(old), str(old), "--shape", "x=2x3x4", "--backend", "ort-cpu", "--json", "--quiet"]
    assert _main(same) == 0
    capsys.readouterr()
    assert _main(["compare", str(old), "new.onnx", *same[3:]]) == 1
    record = json.loads(capsys.readouterr().out)
    assert [artifact["graph"]["verdict"] for artifact in record["artifacts"]] == ["not-asked", "fail"]


def test_inputs_of_a_bare_onnx(linear: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear / "linear" / "model.onnx")
    assert _main(["compare", model, "--backend", "ort-cpu", "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "--shape" in err
    assert "batch" in err
    np.savez("arrays.npz", x=np.ones((3, 2, 4), np.float32))
    assert _main(["compare", model, "--inputs", "arrays.npz", "--backend", "ort-cpu", "--quiet"]) == 0
    np.savez("wrong.npz", x=np.ones((3, 2, 5), np.float32))
    capsys.readouterr()
    assert _main(["compare", model, "--inputs", "wrong.npz", "--backend", "ort-cpu", "--quiet"]) == 2
    assert "5" in capsys.readouterr().err


def test_a_tolerance_for_an_output_that_is_not_there_is_refused(
    linear: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(["compare", str(linear), "--rtol", "z=1", "--backend", "ort-cpu", "--quiet"]) == 2
    assert capsys.readouterr().err == "crosshead: a tolerance was given for output 'z'; outputs: y\n"


def test_a_backend_that_cannot_run_what_it_was_named_for_is_said(
    linear: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "compare",
        str(linear),
        "--backend",
        "fake",
        "--setting",
        "fake.unsupported=Mul of bfloat16",
        "--quiet",
    ]
    assert _main(arguments) == 2
    err = capsys.readouterr().err
    assert "fake was asked for by name and cannot run linear, case 1x3: Mul of bfloat16" in err


@pytest.mark.skipif(sys.platform == "win32", reason="a shell pipe")
@pytest.mark.parametrize("output", [["--json"], []])
def test_a_reader_that_leaves_changes_no_verdict(linear: Path, here: Path, output: list[str]) -> None:
    command = [sys.executable, "-m", "crosshead", "compare", str(linear), "--backend", "ort-cpu", *output]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=here) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read().decode()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_being_told_to_end_keeps_what_is_finished(linear: Path, here: Path) -> None:
    command = [sys.executable, "-m", "crosshead", "compare", str(linear), "--backend", "fake"]
    command += ["--setting", "fake.ending=hang"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=here, env=os.environ | {"TMPDIR": str(here)}) as process:
        assert process.stderr is not None
        while b"fake/linear" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
    assert process.returncode == 130
    record = json.loads(next(here.glob("results/runs/*/run.json")).read_text())
    assert "interrupted" in {notice["code"] for notice in record["notices"]}
    assert not list(here.glob("crosshead-*")), "no scratch is left"


def test_a_fault_of_ours_is_no_verdict(
    linear: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from crosshead.harness import pipeline

    def broken(*arguments: object, **named: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(pipeline, "make_cells", broken)
    assert _main(["compare", str(linear), "--quiet"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("crosshead: internal error: KeyError")


@pytest.mark.parametrize("verb", ["run", "export", "compare", "bench", "backends"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main([verb, "-h"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: crosshead {verb}")
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 110


def test_backends_says_what_is_missing_and_how_to_add_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["backends", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert {line["name"] for line in lines} >= {"torch-eager", "onnx-reference", "ort-cpu", "ort-cuda", "fake"}
    for line in lines:
        assert line["version"] if line["available"] else line["detail"] and line["remedy"]


@pytest.mark.parametrize("module", ["crosshead.harness", "crosshead.harness.pipeline", "crosshead.harness.cli"])
def test_the_harness_imports_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'onnxruntime' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from crosshead.harness.cli import _main; _main(['--help']); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'onnx', 'rich.table', 'scipy', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
