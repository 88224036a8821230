"""Any graph through one backend: small models, cut out of a larger one, opened one after the other in one worker."""

import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx

from crosshead.export.artifact import (
    UNIT_ROUNDOFFS,
    Apart,
    Arrays,
    Artifact,
    CaseRecord,
    FormError,
    Manifest,
    Precision,
    Source,
    TensorSpec,
    Yardstick,
    pack_arrays,
    sha256_bytes,
    unpack_arrays,
    write_artifact,
    write_whole,
)
from crosshead.harness.accuracy import Limits
from crosshead.runtimes import BackendError, Runtime, Settings, Worker, WorkerError

LARGEST_BYTES = 1_500_000_000
"""Models beyond this size are not cut: one protobuf message ends at 2 GiB."""


class Asker:
    """Runs models on one backend under one set of settings. A context manager; the worker comes with the first model.

    A worker that dies is replaced: the next model is asked of another one.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        precision: Precision,
        limits: Limits,
        scratch: Path,
        *,
        primed: bool = False,
    ) -> None:
        """Prepare.

        Args:
            runtime: a backend that executes graphs.
            settings: how it runs.
            precision: of the graphs.
            limits: of the worker.
            scratch: an existing folder.
            primed: ask each model of other numbers first: for a backend that depends on the call before.
        """
        self._primed = primed
        self.runtime = runtime
        self.settings = settings
        self._precision: Precision = precision
        self._limits = limits
        self._scratch = scratch
        self._worker: Worker | None = None
        self._open: bytes = b""
        self._count = 0

    def outputs(self, model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        """Open a model and run it once.

        Args:
            model: complete, data loaded.
            inputs: by its input names.

        Raises:
            FormError: the model is too large to be handed over.
            BackendError: the backend refused the model, or failed.
            WorkerError: the worker was lost.
        """
        if model.ByteSize() > LARGEST_BYTES:
            raise FormError(f"the model holds {model.ByteSize() / 1e9:.1f} GB, too much to be handed over in one piece")
        data = model.SerializeToString(deterministic=True)
        asked, answered = self._scratch / "asked.npz", self._scratch / "answered.npz"
        try:
            worker = self._opened(data, model, inputs)
            for arrays in (other_numbers(inputs), inputs) if self._primed else (inputs,):
                write_whole(asked, pack_arrays(arrays))
                worker.run(asked, answered)
        except WorkerError:
            self.close()
            raise
        except BackendError:
            if self._worker is not None and self._worker.closed:
                self.close()
            raise
        return unpack_arrays(answered)

    def _opened(self, data: bytes, model: onnx.ModelProto, inputs: Arrays) -> Worker:
        if self._worker is not None and data == self._open:
            return self._worker
        folder = self._scratch / "model"
        shutil.rmtree(folder, ignore_errors=True)
        write_artifact(folder, self._manifest(data, model, inputs), model=data)
        if self._worker is None:
            self._worker = Worker(
                self.runtime.name,
                folder,
                self.settings,
                timeout_s=self._limits.timeout_s,
                memory_limit_bytes=self._limits.memory_bytes,
            )
            self._worker.start()
            self._worker.opened()
        else:
            self._open = b""
            self._worker.open_other(folder)
        self._open = data
        return self._worker

    def _manifest(self, data: bytes, model: onnx.ModelProto, inputs: Arrays) -> Manifest:
        self._count += 1
        specs = tuple(
            TensorSpec(name=name, dtype=array.dtype.name, shape=tuple(f"{name}_{axis}" for axis in range(array.ndim)))
            for name, array in inputs.items()
        )
        outputs = tuple(TensorSpec(name=value.name, dtype="float32", shape=()) for value in model.graph.output)
        opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        return Manifest(
            id=f"cut{self._count}",
            source=Source(kind="onnx", name="cut.onnx"),
            exporter="cut",
            exporter_version="",
            opset=opset,
            form="given",
            precision=self._precision,
            inputs=specs,
            outputs=outputs,
            model_sha256=sha256_bytes(data),
        )

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            self._open = b""

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def other_numbers(inputs: Arrays) -> Arrays:
    """Return inputs of the same shapes that hold other numbers: floats with their signs changed."""
    return {name: np.negative(array) if array.dtype.kind == "f" else array for name, array in inputs.items()}


def with_case(
    artifact: Artifact,
    name: str,
    inputs: Arrays,
    expected: Arrays,
    sensitivities: Mapping[str, tuple[float, float]],
    out: Path,
    *,
    apart: tuple[Apart, ...] = (),
) -> Artifact:
    """Write an artifact that carries one case more.

    Args:
        artifact: stays as it is.
        name: of the case.
        inputs: of its graph.
        expected: the oracle's outputs.
        sensitivities: by floating output, over all of it and over its worst row.
        out: takes the folder.
        apart: rows of the outputs that decide nothing.
    """
    u = UNIT_ROUNDOFFS[artifact.manifest.precision]
    packed = pack_arrays(inputs), pack_arrays(expected)
    digests = [sha256_bytes(data) for data in packed]
    case = CaseRecord(
        name=name,
        reason="found by a search",
        seed=0,
        inputs_sha256=digests[0],
        expected_sha256=digests[1],
        yardsticks={
            output: Yardstick(sensitivity=whole, sensitivity_row=row, unit_roundoff=u)
            for output, (whole, row) in sensitivities.items()
            if math.isfinite(whole) and math.isfinite(row)
        },
        apart=apart,
    )
    cases = (*artifact.manifest.stress_cases, case)  # of which rows may decide nothing
    manifest = msgspec.structs.replace(artifact.manifest, stress_cases=cases)
    folder = out / artifact.id
    shutil.copytree(artifact.folder, folder, copy_function=_link)
    added = Artifact(folder, artifact.manifest).with_manifest(manifest)
    added.inputs_path(name).write_bytes(packed[0])
    added.expected_path(name).write_bytes(packed[1])
    return added


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def with_model(artifact: Artifact, model: onnx.ModelProto, identity: str, out: Path) -> Artifact:
    """Write an artifact that has another one's cases and a graph of its own, with inputs and outputs of the same names.

    Raises:
        FormError: the model is too large to be handed over.
    """
    if model.ByteSize() > LARGEST_BYTES:
        raise FormError("the graph is too large to be handed over in one piece")
    data = model.SerializeToString(deterministic=True)
    manifest = msgspec.structs.replace(
        artifact.manifest, id=identity, model_sha256=sha256_bytes(data), external_sha256={}, weights_sha256=None
    )
    blobs: dict[str, bytes | Path] = {}
    for case in manifest.all_cases:
        for path in (artifact.inputs_path(case.name), artifact.expected_path(case.name)):
            blobs[path.name] = path
    return write_artifact(out / identity, manifest, model=data, blobs=blobs)
