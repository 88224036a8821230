"""Where the wall time of a run goes: every second of it counts for exactly one phase."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

OTHER = "other"

STEPS = {
    "importing": "import_torch",
    "loading": "load",
    "exporting": "export",
    "lowering": "export",
    "reading": "export",
    "computing": "float64",
    "checking": "float64",
    "comparing": "float64",
}
"""Phase of each step of the preparation, by the first word of what it says it does."""


class Phases:
    """A clock that is always in one phase; a phase inside another is taken out of it.

    Phases of a run:
        import_torch, load, export, float64: making the artifacts, and proving them in float64.
        visit_start, visit_import, visit_session, visit_run: first visits: the interpreter and the end of a worker,
            the backend's library, the artifact, the runs whose outputs are judged.
        judge, axes, growth: outputs against the oracle, other sizes, varying lengths.
        stress, laws, noise, causes: what is asked of every backend that ran (`examine`), and why something failed.
        compile: compiling for a case, in visits and in timed workers.
        workers_start, workers_import, workers_session: starting the timed workers, two at a time; the wall time of a
            start is shared out by what the workers say they spent.
        warm_up, measure, peaks: of the timed workers.
        record: writing what was found.
        other: the rest.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spent_s: dict[str, float] = {}
        self._phase = OTHER
        self._since = clock()

    def enter(self, phase: str) -> None:
        """Be in another phase from now on."""
        now = self._clock()
        self._spent_s[self._phase] = self._spent_s.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Be in another phase for a while."""
        before = self._phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def step(self, text: str) -> None:
        """Enter the phase of a step of the preparation; see `STEPS`."""
        self.enter(STEPS.get(text.partition(" ")[0], OTHER))

    def share_out(self, from_phase: str, parts_s: Mapping[str, float]) -> None:
        """Give to other phases what they took of one, as was found out afterwards; never more than it has.

        Args:
            from_phase: the phase that the time was counted for.
            parts_s: seconds by phase.
        """
        self.enter(self._phase)  # so that what runs now is counted
        for phase, part_s in parts_s.items():
            part_s = min(part_s, self._spent_s.get(from_phase, 0.0))
            self._spent_s[from_phase] = self._spent_s.get(from_phase, 0.0) - part_s
            self._spent_s[phase] = self._spent_s.get(phase, 0.0) + part_s

    def seconds(self) -> dict[str, float]:
        """Return seconds by phase so far, the longest first."""
        self.enter(self._phase)
        return dict(sorted(self._spent_s.items(), key=lambda entry: -entry[1]))
