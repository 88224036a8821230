"""The record of a run, `crosshead.run/1`: frozen, JSON, one unit in each numeric field's name.

Other people's scripts read `run.json`; a field's name and meaning stay for as long as the schema's number does.
Raw latency samples do not stand in it but in a side file (`samples.npz`, see `crosshead.results.store`).

History:
    1  first version.
"""

from typing import Literal

import msgspec

SCHEMA = "crosshead.run/1"

GraphResult = Literal["pass", "fail", "weak", "not-asked"]
OutputResult = Literal["pass", "suspect", "fail"]
CellStatus = Literal["ok", "unsupported", "failed", "void"]
RatioResult = Literal["faster", "slower", "same", "undecided"]
RunResult = Literal["pass", "suspect", "fail"]
Rule = Literal["yardstick", "sensitivity", "user", "exact"]
Bound = Literal["compute", "memory"]
Cause = Literal["graph", "kernel", "math-mode", "nondeterminism", "data"]


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A stable code, one sentence with what to do, and where it was seen."""

    code: str
    message: str
    where: str = ""


class GraphRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The graph question of one artifact; see docs/verdicts.md."""

    verdict: GraphResult
    rel_l2: float | None = None
    literal_sensitivity: float | None = None
    parameters_equal: bool | None = None
    detail: str = ""


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of the run. `path` is relative to the run's folder; `ops` counts nodes by `domain::op`.

    `axes` says of each dynamic axis `proved: 1, 11` (sizes it was run at) or `not proved: …` with the reason; it is
    empty where nothing was asked. `stress_left_out` says by name why a case of the stress set is not there.
    """

    id: str
    path: str
    sha256: str
    source: str
    exporter: str
    exporter_version: str
    opset: int
    form: str
    precision: str
    ops: dict[str, int]
    graph: GraphRecord
    notices: list[Notice] = []
    axes: dict[str, str] = {}
    stress_left_out: dict[str, str] = {}


class ProviderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one execution provider computed: count of nodes, and share of the arithmetic (0 to 1)."""

    nodes: int
    flops_share: float


class WorstElement(msgspec.Struct, frozen=True, kw_only=True):
    """The element with the largest absolute error: its index, what the backend gave, what the oracle wants."""

    index: list[int]
    got: float
    want: float


class UlpRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Distance in units in the last place of the output dtype: median, 99th percentile, largest."""

    median: float
    p99: float
    max: float


class HistogramRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Absolute errors in decades: `counts[i]` errors lie in [10^edges[i], 10^edges[i+1]); `zeros` are exact."""

    edges_log10: list[int]
    counts: list[int]
    zeros: int


class PaddedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The padded positions of one output, or other rows of it that decide nothing.

    Attributes:
        positions: how many there are.
        max_abs: largest absolute error among the elements that are finite on both sides.
        rel_l2: ||y - o||2 / ||o||2 over these positions.
        nonfinite: NaN and Inf that the backend gave there.
    """

    positions: int
    max_abs: float
    rel_l2: float
    nonfinite: int = 0


class GivenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One output of one cell against the output that a person gave with the inputs.

    Attributes:
        rel_l2: ||y - g||2 / ||g||2; None for whole numbers and booleans.
        yardsticks: the same in units of the rounding that this case must have; None where a tolerance was asked for.
        reason: one sentence where the verdict is not pass.
    """

    verdict: OutputResult
    rel_l2: float | None = None
    yardsticks: float | None = None
    reason: str = ""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One output of one cell against the float64 oracle.

    Attributes:
        verdict: pass, suspect or fail.
        rule: whose rule gave it: `yardstick` (native, sensitivity, u/2), `sensitivity` (no native), `user`
            (numpy's allclose with the tolerances asked for), `exact` (whole numbers and booleans).
        reason: one sentence where the verdict is not pass.
        dtype, expected_dtype: of the backend's output and of the artifact's.
        max_abs: largest absolute error.
        max_rel: largest relative error; the denominator is at least the smallest normal of the dtype.
        rel_l2: ||y - o||2 / ||o||2.
        rel_l2_row: the same for the worst row (last axis), its denominator at least ||o||2 / sqrt(rows).
        times_expected: the larger of rel_l2 and rel_l2_row, each in units of its yardstick.
        yardstick, yardstick_row: the rounding this case must have, as relative L2.
        times_native: fp16 only: the error against the oracle on inputs and weights that are rounded already, over
            PyTorch's own.
        cosine_distance: 1 - cos(y, o).
        snr_db: 20 log10(||o|| / ||y - o||); None when exact.
        nan, expected_nan, inf, expected_inf: counts on both sides.
        argmax_agreement: share of rows with the same argmax; None where the last axis is no distribution.
        padded: what stands at padded positions, where the case has some; every other field is of the valid ones.
        apart: the same, by reason, of other rows that decide nothing: `fully masked`, `beyond fp16`, …
        given: how far it is from what a person gave with the inputs; None where nothing was given.
    """

    name: str
    verdict: OutputResult
    rule: Rule
    reason: str = ""
    dtype: str = ""
    expected_dtype: str = ""
    shape: list[int] = []
    max_abs: float | None = None
    max_rel: float | None = None
    rel_l2: float | None = None
    rel_l2_row: float | None = None
    times_expected: float | None = None
    yardstick: float | None = None
    yardstick_row: float | None = None
    times_native: float | None = None
    cosine_distance: float | None = None
    snr_db: float | None = None
    ulp: UlpRecord | None = None
    nan: int = 0
    expected_nan: int = 0
    inf: int = 0
    expected_inf: int = 0
    worst: WorstElement | None = None
    argmax_agreement: float | None = None
    histogram: HistogramRecord | None = None
    padded: PaddedRecord | None = None
    apart: dict[str, PaddedRecord] = {}
    given: GivenRecord | None = None


class SurroundingsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What went on around the turns in which a cell was timed; None where the system does not say.

    Attributes:
        turns: how many.
        steal_share: share of the processors' time that the host gave to other guests, 0 to 1.
        others_cores: processors that other programs kept busy.
        switches: how often its workers were made to give up a processor.
        frequency_low_mhz, frequency_high_mhz: of the processors, at the ends of turns.
        temperature_c: the hottest sensor at the end of any turn.
        throttles: how often the processors were held back for their heat.
        gpu_clock_low_mhz, gpu_clock_high_mhz: of the GPU's multiprocessors, at the ends of turns.
        gpu_throttled_turns: turns at whose end the GPU's clock was held down.
        gpu_shared_turns: turns at whose end other processes computed on the GPU.
    """

    turns: int
    steal_share: float = 0.0
    others_cores: float = 0.0
    switches: int = 0
    frequency_low_mhz: float | None = None
    frequency_high_mhz: float | None = None
    temperature_c: float | None = None
    throttles: int = 0
    gpu_clock_low_mhz: float | None = None
    gpu_clock_high_mhz: float | None = None
    gpu_throttled_turns: int = 0
    gpu_shared_turns: int = 0


class LatencyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one cell, seconds a call. A percentile the samples do not support is None (docs/method.md).

    Attributes:
        median_s: median over processes of the per-process medians.
        ci_low_s, ci_high_s: 95 % interval of the median, drawn over processes; None below two processes.
        p90_s … p999_s: over all samples of all processes, where their count supports it at 99 % confidence.
        missing_samples: by percentile name (`p99`), how many more samples it would take.
        samples: count of raw samples, all processes together.
        calls_per_sample: calls one sample is the mean of; above 1 (calls too short for the clock) a percentile is one
            of such means, and single calls spread more.
        processes: worker processes that were timed.
        process_medians_s: one entry a process.
        first_call_s: median over processes of the very first call.
        session_s: median over processes of loading the artifact.
        import_s: median over processes of importing the backend's library, NumPy included.
        steady: whether every process reached a steady state in its warm-up.
        settled: whether the interval came within ±1 % of the median.
        host_to_device_s, device_to_host_s: copies, apart; None where nothing is copied.
        compile_s: compiling for the case in the first process of the run to do so, one call included; None where the
            backend does not compile.
        compile_cached_s: median over processes of the same, with what the first one left in the run's cache.
        gflop_s: arithmetic of one call, by the block's formula or counted over the graph, over the median; None where
            it is not known.
        gbyte_s: sizes of inputs, outputs and weights over the median; None where they are not known.
        limit_share: share of what the run's peaks allow; see `crosshead.results.roofline`. None without peaks.
        bound: which limit that is.
        surroundings: what went on around its turns; of each turn, see `crosshead.results.read_turns`.
    """

    median_s: float
    ci_low_s: float | None = None
    ci_high_s: float | None = None
    min_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    p999_s: float | None = None
    missing_samples: dict[str, int] = {}
    samples: int
    calls_per_sample: int = 1
    processes: int
    process_medians_s: list[float] = []
    first_call_s: float
    session_s: float
    import_s: float
    steady: bool = True
    settled: bool = False
    host_to_device_s: float | None = None
    device_to_host_s: float | None = None
    compile_s: float | None = None
    compile_cached_s: float | None = None
    gflop_s: float | None = None
    gbyte_s: float | None = None
    limit_share: float | None = None
    bound: Bound | None = None
    surroundings: SurroundingsRecord | None = None


class PeakRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can do at a precision, measured in the run itself.

    Attributes:
        precision: of the products.
        threads: of the workers that were asked.
        gflop_s: the best large matrix product of any of the run's backends; None where none has one of its own.
        backend: whose product it was.
        gbyte_s: the best copy of host memory, bytes read and written; None where a device's memory is the limit.
    """

    precision: str
    threads: int
    gflop_s: float | None = None
    backend: str = ""
    gbyte_s: float | None = None


class GrowthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one process over many calls with varying lengths.

    Attributes:
        calls: how many.
        shapes: how many different lengths they had.
        axes: names of the axes whose length was varied.
        rss_start_bytes: resident size after calls at the shortest length.
        rss_end_bytes: resident size after all calls, when the C library has given back what was freed.
        idle_bytes: what it had kept free until it was asked to.
        new_shape_call_s: median over lengths of the first call of a length.
        repeat_call_s: median over lengths of the median of its later calls.
    """

    calls: int
    shapes: int
    axes: list[str] = []
    rss_start_bytes: int
    rss_end_bytes: int
    idle_bytes: int = 0
    new_shape_call_s: float
    repeat_call_s: float


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One (artifact, backend, case, threads). Either measurements or the reason it ended.

    Attributes:
        status: ok; unsupported (the backend does not take it); failed (it crashed, hung, or was refused); void
            (it ran, but something else disturbed it so much that its figures mean nothing).
        reason: one line; empty when ok.
        stderr_tail: last lines of the worker's error output; only when failed.
        placement: by execution provider; empty where the backend has no such notion.
        settings: as asked; details: as the backend reports them back.
        peak_rss_bytes: largest resident size of any of its processes.
        growth: how memory grew over varying lengths; None where that was not asked.
    """

    artifact: str
    backend: str
    case: str
    threads: int
    status: CellStatus
    reason: str = ""
    stderr_tail: str = ""
    placement: dict[str, ProviderRecord] = {}
    placement_proof: str = ""
    outputs: list[OutputRecord] = []
    latency: LatencyRecord | None = None
    settings: dict[str, str | int | float | bool] = {}
    details: dict[str, str] = {}
    peak_rss_bytes: int | None = None
    growth: GrowthRecord | None = None

    @property
    def label(self) -> str:
        """`backend/artifact`: unique within a case, and what agreements and comparisons name a cell by."""
        return f"{self.backend}/{self.artifact}"


class AgreementRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Two cells of one case against each other: the largest relative L2 error over outputs, and in yardsticks.

    `a` and `b` are labels (`backend/artifact`); `noise` is what they differ from themselves by, together.
    """

    a: str
    b: str
    case: str
    error: float
    yardsticks: float
    noise: float = 0.0
    verdict: OutputResult


class LawRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One law that needs no reference, asked of one artifact on one backend (docs/method.md, "Laws").

    Attributes:
        law: its name, e.g. `causality`.
        violation: the largest that was seen, in `unit`; None where it could not be asked.
        limit: up to here the law holds.
        unit: `u` (unit roundoffs of the precision, relative to the largest output) or `absolute`.
        cases: how many pairs of outputs were held against each other.
        reason: one sentence where the verdict is not pass, or where the law does not apply or was not asked.
    """

    law: str
    artifact: str
    backend: str
    verdict: OutputResult
    violation: float | None = None
    limit: float
    unit: str = "u"
    cases: int = 0
    reason: str = ""


class NoiseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A backend against itself on one artifact: the floor below which a difference to others means nothing.

    Each figure is the largest relative L2 distance over outputs; 0 is the same bits; None where it could not be asked.

    Attributes:
        case: the inputs.
        repeat: the same inputs twice in one process.
        other_batch: a row of the batch alone against the same row among others.
        other_threads: one thread, or two where one is the setting, against the threads that were asked for.
        detail: what was compared with what, or why it could not be.
    """

    artifact: str
    backend: str
    case: str
    repeat: float | None = None
    other_batch: float | None = None
    other_threads: float | None = None
    detail: str = ""


class CauseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of fault a failed or suspect cell shows, in one sentence with figures.

    Attributes:
        where: label and case of the cell, or id of the artifact.
        kind: `graph` (the export), `kernel` (the backend), `math-mode` (products rounded on purpose),
            `nondeterminism`, or `data` (inputs or weights that the precision does not hold).
        message: the finding.
    """

    where: str
    kind: Cause
    message: str


class ComparisonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of cell `a` over that of cell `b` (below 1: a is faster), with its interval over processes.

    `a` and `b` are labels (`backend/artifact`); see `crosshead.results.compare_latency`.
    """

    a: str
    b: str
    case: str
    ratio: float
    ci_low: float | None = None
    ci_high: float | None = None
    verdict: RatioResult


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One NVIDIA GPU as the driver sees it; None where the driver does not say.

    Attributes:
        driver: version of the driver.
        utilization_share: share of the last second or so in which a kernel ran, 0 to 1.
        sm_clock_mhz, sm_clock_limit_mhz: clock of the multiprocessors now, and the highest one.
        throttle_reasons: why the clock is held down now; idleness is left out.
        other_processes: processes computing on it when it was read.
    """

    name: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    driver: str = ""
    utilization_share: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_limit_mhz: float | None = None
    throttle_reasons: list[str] = []
    other_processes: int | None = None


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its libraries; no host name, user name or path.

    Attributes:
        cores: logical processors that this process may run on.
        physical_cores: of the machine.
        cpu_quota: processors' worth of time that the control group grants; None where it is not limited.
        governor: the kernel's policy for the clock frequency.
        memory_bytes: of the machine.
        load_1m: processes running or waiting, averaged over the last minute.
        steal_share: share of processor time, 0 to 1, that the host gave to other guests: since the reading that was
            handed in, else since the machine came up.
        libc: name and version of the C library.
        versions: library versions by distribution name.
        huge_pages: whether the kernel grants transparent huge pages to memory that asks for them.
        tunables: environment variables that steer allocators and thread libraries, where set.
    """

    os: str
    distribution: str = ""
    kernel: str
    machine: str
    cpu_model: str
    cores: int
    physical_cores: int | None = None
    cpu_quota: float | None = None
    governor: str | None = None
    memory_bytes: int
    load_1m: float | None = None
    steal_share: float | None = None
    python: str
    libc: str = ""
    versions: dict[str, str] = {}
    gpus: list[GpuRecord] = []
    huge_pages: bool = False
    tunables: dict[str, str] = {}


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: enough to ask again."""

    source: str
    options: dict[str, bool | int | float | str | None] = {}
    backends: list[str]
    exporter: str = "dynamo"
    forms: list[str]
    precisions: list[str]
    opsets: list[int] = []
    cases: list[str]
    threads: int
    processes: int
    time_budget_s: float
    seed: int
    timed: bool = True
    growth_calls: int = 0


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `finished` is False in what an interrupted run leaves behind.

    `cells` are the cases that were asked for; `stress` those of the stress set, compared and never timed.

    `phases_s` says where `wall_s` went, each second once; see `crosshead.harness.phases`.
    """

    schema: str = SCHEMA
    id: str
    crosshead: str
    started: str
    wall_s: float | None = None
    phases_s: dict[str, float] = {}
    finished: bool = False
    plan: PlanRecord
    environment: EnvironmentRecord
    artifacts: list[ArtifactRecord] = []
    cells: list[CellRecord] = []
    stress: list[CellRecord] = []
    laws: list[LawRecord] = []
    noise: list[NoiseRecord] = []
    causes: list[CauseRecord] = []
    peaks: list[PeakRecord] = []
    agreements: list[AgreementRecord] = []
    comparisons: list[ComparisonRecord] = []
    notices: list[Notice] = []
    verdict: RunResult | None = None
