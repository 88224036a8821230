"""What the parent and a worker say to each other: one JSON object a line, arrays through files.

The worker answers every request with exactly one reply, in order. It closes its standard output to others first
(file descriptor 1 is pointed at its error output), so that a library that prints cannot spoil the conversation.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from crosshead.runtimes.base import Placement, Settings


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Import the backend and load an artifact: first request of every worker. A later one puts another in its place."""

    runtime: str
    artifact: str
    settings: Settings
    source_folder: str | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Run once on the arrays in `inputs` (.npz) and write the outputs to `outputs` (.npz)."""

    inputs: str
    outputs: str


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, tag="warm-up"):
    """Bind the arrays in `inputs` (.npz) and call until steady or until `limit_s` has gone by."""

    inputs: str
    limit_s: float


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """One turn: call unrecorded for `settle_s`, then record calls for `duration_s`. Needs a `WarmUp` before.

    At least `min_samples` samples are recorded, whatever the time.
    """

    settle_s: float
    duration_s: float
    min_samples: int = 1


class Grow(msgspec.Struct, frozen=True, kw_only=True, tag="grow"):
    """Call `calls` times with the arrays in `inputs` (.npz) cut to many lengths; see `crosshead.runtimes.growth`."""

    inputs: str
    calls: int
    seed: int


class Peak(msgspec.Struct, frozen=True, kw_only=True, tag="peak"):
    """Find out what the machine can do, by a matrix product of the backend's own and by copying, `duration_s` each."""

    duration_s: float


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """When a load test may stop before its end: for every limit, few enough answers came late, or too many.

    Attributes:
        count: look at the first so many counted answers.
        most_over: by limit, with up to so many late answers the objective is met.
        least_over: by limit, from so many late answers on it is missed.
    """

    count: int
    most_over: list[int]
    least_over: list[int]

    def decides(self, over: Sequence[int]) -> bool:
        """Whether every limit is decided, with so many answers over each."""
        return all(
            late <= most or late >= least
            for late, most, least in zip(over, self.most_over, self.least_over, strict=True)
        )


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Serve requests, `workers` at a time; see `crosshead.runtimes.load`. Needs a `WarmUp` before.

    Attributes:
        samples: where the times of every request are written (.npz).
        workers: calls that run at the same time.
        duration_s: requests are sent for so long.
        settle_s: unrecorded calls before.
        arrivals: when requests are sent, seconds from the start (.npz, `intended_s`); None for a closed loop.
        clients: of a closed loop.
        lead_s: requests sent before this are served and not counted by `looks`.
        limits_s: latencies that `looks` count the excess of.
        looks: when it may stop before its end.
    """

    samples: str
    workers: int
    duration_s: float
    settle_s: float
    arrivals: str | None = None
    clients: int = 0
    lead_s: float = 0.0
    limits_s: list[float] = []
    looks: list[Look] = []


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """End."""


Request = Open | Run | WarmUp | Measure | Grow | Peak | Load | Close


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """Reply to `Open`.

    Attributes:
        import_s: time to import the backend's library, NumPy included.
        session_s: time to load the artifact (for a module: factory and weights).
        placement: which provider ran what; None where there is no such notion.
        versions: library versions in the worker, by distribution name.
        details: settings as the backend reports them back.
        peak_rss_bytes: largest resident size so far.
    """

    import_s: float
    session_s: float
    placement: Placement | None
    versions: dict[str, str]
    details: dict[str, str]
    peak_rss_bytes: int


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """Reply to `Run`.

    Attributes:
        call_s: seconds of the call, outputs materialised on the host.
        placement: which provider ran what, when the run could tell.
        compile_s: seconds of compiling for these shapes, before the call; None where nothing was compiled.
        peak_rss_bytes: largest resident size so far.
        details: what the backend can report only after compiling; empty where nothing was compiled.
    """

    call_s: float
    placement: Placement | None = None
    compile_s: float | None = None
    peak_rss_bytes: int = 0
    details: dict[str, str] = {}


class Warm(msgspec.Struct, frozen=True, kw_only=True, tag="warm"):
    """Reply to `WarmUp`.

    Attributes:
        first_call_s: seconds of the very first call.
        calls: how many calls the warm-up took.
        steady: whether a steady state was reached within the limit.
        call_s: median seconds of the last calls.
        calls_per_sample: how many calls one sample of `Measure` spans, so that reading the clock costs under 0.1 %.
        host_to_device_s: median seconds of copying the inputs; None where nothing is copied.
        device_to_host_s: median seconds of copying the outputs back.
        compile_s: seconds of compiling for these shapes, before the first call; None where nothing was compiled.
    """

    first_call_s: float
    calls: int
    steady: bool
    call_s: float
    calls_per_sample: int
    host_to_device_s: float | None = None
    device_to_host_s: float | None = None
    compile_s: float | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """Reply to `Measure`: seconds a call, one entry a sample, and memory.

    Attributes:
        samples_s: seconds a call (a sample's time divided by `calls_per_sample`).
        peak_rss_bytes: largest resident size so far.
        rss_bytes: resident size now.
    """

    samples_s: list[float]
    peak_rss_bytes: int
    rss_bytes: int


class Grown(msgspec.Struct, frozen=True, kw_only=True, tag="grown"):
    """Reply to `Grow`.

    Attributes:
        calls: how many calls were counted.
        shapes: how many different lengths they had.
        axes: names of the axes whose length was varied.
        rss_start_bytes: resident size after calls at the shortest length, before the counted ones.
        rss_end_bytes: resident size after them.
        idle_bytes: freed by then, but kept by the C library until it was asked; no part of `rss_end_bytes`.
        new_shape_call_s: median over lengths of the first call of a length.
        repeat_call_s: median over lengths of the median of its later calls.
    """

    calls: int
    shapes: int
    axes: list[str]
    rss_start_bytes: int
    rss_end_bytes: int
    idle_bytes: int
    new_shape_call_s: float
    repeat_call_s: float


class Peaked(msgspec.Struct, frozen=True, kw_only=True, tag="peaked"):
    """Reply to `Peak`.

    Attributes:
        flop_s: floating-point operations a second of a large matrix product in the artifact's precision; None where the
            backend has none of its own.
        copy_bytes_s: bytes read and written a second by copying; None where the memory is not the host's.
    """

    flop_s: float | None
    copy_bytes_s: float | None


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """Reply to `Load`.

    Attributes:
        answered: requests that were answered; their times are in the file.
        left: requests that were due by the end of the window and not answered by then.
        window_s: for how long requests were sent.
        stopped: `end`, `decided` (by a look), or `saturated` (requests came faster than they were answered, and those
            still waiting were given up).
        finding: why the times mean nothing (a clock that stepped, a process that stood still); empty when all is well.
        peak_rss_bytes: largest resident size so far.
    """

    answered: int
    left: int
    window_s: float
    stopped: Literal["end", "decided", "saturated"]
    finding: str
    peak_rss_bytes: int


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """Reply to `Close`."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """Any request may be answered so.

    Attributes:
        kind: `unsupported`, `placement`, `input`, `void` or `error`.
        message: one line: what was expected, what came, what to do.
    """

    kind: Literal["unsupported", "placement", "input", "void", "error"]
    message: str


Reply = Opened | Ran | Warm | Measured | Grown | Peaked | Loaded | Closed | Failed
