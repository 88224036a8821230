"""What `crosshead conform` is asked for, as one frozen record."""

import math
from pathlib import Path

import msgspec

from crosshead.harness.conformity.standard_cases import DEFAULT_MATCH
from crosshead.harness.errors import RequestError
from crosshead.runtimes.base import Settings


class ConformPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A request to hold backends against the standard's own cases.

    Attributes:
        match: what a case's name must hold.
        backends: names, or `all`: every one here that executes graphs.
        threads: of every backend; None means the cores there are.
        settings: how backends run; its `threads` is replaced by the field above.
        rtol, atol: a person's own, for every dtype; None means the rule of `judging`.
        cell_timeout_s: longest wait for one answer of a worker.
        memory_limit_bytes: largest resident size of a worker; None means what the machine can spare.
        out: folder that takes one folder a run.
        strict: known deviations count as failures, and so does it when nothing could be judged.
    """

    match: str = DEFAULT_MATCH
    backends: tuple[str, ...] = ("all",)
    threads: int | None = None
    settings: Settings = Settings()
    rtol: float | None = None
    atol: float | None = None
    cell_timeout_s: float = 120.0
    memory_limit_bytes: int | None = None
    out: Path = Path("results/runs")
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong.

        Raises:
            RequestError: in one line.
        """
        if not self.match.strip() or not self.match.isprintable():
            raise RequestError(f"match must be a part of a case's name, got {self.match!r}")
        if not self.backends:
            raise RequestError("no backend was asked for; give --backend NAME, or leave it out for all")
        for name in ("threads", "cell_timeout_s", "memory_limit_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise RequestError(f"{name} must be a number above 0, got {value}")
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise RequestError(f"{name} must be a number from 0, got {value}")
