"""Artifacts made before: what is taken into a run, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crosshead.export.artifact import Artifact, ArtifactError
from crosshead.harness import Plan, RequestError
from crosshead.harness.sources import prepare

WriteLinear = Callable[[Path], Artifact]
MakePlan = Callable[..., Plan]


def take(plan: Plan, out: Path) -> list[Artifact]:
    return prepare(plan, out, lambda _: None).artifacts


def refusal(kind: type[Exception], plan: Plan, out: Path) -> str:
    with pytest.raises(kind, match=r"^[^\n]+$") as caught:
        prepare(plan, out, lambda _: None)
    return str(caught.value)


def test_only_what_the_manifest_names_is_copied(
    tmp_path: Path, write_linear: WriteLinear, make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write_linear(tmp_path)
    (artifact.folder / "notes").mkdir()
    (artifact.folder / "passwd").symlink_to("/etc/passwd")
    (artifact.folder / "blobs" / "more.npz").touch()
    monkeypatch.chdir(artifact.folder)  # "." has no name of its own
    (copy,) = take(make_plan(source="."), tmp_path / "run")
    copy.verify()
    assert copy.manifest == artifact.manifest
    assert Artifact.load(tmp_path / "run" / "linear") == copy
    found = {path.relative_to(copy.folder) for path in copy.folder.rglob("*") if path.is_file()}
    assert found == {Path("manifest.json"), *artifact.digests()}


def test_links_pipes_and_artifacts_without_cases_are_refused(
    tmp_path: Path, write_linear: WriteLinear, make_plan: MakePlan
) -> None:
    artifact = write_linear(tmp_path)
    plan = make_plan(source=str(tmp_path))
    artifact.with_manifest(msgspec.structs.replace(artifact.manifest, cases=()))
    assert "artifact linear carries no case to run" in refusal(RequestError, plan, tmp_path / "run")
    artifact.with_manifest(artifact.manifest)
    artifact.model_path.rename(tmp_path / "moved.onnx")
    artifact.model_path.symlink_to(tmp_path / "moved.onnx")
    assert "model.onnx is a symbolic link" in refusal(ArtifactError, plan, tmp_path / "run")
    artifact.model_path.unlink()
    os.mkfifo(artifact.model_path)
    assert "model.onnx is missing" in refusal(ArtifactError, plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_artifacts_of_one_name_are_refused(tmp_path: Path, write_linear: WriteLinear, make_plan: MakePlan) -> None:
    write_linear(tmp_path).folder.rename(tmp_path / "first")
    write_linear(tmp_path)
    said = refusal(RequestError, make_plan(source=str(tmp_path)), tmp_path / "run")
    assert "holds two artifacts called linear" in said


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_source_is_not_the_current_folder(tmp_path: Path, make_plan: MakePlan, source: str) -> None:
    fields: dict[str, Any] = {"source": source}
    assert "the source is empty" in refusal(RequestError, make_plan(**fields), tmp_path / "run")
