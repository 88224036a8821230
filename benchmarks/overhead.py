"""How much longer does a run take than what it cannot do without, and where does the rest go?

    .venv/bin/python benchmarks/overhead.py [--time-budget 20] [-- OPTIONS OF crosshead run]

Starts `crosshead run` as a person would, takes the wall time of the process from outside, and the phases that the run
itself recorded. Needed are: importing PyTorch and the backends' libraries (NumPy among them), exporting and proving the
graphs, loading sessions, and the measuring that was asked for. Everything else is overhead, and is named.

What the imports and loads of the timed processes take is told in two ways. One after the other: each process as long
as its backend's cold start took with nothing beside it. As it went: the wall time while they came up, which is shorter,
since some start beside each other. The first is what the steps cost by themselves; the second is the stricter one.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from crosshead.results import RunRecord, read_run

NEEDED = {
    "imports": ("import_torch", "visit_import", "workers_import"),
    "exports": ("load", "export", "float64"),
    "session loads": ("visit_session", "workers_session", "compile"),
}
TARGET = 1.1


def main() -> None:
    """Run, and print the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-budget", type=float, default=20.0)
    parser.add_argument("options", nargs="*", help="options of `crosshead run`, after --")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "crosshead", "run", *given.options, "--quiet"]
        command += ["--time-budget", str(given.time_budget), "--out", folder]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.perf_counter() - began
        runs = [path for path in Path(folder).iterdir() if path.is_dir()]
        if len(runs) != 1:
            raise SystemExit(done.stderr)
        show(read_run(runs[0]), wall_s, given.time_budget)


def show(record: RunRecord, wall_s: float, budget_s: float) -> None:
    """Print what was needed, what was not, and the ratio.

    Args:
        record: of the run.
        wall_s: seconds of the whole process, seen from outside.
        budget_s: seconds of measuring that were asked for.
    """
    phases_s = dict(record.phases_s)
    measured_s = phases_s.pop("measure", 0.0) + phases_s.pop("warm_up", 0.0)  # the budget is of both
    needed_s = {name: sum(phases_s.pop(phase, 0.0) for phase in phases) for name, phases in NEEDED.items()} | {
        "asked measuring": min(measured_s, budget_s)
    }
    rest_s = {
        **phases_s,
        "measuring beyond the budget": max(0.0, measured_s - budget_s),
        "command start and end": wall_s - (record.wall_s or 0.0),
    }
    total_s = sum(needed_s.values())
    for title, parts_s in (("needed, as it went", needed_s), ("overhead", rest_s)):
        print(f"{title:34} {sum(parts_s.values()):7.2f} s")
        for name, part_s in sorted(parts_s.items(), key=lambda entry: -entry[1]):
            print(f"    {name:30} {part_s:7.2f} s   {part_s / total_s:6.1%} of what is needed")
    apart_s = total_s + _hidden_s(record)
    print(f"{'wall time':34} {wall_s:7.2f} s")
    print(f"    {wall_s / apart_s:.2f} times what is needed one after the other, {apart_s:.2f} s ({TARGET} is wanted)")
    print(f"    {wall_s / total_s:.2f} times what is needed as it went, {total_s:.2f} s")


def _hidden_s(record: RunRecord) -> float:
    """Return seconds of importing and loading in timed processes that are not seen, since some came up together."""
    alone_s = sum(
        cell.latency.processes * (cell.latency.import_s + cell.latency.session_s)
        for cell in record.cells
        if cell.latency is not None
    )
    return alone_s - record.phases_s.get("workers_import", 0.0) - record.phases_s.get("workers_session", 0.0)


if __name__ == "__main__":
    main()
