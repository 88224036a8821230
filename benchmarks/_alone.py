"""One process that loops one bound call and prints its median, seconds a call: the plainest timing there is.

Usage: _alone.py ARTIFACT CASE THREADS SECONDS BACKEND [BACKEND ...]

With one backend this is "each run alone". With several they take turns, call by call, in this one process, which is how
a naive script compares runtimes; one median is printed for each.
"""

import statistics
import sys
import time
from pathlib import Path

from crosshead.export.artifact import Artifact
from crosshead.runtimes import Settings, get_runtime


def main() -> None:
    """Warm up for a second each, then loop and print the medians."""
    folder, case, threads, seconds, *backends = sys.argv[1:]
    artifact = Artifact.load(Path(folder))
    inputs = artifact.inputs(case)
    settings = Settings(threads=int(threads))
    steps = [get_runtime(name).open(artifact, settings).bind(inputs) for name in backends]
    samples: list[list[float]] = [[] for _ in steps]
    for step in steps:
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:
            step()
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        for step, times in zip(steps, samples, strict=True):
            before = time.perf_counter_ns()
            step()
            times.append((time.perf_counter_ns() - before) * 1e-9)
    print(*(statistics.median(times) for times in samples))


if __name__ == "__main__":
    main()
