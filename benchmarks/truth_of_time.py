"""Does crosshead's median agree with the same call looped alone?

    .venv/bin/python benchmarks/truth_of_time.py [--processes 5] [--rounds 2]

For each backend and case of the default block, side by side and in turns:

    alone      the call looped in a fresh process with nothing else running, so many processes
    alone again  the same once more: how far two equal measurements differ by themselves (A/A)
    crosshead  `bench`, all cells together
    4 kB pages   alone, but without huge pages
    naive      all backends in one process, in turns

Printed are ratios to `alone`, with their intervals over processes (Welch's t on log medians).
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from crosshead.harness import Plan, bench, export
from crosshead.harness.plan import default_threads
from crosshead.results import compare_latency, median
from crosshead.runtimes import Settings
from crosshead.runtimes._environment import child_environment

BACKENDS = ("torch-eager", "ort-cpu")
BATCHES, LENGTH = (1, 8), 128
ALONE_S = 1.0
KINDS = ("alone", "alone again", "4 kB pages", "naive")

Medians = dict[tuple[str, str, str], list[float]]
"""By kind, backend and case: one median a process, seconds a call."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    threads = default_threads()
    found: Medians = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        made = export(Plan(forms=("standard",), batches=BATCHES, lengths=(LENGTH,), out=out / "export"))
        artifact = made.folder / Path(made.record.artifacts[0].path).parent
        for number in range(given.rounds):
            processes = _share(given.processes, given.rounds, number)
            measure_alone(found, artifact, threads, processes, seed=number)
            measure_crosshead(found, made.folder, out / "runs", processes, seed=number)
    show(found)


def _share(total: int, rounds: int, number: int) -> int:
    return total // rounds + (number < total % rounds)


def measure_alone(found: Medians, artifact: Path, threads: int, processes: int, seed: int) -> None:
    """Loop in fresh processes, kinds and backends in shuffled order."""
    jobs = [
        (kind, backend, f"{batch}x{LENGTH}")
        for kind in KINDS
        for backend in (BACKENDS if kind != "naive" else ("all",))
        for batch in BATCHES
        for _ in range(processes)
    ]
    random.Random(seed).shuffle(jobs)
    for count, (kind, backend, case) in enumerate(jobs):
        print(f"\r{count + 1}/{len(jobs)} {kind} {backend} {case}          ", end="", file=sys.stderr)
        names = BACKENDS if kind == "naive" else (backend,)
        command = [sys.executable, str(Path(__file__).with_name("_alone.py")), str(artifact), case]
        command += [str(threads), str(ALONE_S), *names]
        settings = Settings(threads=threads, huge_pages=kind != "4 kB pages")
        environment = child_environment(settings) if kind != "naive" else dict(os.environ)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for name, value in zip(names, done.stdout.split(), strict=True):
            found[kind, name, case].append(float(value))
    print(file=sys.stderr)


def measure_crosshead(found: Medians, source: Path, out: Path, processes: int, seed: int) -> None:
    """Measure all cells together, as `crosshead bench` does."""
    budget_s = ALONE_S * processes * len(BACKENDS) * len(BATCHES)
    plan = Plan(source=str(source), backends=BACKENDS, processes=processes, time_budget_s=budget_s, seed=seed, out=out)
    for cell in bench(plan).record.cells:
        if cell.latency is None:
            raise SystemExit(f"{cell.label} {cell.case}: {cell.reason}")
        found["crosshead", cell.backend, cell.case] += cell.latency.process_medians_s


def show(found: Medians) -> None:
    """Print the ratios."""
    print(f"{'backend':12} {'case':6} {'alone':>9}   " + "   ".join(f"{kind:^24}" for kind in _compared()))
    for backend in BACKENDS:
        for batch in BATCHES:
            case = f"{batch}x{LENGTH}"
            alone = found["alone", backend, case]
            line = f"{backend:12} {case:6} {median(alone) * 1e3:6.3f} ms"
            for kind in _compared():
                ratio, low, high, _ = compare_latency(found[kind, backend, case], alone)
                interval = f"[{low:.3f}, {high:.3f}]" if low is not None else ""
                line += f"   {ratio:7.3f} {interval:16}"
            print(line)


def _compared() -> tuple[str, ...]:
    return ("alone again", "crosshead", "4 kB pages", "naive")


if __name__ == "__main__":
    main()
