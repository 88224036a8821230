"""What a load test is asked: a plan for the source and the backends, and the loads to try."""

import math
import re

import msgspec

from crosshead.harness.errors import RequestError
from crosshead.harness.plan import Plan

MOST_CLIENTS = 1024
"""Of a closed loop, and of workers: each of either is a thread."""

MOST_RATE = 1e6
"""Requests a second: the server itself takes about a microsecond for each."""

_OBJECTIVE = re.compile(r"p(?P<percent>\d+(?:\.\d+)?)=(?P<limit>\d+(?:\.\d+)?(?:e-?\d+)?)(?P<unit>ns|us|µs|ms|s)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """A percentile of the latency, from the intended send time on, is to be at most a limit.

    Attributes:
        name: the percentile, e.g. `p99`.
        quantile: the same as a share, 0.99.
        limit_s: in seconds.
        text: as it was written, e.g. `p99=20ms`.
    """

    name: str
    quantile: float
    limit_s: float
    text: str


def read_objective(text: str) -> Objective:
    """Read `p99=20ms`.

    Raises:
        RequestError: it is something else; in one line.
    """
    found = _OBJECTIVE.fullmatch(text.strip())
    percent = float(found["percent"]) if found is not None else 0.0
    limit_s = float(found["limit"]) * _UNITS_S[found["unit"]] if found is not None else 0.0
    if found is None or not 0.0 < percent < 100.0 or not 0.0 < limit_s < math.inf:
        raise RequestError(
            f"an objective is a percentile and its largest latency, e.g. p99=20ms (units ns, us, ms, s); got {text!r}"
        )
    return Objective(name=f"p{found['percent']}", quantile=percent / 100.0, limit_s=limit_s, text=text.strip())


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A request to `load`.

    Attributes:
        plan: source, backends, settings, seed, budget and place of the results. Its `processes` and `growth` are not
            looked at: one process serves.
        clients: closed loops to try, by how many clients they have.
        rates_per_s: open loops to try, by their rate.
        search: whether rates are looked for: the largest that keeps the objectives, or, without any, where throughput
            stops following. With nothing else asked for, it is done, beside a closed loop of one client.
        objectives: what the latency is to keep.
        workers: calls that the server makes at the same time; None for one in open loops, and as many as there are
            clients in closed ones.
    """

    plan: Plan
    clients: tuple[int, ...] = ()
    rates_per_s: tuple[float, ...] = ()
    search: bool = False
    objectives: tuple[Objective, ...] = ()
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong before anything heavy is imported.

        Raises:
            RequestError: in one line.
        """
        for name, counts in (
            ("concurrency", self.clients),
            ("workers", () if self.workers is None else (self.workers,)),
        ):
            for count in counts:
                if not 1 <= count <= MOST_CLIENTS:
                    raise RequestError(f"{name} must be a whole number from 1 to {MOST_CLIENTS}, got {count}")
        for rate in self.rates_per_s:
            if not 0.0 < rate <= MOST_RATE:
                raise RequestError(f"a rate must be requests a second above 0 and up to {MOST_RATE:g}, got {rate:g}")
        names = [objective.name for objective in self.objectives]
        for name in names:
            if names.count(name) > 1:
                raise RequestError(f"two objectives were given for {name}; give one")
        if self.plan.against is not None:
            raise RequestError("load takes one source; two are compared by: crosshead compare")

    @property
    def searches(self) -> bool:
        """Whether rates are looked for."""
        return self.search or not (self.clients or self.rates_per_s)
