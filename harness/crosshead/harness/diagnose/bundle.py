"""A folder that shows a fault without crosshead: model, inputs, expected values, versions, and a script."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, Precision, pack_arrays
from crosshead.results import scrub
from crosshead.results.diagnosis import BundleRecord, Script
from crosshead.runtimes import Runtime, Settings
from crosshead.runtimes.ort import LEFT_OUT

_LEVELS: Final = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_LIMIT_S: Final = 120.0
_SHOWS, _GONE, _UNABLE = 1, 0, 2


@dataclass(frozen=True)
class Exhibit:
    """One way to show a fault.

    Attributes:
        model: what is run.
        inputs: of the model.
        expected: float64, by output.
        got: what the backend gave; empty where it gave nothing.
        limits: by output, largest error over all of it and over its worst row.
        settings: how it is run.
        cut: whether the model is the culprit alone.
        crashes: whether the fault is that the backend fails.
        script: what computes.
    """

    model: onnx.ModelProto
    inputs: Arrays
    expected: Mapping[str, NDArray[Any]]
    got: Arrays
    limits: Mapping[str, tuple[float, float]]
    settings: Settings
    cut: bool
    script: Script
    crashes: bool = False


def script_for(runtime: Runtime | None) -> Script:
    """Return what a script can compute with in the place of a backend; a wrong graph shows in ONNX Runtime."""
    if runtime is None or runtime.name.startswith("ort-"):
        return "onnxruntime"
    return "onnx.reference" if runtime.name == "onnx-reference" else "recorded"


def write_bundle(
    folder: Path,
    exhibits: Sequence[Exhibit],
    *,
    backend: str,
    precision: Precision,
    message: str,
    versions: Mapping[str, str],
    zipped: bool = False,
) -> BundleRecord | None:
    """Write the first exhibit whose script shows the fault when it is run on its own; else the last one.

    Args:
        folder: where it shall stand; what stands there is replaced.
        exhibits: the most telling first.
        backend: the name of the backend, for the text.
        precision: of the graph.
        message: the finding, in one sentence.
        versions: of libraries.
        zipped: whether to write a `.zip` beside it.

    Returns:
        What was written; None where there is nothing to show.
    """
    message, record = scrub(message), None  # it goes to other people
    for exhibit in exhibits:
        _write(folder, exhibit, backend, precision, message, versions)
        status = _run(folder)
        shows = status == _SHOWS or (exhibit.crashes and status not in (_GONE, _UNABLE))
        record = BundleRecord(
            path=folder.name,
            script=exhibit.script,
            cut=exhibit.cut,
            reproduces=shows and exhibit.script != "recorded",
            message=_said(exhibit, shows, backend, status),
        )
        if shows:
            break
    if record is not None and zipped:
        _zip(folder)
    return record


def _said(exhibit: Exhibit, shows: bool, backend: str, status: int | None) -> str:
    model = "the culprit alone" if exhibit.cut else "the whole graph"
    if exhibit.script == "recorded":
        return (
            f"{model}, with the output that {backend} gave: nothing but {backend} computes it so, and the script shows "
            "what was recorded"
        )
    if not shows:
        return f"{model}; its script does not show the fault on its own (exit status {status})"
    return f"{model}; `python reproduce.py` shows the fault with {exhibit.script}"


def _write(
    folder: Path,
    exhibit: Exhibit,
    backend: str,
    precision: Precision,
    message: str,
    versions: Mapping[str, str],
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    onnx.save(exhibit.model, folder / "model.onnx")
    (folder / "inputs.npz").write_bytes(pack_arrays(exhibit.inputs))
    (folder / "expected.npz").write_bytes(pack_arrays({n: np.asarray(a) for n, a in exhibit.expected.items()}))
    if exhibit.got:
        (folder / "got.npz").write_bytes(pack_arrays(exhibit.got))
    facts = {
        "message": message,
        "backend": backend,
        "script": exhibit.script,
        "crashes": exhibit.crashes,
        "limits": {name: [*limits] for name, limits in exhibit.limits.items()},
        "threads": exhibit.settings.threads,
        "optimization": _LEVELS[exhibit.settings.optimization],
        "disabled_optimizers": [*LEFT_OUT.get(precision, ())],
        "providers": _providers(backend, exhibit.settings),
    }
    (folder / "facts.json").write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
    (folder / "versions.json").write_bytes(msgspec.json.format(msgspec.json.encode(dict(versions)), indent=2) + b"\n")
    shutil.copyfile(Path(__file__).with_name("_reproduce.py"), folder / "reproduce.py")
    (folder / "README.txt").write_text(_readme(exhibit, backend, message, versions), encoding="utf-8")


def _providers(backend: str, settings: Settings) -> list[Any]:
    if backend == "ort-cuda":
        return [["CUDAExecutionProvider", {"use_tf32": "1" if settings.tf32 else "0"}], "CPUExecutionProvider"]
    return ["CPUExecutionProvider"]


def _readme(exhibit: Exhibit, backend: str, message: str, versions: Mapping[str, str]) -> str:
    needs = {"onnxruntime": "onnx, onnxruntime and numpy", "onnx.reference": "onnx and numpy", "recorded": "numpy"}
    shapes = "\n".join(f"  {name}: {array.dtype.name} {[*array.shape]}" for name, array in exhibit.inputs.items())
    found = "\n".join(f"  {name} {version}" for name, version in versions.items())
    return (
        f"{message}\n\n"
        f"Backend: {backend or 'any: the graph itself is wrong'}\n"
        f"Model: model.onnx ({'the culprit alone' if exhibit.cut else 'the whole graph'})\n"
        f"Inputs: inputs.npz\n{shapes}\n"
        "Expected: expected.npz, computed in float64\n"
        + ("Seen: got.npz\n" if exhibit.got else "")
        + f"\npython reproduce.py needs {needs[exhibit.script]}. Its exit status is 1 when the fault shows, 0 when it "
        "is gone.\n"
        + (
            f"It shows what was recorded, since {backend} cannot be run by a script on its own.\n"
            if exhibit.script == "recorded"
            else ""
        )
        + f"\nFound with:\n{found}\n"
    )


def _run(folder: Path) -> int | None:
    """Run the script as somebody would who has no crosshead."""
    command = [sys.executable, "-I", str(folder / "reproduce.py")]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
