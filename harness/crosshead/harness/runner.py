"""Any inputs through one cell: a worker that is asked again and again, and replaced when it died."""

from pathlib import Path

from crosshead.export.artifact import Arrays, unpack_arrays, write_arrays
from crosshead.harness.accuracy import Limits, launch
from crosshead.harness.cells import Cell
from crosshead.runtimes import Worker, WorkerError


class Runner:
    """Runs inputs of any shape that the graph takes, one set after the other. A context manager.

    The stress set, the laws, the noise floor, and the search for a cause ask through it, so that a backend that crashes
    on one set of inputs answers the next.
    """

    def __init__(self, cell: Cell, limits: Limits, scratch: Path) -> None:
        """Prepare; the worker is started by the first question.

        Args:
            cell: artifact, backend and settings; its case is not looked at.
            limits: of the worker.
            scratch: an existing folder for inputs and outputs on their way.
        """
        self.cell = cell
        self.scratch = scratch
        self._limits = limits
        self._inputs = scratch / "asked.npz"
        self._outputs = scratch / "answered.npz"
        self._worker: Worker | None = None

    def start(self) -> None:
        """Bring the worker up ahead of the first question; returns at once.

        Raises:
            WorkerError: the system starts no process.
        """
        if self._worker is None:
            self._worker = launch(self.cell, self._limits)
            self._worker.start()

    def outputs(self, inputs: Arrays) -> Arrays:
        """Run once, and return the outputs by name.

        Raises:
            BackendError: the backend refused or failed (`UnsupportedError`, `InputError`, …); the worker lives on,
                unless it was the artifact that was refused.
            WorkerError: the worker is lost; the next question goes to a new one.
        """
        write_arrays(self._inputs, inputs)
        return self.run_file(self._inputs)

    def run_file(self, inputs: Path) -> Arrays:
        """Run once on an `.npz` that is there already. Raises as `outputs`."""
        self.start()
        assert self._worker is not None, "start made one"
        try:
            self._worker.opened()
            self._worker.run(inputs, self._outputs)
        except WorkerError:
            self.close()
            raise
        except Exception:
            if self._worker.closed:
                self.close()
            raise
        return unpack_arrays(self._outputs)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
