"""Show on standard error what a run is doing: a bar on a terminal, a line a step elsewhere."""

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crosshead.harness.pipeline import Progress


@contextmanager
def shown_progress() -> "Iterator[Progress]":
    """Give a progress callback; the bar is gone when the block ends."""
    if sys.stderr is None:  # closed by whoever started us
        from crosshead.harness.pipeline import silent

        yield silent
        return
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(step: str, share: float | None = None) -> None:
            bar.update(task, description=step, total=None if share is None else 1.0, completed=share or 0.0)

        yield show


class _Lines:
    """One line for each new step; of a long one, also its quarters."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, step: str, share: float | None = None) -> None:
        quarter = "" if share is None else f" {int(share * 4) * 25} %"
        line = f"{step}{quarter}"
        if line != self._last:
            self._last = line
            sys.stderr.write(f"crosshead: {line}\n")
            sys.stderr.flush()
