"""First visits in turn: while one cell runs and is judged, the worker of the next one comes up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from crosshead.harness.accuracy import Limits, Visit, launch, visit
from crosshead.harness.cells import Cell
from crosshead.harness.phases import Phases
from crosshead.runtimes import Worker, WorkerError


class Visitor:
    """Makes first visits. A context manager: workers that came up for a visit that never came are closed.

    Of a cell that is to be timed only the interpreter comes up ahead of its turn: how long it takes to import and to
    load is read with nothing beside it. The others import and load beside the cell before them, once the cold start of
    that one was read.
    """

    def __init__(self, scratch: Path, limits: Limits, phases: Phases, on_progress: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            scratch: takes a folder a visit, for what the cells give.
            limits: of one worker.
            phases: told where the time went.
            on_progress: told which cell is visited.
        """
        self._scratch = scratch
        self._limits = limits
        self._phases = phases
        self._on_progress = on_progress
        self._count = 0
        self._ahead: Worker | None = None
        self._stack = ExitStack()

    def visits(self, cells: Sequence[Cell], why: str = "") -> Iterator[Visit]:
        """Visit cells one after the other, and give each visit when it is over.

        Args:
            cells: in this order.
            why: the reason, for progress; empty for the plain one.
        """
        for index, cell in enumerate(cells):
            self._on_progress(f"{cell.label}, case {cell.case}" + (f": {why}" if why else ""))
            folder = self._scratch / f"visit{self._count}"
            folder.mkdir()
            self._count += 1
            worker, self._ahead = self._ahead or launch(cell, self._limits), None
            following = cells[index + 1] if index + 1 < len(cells) else None
            yield visit(cell, folder, worker, self._phases, meanwhile=partial(self._bring_up, following))

    def _bring_up(self, cell: Cell | None) -> None:
        if cell is None:
            return
        worker = launch(cell, self._limits)
        self._stack.callback(worker.close)
        with suppress(WorkerError):  # the visit tries again with another one, and says what is wrong
            if cell.timed:
                worker.boot()
            else:
                worker.start()
            self._ahead = worker

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
