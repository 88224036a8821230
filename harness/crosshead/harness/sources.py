"""From what a person named to artifacts on disk: export a module, take a bare .onnx, or read artifacts made before."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosshead.export.artifact import Artifact
from crosshead.harness.carried import check_cases
from crosshead.harness.errors import RequestError
from crosshead.harness.plan import Plan
from crosshead.results import Notice

ARTIFACTS = "artifacts"

OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """Artifacts to run, and what belongs to their source.

    Attributes:
        artifacts: verified, on disk.
        source_folder: where a user's factory file stands.
        notices: about the source itself.
    """

    artifacts: list[Artifact]
    source_folder: Path | None
    notices: list[Notice]


def prepare(plan: Plan, out: Path, on_step: OnStep) -> Prepared:
    """Make or read the artifacts that a plan asks for.

    Args:
        plan: the request.
        out: folder that takes one folder an artifact.
        on_step: told what is being done.

    Raises:
        RequestError, ExportError: in one line.
    """
    if not plan.source.strip():
        raise RequestError("the source is empty; give a block, path.py:factory, a .onnx file or a folder of artifacts")
    if plan.against is not None and plan.source_kind != "onnx":
        raise RequestError(
            f"two sources can be compared when both are .onnx files; got {plan.source!r} and {plan.against!r}"
        )
    if plan.precisions and plan.source_kind != "module":
        raise RequestError(
            f"a graph that was made before keeps its own precision; {Path(plan.source).name} cannot be cast to "
            f"{', '.join(plan.precisions)}: leave --precision out, or give the module"
        )
    if plan.given_inputs and plan.source_kind == "folder":
        raise RequestError(
            f"--inputs: the artifacts in {Path(plan.source).name} carry their cases and what must come out; give the "
            "module or the .onnx to run other inputs"
        )
    if plan.source_kind == "folder":
        prepared = _read_folder(Path(plan.source), out, on_step)
    elif plan.source_kind == "onnx":
        prepared = _take_onnx(plan, out, on_step)
    else:
        prepared = _export(plan, out, on_step)
    _check_tolerances(plan, prepared.artifacts)
    return prepared


def _check_tolerances(plan: Plan, artifacts: Sequence[Artifact]) -> None:
    """Refuse a tolerance for an output that is not there: it would never be used, and nobody would know."""
    known = {spec.name for artifact in artifacts for spec in artifact.manifest.outputs}
    for name in plan.tolerances.by_output:
        if name not in known:
            raise RequestError(f"a tolerance was given for output {name!r}; outputs: {', '.join(sorted(known))}")


def _export(plan: Plan, out: Path, on_step: OnStep) -> Prepared:
    on_step("importing PyTorch")
    try:
        import torch  # noqa: F401  # only to answer in one line where it is missing
    except ImportError as error:
        raise RequestError(
            "exporting a module needs PyTorch, which is not installed; pip install 'crosshead[torch]', "
            "or give a folder of artifacts exported elsewhere"
        ) from error
    from crosshead.export import cases_for, export_source, load_source, with_given_cases

    pairs = plan.form_opsets()
    on_step(f"loading {plan.source}")
    loaded = load_source(plan.source, options=plan.options, seed=plan.seed, keep_training_mode=plan.keep_training_mode)
    cases = cases_for(loaded, batches=plan.batches, lengths=plan.lengths, shapes=plan.shapes)
    if plan.given_inputs:
        cases = with_given_cases(cases, plan.given_inputs, list(loaded.inputs), plan.seed)
    artifacts = export_source(
        loaded,
        cases,
        forms=pairs,
        out=out,
        precisions=plan.precisions,
        exporter=plan.exporter,
        stress=plan.stress,
        on_step=on_step,
    )
    notices = [Notice(code=n.code, message=n.message, where=n.where or plan.source) for n in loaded.notices]
    return Prepared(artifacts, loaded.folder, notices)


def _take_onnx(plan: Plan, out: Path, on_step: OnStep) -> Prepared:
    from crosshead.export import against_onnx_file, export_onnx_file, onnx_cases

    path = Path(plan.source)
    cases = onnx_cases(path, shapes=plan.shapes, inputs=plan.given_inputs, seed=plan.seed)
    artifacts = [export_onnx_file(path, cases, out=out, on_step=on_step)]
    if plan.against is not None:
        on_step(f"comparing {Path(plan.against).name} with {path.name} in float64")
        artifacts.append(against_onnx_file(artifacts[0], Path(plan.against), out=out))
    return Prepared(artifacts, None, [])


def _read_folder(folder: Path, out: Path, on_step: OnStep) -> Prepared:
    """Take artifacts made before, here or on another machine, into this run."""
    found = [folder] if (folder / "manifest.json").is_file() else _artifact_folders(folder)
    if not found:
        raise RequestError(
            f"{folder} holds no artifact: expected manifest.json in it, in its folders, or in its {ARTIFACTS}/; "
            "export one with: crosshead export"
        )
    artifacts: list[Artifact] = []
    for path in found:
        on_step(f"checking {path.name}")
        artifact = Artifact.load(path)
        artifact.verify()
        if not artifact.manifest.cases:
            raise RequestError(f"artifact {artifact.id} carries no case to run; export again")
        check_cases(artifact)
        if any(artifact.id == other.id for other in artifacts):
            raise RequestError(f"{folder} holds two artifacts called {artifact.id}; give the folder of one of them")
        artifacts.append(_copy(artifact, out))
    return Prepared(artifacts, None, [])


def _artifact_folders(folder: Path) -> list[Path]:
    roots = [folder / ARTIFACTS, folder]
    for root in roots:
        if root.is_dir():
            found = sorted(path.parent for path in root.glob("*/manifest.json"))
            if found:
                return found
    return []


def _copy(artifact: Artifact, out: Path) -> Artifact:
    """Copy what an artifact's manifest names into the run, by hard links where the file system has them."""
    target = out / artifact.id
    for name in artifact.digests():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(artifact.folder / name, target / name)
        except OSError:
            shutil.copy2(artifact.folder / name, target / name)
    return Artifact(target, artifact.manifest).with_manifest(artifact.manifest)
