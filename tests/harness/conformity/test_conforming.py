"""The whole job, on real backends and on one that misbehaves."""

import json
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from crosshead.harness import ConformPlan, RequestError, conform
from crosshead.harness.cli import _main
from crosshead.harness.conformity.standard_cases import _arrays, _NotPlainError, make_cases
from crosshead.results import ConformRecord, ConformResult, decode_conformity
from crosshead.runtimes import Settings

CAUSAL = "qk_matmul_bias_3d_mask"
"""Four cases, one of which ONNX Runtime is known to get wrong."""


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def make(match: str, *backends: str, fake: dict[str, Any] | None = None, **fields: Any) -> ConformPlan:
        settings = Settings(fake=fake or {})
        return ConformPlan(
            match=f"attention_{match}",
            backends=backends or ("fake",),
            settings=settings,
            threads=1,
            out=tmp_path / "runs",
            **fields,
        )

    return make


def results(record: ConformRecord, backend: str) -> dict[str, ConformResult]:
    return {case.name: each for case in record.cases for each in case.results if each.backend == backend}


def test_the_standards_own_attention_cases_on_the_backends_here(tmp_path: Path) -> None:
    done = conform(ConformPlan(backends=("onnx-reference", "ort-cpu"), out=tmp_path))
    record = done.record
    reference, ort = record.backends
    assert reference.passed == len(record.cases) == len(results(record, "onnx-reference"))
    assert (ort.failed, ort.left) == (0, 0)
    assert ort.wrong == ort.known == len(record.disagreements)
    assert {each.supported for each in record.disagreements} == {"onnx-reference"}
    if (version("onnx"), version("onnxruntime")) == ("1.23.2", "1.32.0"):
        assert (reference.passed, ort.passed, ort.wrong, ort.unsupported) == (236, 212, 2, 22)
    assert record.verdict == "suspect"  # known deviations alone
    assert (done.exit_status(strict=False), done.exit_status(strict=True)) == (0, 1)
    for result in results(record, "ort-cpu").values():
        if result.status == "unsupported":
            assert any(word in result.reason for word in ("kernel for", "operator", "Attention takes no mask"))
    ops = Counter(case.features.op for case in record.cases)
    assert set(ops) == {"ai.onnx::Attention", "ai.onnx::LinearAttention", "ai.onnx.preview::FlexAttention"}
    assert sum(case.features.expanded for case in record.cases) == len(record.cases) / 2
    assert decode_conformity((done.folder / "conform.json").read_bytes()) == record
    assert "## By feature" in (done.folder / "summary.md").read_text()


def test_a_known_deviation_is_shown_as_known_and_the_standard_supports_the_other(plan: Any) -> None:
    record = conform(plan(f"4d_with_past_and_present_{CAUSAL}", "ort-cpu", "onnx-reference")).record
    wrong = {name: each for name, each in results(record, "ort-cpu").items() if each.status == "wrong"}
    ((name, result),) = wrong.items()
    assert result.known == "ort-masked-scores-finite"
    assert result.output == "qk_matmul_output"
    assert result.worst is not None
    assert (result.worst.want, result.off > 0) == (-np.inf, True)
    assert [(each.case, each.supported) for each in record.disagreements] == [(name, "onnx-reference")]
    (known,) = record.known
    assert (known.seen, known.gone) == ([name], [])


def test_another_fault_at_the_same_place_is_new_and_two_wrong_backends_are_told_apart(plan: Any) -> None:
    match = f"4d_with_past_and_present_{CAUSAL}_causal"
    spoiled = {"relative_error": 0.5, "wraps": "ort-cpu"}
    done = conform(plan(match, "ort-cpu", "fake", fake=spoiled))
    record = done.record
    plain = next(case for case in record.cases if not case.features.expanded)
    assert {each.backend: bool(each.known) for each in plain.results} == {"ort-cpu": True, "fake": False}
    assert Counter(each.supported for each in record.disagreements) == {"": 1, "ort-cpu": 1}
    assert (record.verdict, done.exit_status(strict=False)) == ("fail", 1)


def test_a_deviation_that_no_longer_shows_is_told(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from crosshead.harness.conformity import known

    entry = next(each for each in known.KNOWN if each.backend == "ort-cpu")
    mended = type(entry)(**{**vars(entry), "backend": "fake", "since": "0.0.1"})
    monkeypatch.setattr(known, "KNOWN", (mended,))
    record = conform(plan(f"4d_with_past_and_present_{CAUSAL}")).record
    (told,) = record.known
    assert told.seen == []
    assert told.gone == ["test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal"]
    assert record.verdict == "pass"


def test_a_backend_that_is_off_everywhere_fails_with_figures(plan: Any) -> None:
    record = conform(plan("4d_fp16", fake={"relative_error": 0.25})).record
    for result in results(record, "fake").values():
        assert (result.status, result.known, result.off) == ("wrong", "", result.elements)
        assert result.rel_l2 == pytest.approx(0.25, rel=0.01)
        assert result.worst is not None
        assert result.worst.got == pytest.approx(1.25 * result.worst.want, rel=0.01)
    assert record.verdict == "fail"
    assert conform(plan("4d_fp16", fake={"relative_error": 0.25}, rtol=0.3)).record.verdict == "pass"


def test_a_crash_is_a_result_and_the_next_case_is_asked(plan: Any) -> None:
    record = conform(plan("3d_scaled", "fake", "onnx-reference", fake={"ending": "segfault", "stderr": "last"})).record
    crashed = results(record, "fake").values()
    assert [each.status for each in crashed] == ["failed", "failed"]
    assert all("SIGSEGV" in each.reason for each in crashed)
    assert all(each.status == "pass" for each in results(record, "onnx-reference").values())
    assert (record.verdict, record.disagreements) == ("fail", [])


def test_a_backend_that_crashes_as_it_comes_up_is_started_once(plan: Any) -> None:
    done = conform(plan("3d", fake={"ending": "exit", "at": "open", "slow_start_s": 0.2}))
    crashed = results(done.record, "fake").values()
    assert len(crashed) > 20
    assert {(each.status, each.reason) for each in crashed} == {
        ("failed", "while loading the artifact, the worker exited with status 3")
    }


def test_a_hang_ends_at_the_timeout(plan: Any) -> None:
    record = conform(plan("3d_scaled_expanded", fake={"ending": "hang"}, cell_timeout_s=3.0)).record
    (result,) = results(record, "fake").values()
    assert result.status == "failed"
    assert "no answer within 3 s" in result.reason


def test_what_was_finished_when_it_is_stopped_is_kept(plan: Any) -> None:
    def stop(step: str, share: float | None = None) -> None:
        if step.startswith("fake") and share:
            raise KeyboardInterrupt

    done = conform(plan("3d_gqa", "fake"), stop)
    assert (done.interrupted, done.exit_status(strict=False), done.record.verdict) == (True, 130, None)
    stored = decode_conformity((done.folder / "conform.json").read_bytes())
    assert stored == done.record
    assert not stored.finished
    (backend,) = stored.backends
    assert (backend.passed, backend.left) == (1, len(stored.cases) - 1)
    assert [notice.code for notice in stored.notices] == ["interrupted"]
    assert "Stopped before the end" in (done.folder / "summary.md").read_text()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"match": "attention_of_a_goldfish"}, ["no node case of onnx", "'attention_of_a_goldfish'", "--match"]),
        ({"match": " "}, ["part of a case's name"]),
        ({"backends": ("torch-eager",)}, ["torch-eager runs PyTorch source", "onnx-reference"]),
        ({"backends": ()}, ["no backend was asked for"]),
        ({"rtol": -1.0}, ["rtol must be a number from 0"]),
        ({"threads": 0}, ["threads must be a number above 0"]),
        ({"settings": Settings(fake={"unsupported": "no"}), "backends": ("fake",)}, ["Identity", "no"]),
    ],
)
def test_what_cannot_be_carried_out_is_one_line_and_leaves_nothing(
    tmp_path: Path, fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        conform(ConformPlan(**{"match": "attention_3d_scaled", "out": tmp_path / "runs", **fields}))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_cases_are_made_elsewhere_and_in_silence(tmp_path: Path) -> None:
    before = {name for name in sys.modules if name.startswith("onnx.backend.test.case.node.")}
    found = make_cases("Linear_Attention_fp16", tmp_path)
    assert [case.name.partition("_expanded")[0] for case in found.cases] == 2 * ["test_linear_attention_fp16"]
    assert {name for name in sys.modules if name.startswith("onnx.backend.test.case.node.")} == before
    artifact = found.cases[0].artifact()
    artifact.verify()
    assert artifact.manifest.precision == "fp16"


def test_values_that_are_no_plain_tensors_are_told_apart() -> None:
    def value(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
        return onnx.helper.make_value_info(name, kind)

    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1])
    held = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    assert _arrays([value("x", tensor)], [held])["x"].tolist() == [1.0]
    with pytest.raises(_NotPlainError, match="no tensor"):
        _arrays([value("x", onnx.helper.make_sequence_type_proto(tensor))], [[np.ones(1)]])
    with pytest.raises(_NotPlainError, match="holds object"):
        _arrays([value("x", tensor)], [np.array(["text"], object)])


def test_the_verb_prints_json_and_nothing_else(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status = _main(["conform", "--match", "attention_3d_scaled", "--backend", "fake", "--json", "--out", "runs"])
    out, err = capfdbinary.readouterr()
    assert status == 0
    record = decode_conformity(out)
    assert (record.verdict, record.match, record.threads > 0) == ("pass", "attention_3d_scaled", True)
    assert b"making the standard's cases" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "conform.json").read_bytes()) == json.loads(out)


def test_the_verb_says_its_verdict_and_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["conform", "--match", "attention_3d_scaled", "--backend", "fake", "--out", str(tmp_path)]
    assert _main([*common, "--quiet", "--setting", "fake.relative_error=0.5"]) == 1
    assert capsys.readouterr().out == "fail\n"
    assert _main(common) == 0
    shown = capsys.readouterr().out
    assert "fake" in shown
    assert "Verdict: pass" in shown
    assert "results:" in shown
    assert _main([*common, "--backend", "nobody"]) == 2
    assert "there is no backend 'nobody'" in capsys.readouterr().err


def test_help_answers_without_anything_heavy() -> None:
    script = (
        "import sys\nfrom crosshead.harness.cli import _main\n_main(['conform', '-h'])\n"
        "print(sorted({'torch', 'onnx', 'numpy', 'onnxruntime', 'rich', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
