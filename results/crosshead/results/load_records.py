"""The record of a load test, `crosshead.load/1`: frozen, JSON, one unit in each numeric field's name.

Raw times do not stand in it but in a side file (`samples.npz`, see `crosshead.results.load_store`).

History:
    1  first version.
"""

from typing import Literal

import msgspec

from crosshead.results.records import ArtifactRecord, CellStatus, EnvironmentRecord, Notice, ProviderRecord, RunResult

LOAD_SCHEMA = "crosshead.load/1"

Loop = Literal["closed", "open"]
PointStatus = Literal["ok", "saturated", "too-short", "void", "failed"]
ObjectiveResult = Literal["met", "missed", "undecided"]


class SpreadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How one time spreads over the counted requests. A percentile that they do not support is None.

    Attributes:
        missing_samples: by percentile name (`p99`), how many more requests it would take.
    """

    mean_s: float
    median_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    p999_s: float | None = None
    max_s: float
    missing_samples: dict[str, int] = {}


class ObjectiveRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A latency objective at one load: the percentile is to be at most the limit.

    Attributes:
        name: the percentile, e.g. `p99`.
        limit_s: the latency, from the intended send time on.
        verdict: met or missed at 99 % confidence; undecided where the requests do not say.
        requests: how many were looked at.
        over: how many of them took longer.
        missing_samples: how many more requests, none of them over, it would take to call it met.
    """

    name: str
    limit_s: float
    verdict: ObjectiveResult
    requests: int = 0
    over: int = 0
    missing_samples: int = 0


class LoadPointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One load. Either figures, or a status that says why there are none.

    Attributes:
        loop: closed (so many clients, each sends when it was answered) or open (Poisson arrivals at a rate).
        given: whether it was asked for, and not found by searching.
        clients: of a closed loop.
        rate_per_s: of an open loop, as asked; `offered_per_s` is what the draw came to.
        workers: calls that the server makes at the same time.
        seed: of the draw of send times, which `crosshead.harness.poisson_arrivals` repeats.
        status: ok; saturated (requests come faster than they are answered: latency grows for as long as one looks,
            so none is given); too-short (not one request counted); void (the clock stepped, or the process or machine
            stood still, or was disturbed); failed (the worker was lost, or the backend failed).
        duration_s: how long requests were to be sent; `window_s` how long they were.
        lead_s: requests sent before that are served and not counted.
        stopped_early: whether the objectives were decided before the end.
        requests: counted and answered; `unanswered` were due and given up.
        throughput_per_s: answers in the counted part of the window.
        busy_share: share of the workers' time in it that was spent in calls.
        latency: end of the call after the *intended* send time: what a user waits.
        queue: start of the call after the intended send time.
        service: the call alone: what a client that measures from its actual send sees.
        expected_queue_s: mean queueing of one worker under Poisson arrivals, by Pollaczek and Khinchine from the
            measured calls; None for several workers and closed loops.
        wake_median_s, wake_p99_s: how late an idle worker takes up a request; part of `queue`.
    """

    loop: Loop
    given: bool = True
    clients: int | None = None
    rate_per_s: float | None = None
    workers: int
    seed: int | None = None
    status: PointStatus
    reason: str = ""
    duration_s: float
    window_s: float | None = None
    lead_s: float = 0.0
    stopped_early: bool = False
    requests: int = 0
    unanswered: int = 0
    offered_per_s: float | None = None
    throughput_per_s: float | None = None
    busy_share: float | None = None
    latency: SpreadRecord | None = None
    queue: SpreadRecord | None = None
    service: SpreadRecord | None = None
    expected_queue_s: float | None = None
    wake_median_s: float | None = None
    wake_p99_s: float | None = None
    objectives: list[ObjectiveRecord] = []


class SaturationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where throughput stops following the rate.

    Attributes:
        follows_per_s: largest rate that was kept up with; None where none was.
        stops_per_s: smallest rate above it that was not.
        throughput_per_s: the most that was answered at any rate.
    """

    follows_per_s: float | None = None
    stops_per_s: float | None = None
    throughput_per_s: float


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The largest rate that keeps every objective, as far as it was looked for.

    Attributes:
        kept_per_s: largest rate at which all were met; None where there was none.
        lost_per_s: smallest rate above it at which one was not.
        reason: why it is not known, or not known better.
    """

    kept_per_s: float | None = None
    lost_per_s: float | None = None
    reason: str = ""


class LoadCellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One (artifact, backend, case) under load, in one worker process.

    Attributes:
        status: ok; unsupported; failed (then points that were finished before are there); void (no point has figures).
        reason: one line; empty when ok.
        settings: as asked; details: as the backend reports them back.
        call_s: median seconds a call at the end of the warm-up.
        steady: whether the warm-up reached a steady state.
        saturation: None where no rate was tried.
        kept: None where there is no objective, or no rate was tried.
    """

    artifact: str
    backend: str
    case: str
    threads: int
    status: CellStatus
    reason: str = ""
    stderr_tail: str = ""
    placement: dict[str, ProviderRecord] = {}
    settings: dict[str, str | int | float | bool] = {}
    details: dict[str, str] = {}
    first_call_s: float | None = None
    call_s: float | None = None
    steady: bool = True
    peak_rss_bytes: int | None = None
    points: list[LoadPointRecord] = []
    saturation: SaturationRecord | None = None
    kept: KeptRecord | None = None

    @property
    def label(self) -> str:
        """`backend/artifact`: unique within a case."""
        return f"{self.backend}/{self.artifact}"


class LoadPlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: enough to ask again. `objectives` as written, e.g. `p99=20ms`."""

    source: str
    options: dict[str, bool | int | float | str | None] = {}
    backends: list[str]
    clients: list[int] = []
    rates_per_s: list[float] = []
    search: bool = False
    objectives: list[str] = []
    workers: int | None = None
    threads: int
    time_budget_s: float
    seed: int


class LoadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One load test. `finished` is False in what an interrupted one leaves behind."""

    schema: str = LOAD_SCHEMA
    id: str
    crosshead: str
    started: str
    finished: bool = False
    wall_s: float | None = None
    plan: LoadPlanRecord
    environment: EnvironmentRecord
    artifacts: list[ArtifactRecord] = []
    cells: list[LoadCellRecord] = []
    notices: list[Notice] = []
    verdict: RunResult | None = None
