"""One backend on many small graphs: one worker that opens them in turn, and is replaced when it was lost."""

from pathlib import Path

import numpy as np

from crosshead.export.artifact import (
    Arrays,
    Artifact,
    CaseRecord,
    Manifest,
    Source,
    TensorSpec,
    pack_arrays,
    sha256_bytes,
    unpack_arrays,
    write_artifact,
)
from crosshead.harness.accuracy import Limits
from crosshead.harness.conformity.standard_cases import CASE, idle_model
from crosshead.runtimes import BackendError, Runtime, Settings, Worker, WorkerError


class LostBackendError(Exception):
    """The backend does not come up at all: every case ends with the error that is this one's cause."""

    def __init__(self, cause: BackendError | WorkerError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Asker:
    """Runs one artifact after the other on one backend. A context manager.

    A worker refuses for good when it refuses its first artifact, so that one is an Identity, which everybody takes.
    """

    def __init__(self, runtime: Runtime, settings: Settings, limits: Limits, scratch: Path) -> None:
        """Prepare; the worker is started by the first question.

        Args:
            runtime: a backend that executes graphs.
            settings: how it is to run.
            limits: of the worker.
            scratch: an existing folder.
        """
        self._runtime = runtime
        self._settings = settings
        self._limits = limits
        self._idle = write_idle(scratch / "idle")
        self._outputs = scratch / "answered.npz"
        self._worker: Worker | None = None
        self._lost: LostBackendError | None = None

    def outputs(self, artifact: Artifact) -> Arrays:
        """Open an artifact, run it on its own inputs, and return the outputs by name.

        Raises:
            BackendError: the backend refused or failed; the worker lives on.
            WorkerError: the worker was lost; the next question goes to a new one.
            LostBackendError: it does not come up at all.
        """
        worker = self._up()
        try:
            worker.open_other(artifact.folder)
            worker.run(artifact.inputs_path(CASE), self._outputs)
        except WorkerError:
            self.close()
            raise
        return unpack_arrays(self._outputs)

    def _up(self) -> Worker:
        if self._lost is not None:
            raise self._lost
        if self._worker is not None:
            return self._worker
        worker = Worker(
            self._runtime.name,
            self._idle.folder,
            self._settings,
            timeout_s=self._limits.timeout_s,
            memory_limit_bytes=self._limits.memory_bytes,
        )
        self._worker = worker
        try:
            worker.start()
            worker.opened()
        except (BackendError, WorkerError) as error:
            self.close()
            self._lost = LostBackendError(error)
            raise self._lost from error
        return worker

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_idle(folder: Path) -> Artifact:
    """Write the artifact that a worker begins with."""
    model = idle_model()
    blobs = [pack_arrays({name: np.zeros(1, np.float32)}) for name in ("x", "y")]
    digests = [sha256_bytes(blob) for blob in blobs]
    manifest = Manifest(
        id="idle",
        source=Source(kind="onnx", name="idle"),
        exporter="crosshead",
        exporter_version="",
        opset=13,
        form="given",
        precision="fp32",
        inputs=(TensorSpec(name="x", dtype="float32", shape=(1,)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(1,)),),
        model_sha256=sha256_bytes(model),
        cases=(CaseRecord(name=CASE, reason="", seed=0, inputs_sha256=digests[0], expected_sha256=digests[1]),),
        ops={"ai.onnx::Identity": 1},
    )
    files = {f"{digest}.npz": blob for digest, blob in zip(digests, blobs, strict=True)}
    return write_artifact(folder, manifest, model=model, blobs=files)
