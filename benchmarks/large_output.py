"""What does it cost to compare one large output: how many copies of it are in memory, and for how long?

    .venv/bin/python benchmarks/large_output.py [--mebibytes 1024]

Writes an output in float32 and its oracle in float64 as a worker and an artifact have them on disk, judges the one by
the other as `compare` does, and reads the resident size of this process beside it. A copy is the size of the float32
output. The files, three copies together, go to the folder for temporary files.
"""

import argparse
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from crosshead.export.artifact import Readable, Yardstick, open_arrays, write_arrays
from crosshead.export.error import relative_l2
from crosshead.harness.judge import judge_output

ROW = 1024
YARDSTICK = Yardstick(sensitivity=1e-7, sensitivity_row=1e-7, unit_roundoff=2.0**-24)


def main() -> None:
    """Write, judge, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    given = parser.parse_args()
    rows = given.mebibytes * 2**20 // (4 * ROW)
    with tempfile.TemporaryDirectory() as folder:
        judge(_written(Path(folder), "small", ROW))  # imports, and what an allocator keeps
        large = _written(Path(folder), "large", rows)
        output_bytes = 4 * rows * ROW
        for name, work in (("judge", judge), ("agreement", agree)):
            base = psutil.Process().memory_info().rss
            began = time.perf_counter()
            peak = max(_resident_while(lambda work=work: work(large)), default=base)
            spent_s = time.perf_counter() - began
            print(f"{name}: {(peak - base) / output_bytes:.3f} copies above {base / 2**20:.0f} MiB, {spent_s:.1f} s")


def judge(arrays: dict[str, Readable]) -> None:
    """Hold an output against its oracle."""
    record = judge_output(
        "y", arrays["got"], arrays["want"], expected_dtype="float32", yardstick=YARDSTICK, use_native=False
    )
    assert record.verdict == "pass", record.reason


def agree(arrays: dict[str, Readable]) -> None:
    """Hold the outputs of two backends against each other."""
    assert math.isfinite(relative_l2(arrays["got"], arrays["got"]))


def _written(folder: Path, name: str, rows: int) -> dict[str, Readable]:
    """Write the pair in pieces of their own seeds, so that this process never holds it."""
    for side, dtype in (("got", np.float32), ("want", np.float64)):
        array = np.memmap(folder / f"{name}.{side}", dtype, "w+", shape=(rows, ROW))
        for begins in range(0, rows, ROW):
            piece = np.random.default_rng(begins).standard_normal((min(ROW, rows - begins), ROW))
            array[begins : begins + len(piece)] = piece
        write_arrays(folder / f"{name}-{side}.npz", {side: array})
        del array
        (folder / f"{name}.{side}").unlink()
    return {side: open_arrays(folder / f"{name}-{side}.npz")[side] for side in ("got", "want")}


def _resident_while(work: object) -> Iterator[int]:
    assert callable(work)
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        yield psutil.Process().memory_info().rss
        time.sleep(0.005)


if __name__ == "__main__":
    main()
