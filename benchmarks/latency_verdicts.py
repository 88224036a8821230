"""How often does the latency verdict name a winner: where there is none, and where one was planted?

    .venv/bin/python benchmarks/latency_verdicts.py [fake-aa fake-3 ort-aa ort-3 ort-2 ort-1 busy] [--pairs N]

Each pair is two cells of one artifact, timed by the engine of `bench` in worker processes that are all new, and judged
as any two cells are. Of a planted loss the second cell's every call takes so much longer, as a share of itself. Rates
are printed with their 95 % Clopper-Pearson intervals (Clopper and Pearson 1934).

    fake-aa, ort-aa       the same twice: a winner at all is a false one; 5 % are allowed
    fake-3, ort-3, …      slower by 3, 2 or 1 %: found, undecided, or reversed, which must not happen
    busy                  the same twice while another program keeps a core busy: no winner may be named
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crosshead.export.artifact import Artifact
from crosshead.harness import Plan, export
from crosshead.harness.accuracy import Limits
from crosshead.harness.cells import Cell
from crosshead.harness.plan import default_threads
from crosshead.harness.timing import Timing
from crosshead.results import RatioResult, compare_latency
from crosshead.runtimes import Settings, get_runtime

SPIN = "import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass"


@dataclass(frozen=True)
class Subject:
    """A kind of pair.

    Attributes:
        wraps: the backend; empty for the fake's own sleep of 1 ms.
        slower: planted loss of the second cell, as a share.
        pairs: how many, unless told otherwise.
        budget_s: seconds of measuring a pair.
        busy: whether another program runs beside.
        wanted: what the rate has to be consistent with.
    """

    wraps: str
    slower: float
    pairs: int
    budget_s: float
    busy: bool
    wanted: str


SUBJECTS = {
    "fake-aa": Subject("", 0.0, 200, 3.0, busy=False, wanted="winners at most 5 %"),
    "fake-3": Subject("", 0.03, 60, 3.0, busy=False, wanted="found 95 %"),
    "ort-aa": Subject("ort-cpu", 0.0, 40, 9.0, busy=False, wanted="winners at most 5 %"),
    "ort-3": Subject("ort-cpu", 0.03, 20, 20.0, busy=False, wanted="found as often as its intervals promise"),
    "ort-2": Subject("ort-cpu", 0.02, 10, 60.0, busy=False, wanted="found as often as its intervals promise"),
    "ort-1": Subject("ort-cpu", 0.01, 20, 20.0, busy=False, wanted="never reversed"),
    "busy": Subject("ort-cpu", 0.0, 10, 9.0, busy=True, wanted="no winner"),
}


@dataclass(frozen=True)
class Outcome:
    """What was said of one pair.

    Attributes:
        verdict: of the second cell against the first, or `void`.
        width: of the interval of their ratio.
        wall_s: seconds that it took.
    """

    verdict: RatioResult | str
    ratio: float
    width: float
    wall_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []], default=list(SUBJECTS))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--processes", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = export(Plan(forms=("standard",), batches=(1,), lengths=(128,), out=Path(folder)))
        artifact = Artifact.load((made.folder / made.record.artifacts[0].path).parent)
        for name in given.subjects:
            subject = SUBJECTS[name]
            outcomes: list[Outcome] = []
            try:
                for seed in range(given.pairs or subject.pairs):
                    outcomes.append(time_pair(artifact, subject, given.processes, seed))
                    show_progress(name, outcomes)
            finally:
                show(name, subject, outcomes)


def time_pair(artifact: Artifact, subject: Subject, processes: int, seed: int) -> Outcome:
    """Time two cells, and judge them."""
    began = time.perf_counter()
    plain = {"wraps": subject.wraps} if subject.wraps else {"sleep_s": 1e-3}
    case = artifact.manifest.cases[0].name
    cells = [
        Cell(
            artifact,
            get_runtime("fake"),
            case,
            Settings(threads=default_threads() if subject.wraps else 1, fake=behaviour),
            timed=True,
            by_name=True,
        )
        for behaviour in (plain, plain | ({"slower": subject.slower} if subject.slower else {}))
    ]
    timing = Timing(
        cells,
        processes=processes,
        budget_s=subject.budget_s,
        seed=seed,
        limits=Limits(120.0, None),
        worker_bytes=[2**28, 2**28],
        on_progress=lambda _step, _share: None,
    )
    with _neighbour(20.0 + 3.0 * subject.budget_s if subject.busy else 0.0):
        timing.measure()
    for measured in timing.timings:
        if measured.failure is not None:
            sys.exit(f"a cell failed: {measured.failure.reason}")
    first, second = (measured.medians_s() for measured in timing.timings)
    ratio, low, high, verdict = compare_latency(second, first)
    assert low is not None, "several processes a side"
    assert high is not None, "several processes a side"
    void = any(measured.why_void() for measured in timing.timings)
    return Outcome("void" if void else verdict, ratio, high / low - 1.0, time.perf_counter() - began)


@contextmanager
def _neighbour(seconds: float) -> Iterator[None]:
    """Keep a core busy meanwhile."""
    if not seconds:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", SPIN.format(seconds=seconds)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def show_progress(name: str, outcomes: Sequence[Outcome]) -> None:
    """Print the last pair on the error output."""
    last = outcomes[-1]
    figures = f"{last.verdict}, {last.ratio:.3f} (interval {last.width:.1%} wide), {last.wall_s:.0f} s"
    print(f"{name} {len(outcomes)}: {figures}", file=sys.stderr, flush=True)


def show(name: str, subject: Subject, outcomes: Sequence[Outcome]) -> None:
    """Print how often each verdict came, with the intervals of the rates."""
    from statistics import median

    from scipy.stats import binomtest

    if not outcomes:
        return
    counts = Counter(outcome.verdict for outcome in outcomes)
    wall_s, width = (median(getattr(outcome, part) for outcome in outcomes) for part in ("wall_s", "width"))
    print(f"{name}: {len(outcomes)} pairs, {wall_s:.0f} s each, intervals {width:.1%} wide; wanted: {subject.wanted}")
    kinds: dict[str, Callable[[Outcome], bool]] = {
        "found" if subject.slower else "false winners": lambda outcome: (
            outcome.verdict == "slower" if subject.slower else outcome.verdict in ("faster", "slower")
        )
    }
    if subject.slower:
        kinds["reversed"] = lambda outcome: outcome.verdict == "faster"
    for kind, test in kinds.items():
        hits = sum(map(test, outcomes))
        interval = binomtest(hits, len(outcomes)).proportion_ci(0.95, method="exact")
        rate = hits / len(outcomes)
        print(f"    {kind:14s} {hits:3d}  {rate:6.1%}  [{interval.low:.1%}, {interval.high:.1%}]")
    print("    " + ", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()), flush=True)


if __name__ == "__main__":
    main()
