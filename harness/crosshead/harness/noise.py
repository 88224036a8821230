"""A backend against itself: the floor below which its difference to others means nothing."""

import dataclasses
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Final

import msgspec
import numpy as np

from crosshead.export.artifact import Readable, open_arrays
from crosshead.export.error import relative_l2
from crosshead.export.pair import Pair, in_memory
from crosshead.harness.accuracy import Visit
from crosshead.harness.examine import Findings, Subject
from crosshead.harness.metrics import is_floating
from crosshead.harness.runner import Runner
from crosshead.harness.signature import Signature, take
from crosshead.results import NoiseRecord, scrub
from crosshead.runtimes import BackendError, WorkerError

_Arrays = Mapping[str, Readable]

ONE_WORKER: Final = ("onnx-reference", "fake")
"""Backends that NumPy computes for; its threads are not asked about."""


def measure_noise(subject: Subject) -> Findings:
    """Hold each case against itself: repeated, in another batch, and with another number of threads."""
    with ExitStack() as stack:
        other = _other_threads(subject, stack)
        return Findings(noise=[_measured(subject, visited, other) for visited in subject.visits])


def _other_threads(subject: Subject, stack: ExitStack) -> Runner | None:
    """Bring up a worker with one thread, or two where one is the setting; None where threads do not matter."""
    cell = subject.cell
    if (
        cell.runtime.name in ONE_WORKER
        or cell.runtime.capabilities.device != "cpu"
        or cell.runtime.capabilities.compiles
    ):
        return None
    threads = 2 if cell.settings.threads == 1 else 1
    settings = msgspec.structs.replace(cell.settings, threads=threads)
    runner = stack.enter_context(Runner(dataclasses.replace(cell, settings=settings), subject.limits, subject.scratch))
    with suppress(WorkerError):  # whoever asks it is told
        runner.start()
    return runner


def _measured(subject: Subject, visited: Visit, other: Runner | None) -> NoiseRecord:
    assert visited.outputs is not None, "only cells that ran are examined"
    here = open_arrays(visited.outputs)
    said = []
    batch, why = _other_batch(subject, visited, here)
    said.append(why)
    threads = None
    if other is not None:
        try:
            threads = apart(other.run_file(subject.artifact.inputs_path(visited.cell.case)), here)
            said.append(f"{visited.cell.settings.threads} threads against {other.cell.settings.threads}")
        except (BackendError, WorkerError) as error:
            said.append(f"other threads: {' '.join(str(error).split())}")
    return NoiseRecord(
        artifact=subject.artifact.id,
        backend=subject.cell.runtime.name,
        case=visited.cell.case,
        repeat=max(visited.noise.values(), default=None),
        other_batch=batch,
        other_threads=threads,
        detail=scrub("; ".join(part for part in said if part)),
    )


def _other_batch(subject: Subject, visited: Visit, here: _Arrays) -> tuple[float | None, str]:
    """Return how far a row of the batch moves when the batch is another one, and what was held against what."""
    signature = Signature.of(subject.artifact.manifest)
    batch = signature.batch
    if batch is None:
        return None, "no axis is known to be the batch"
    if subject.cell.runtime.capabilities.compiles:
        return None, "another batch size would be compiled for"
    inputs = subject.artifact.inputs(visited.cell.case)
    size = signature.size(inputs, batch)
    if not size:
        return None, "the batch is empty"
    row = signature.take(inputs, batch, [0] if size > 1 else [0, 0])
    try:
        there = subject.runner.outputs(row)
    except (BackendError, WorkerError) as error:
        return None, f"another batch size: {' '.join(str(error).split())}"
    found = {}
    for spec in signature.outputs:
        if batch in spec.shape and spec.name in here:
            found[spec.name] = (
                take(there[spec.name], spec, batch, [0]),
                take(in_memory(here[spec.name]), spec, batch, [0]),
            )
    if not found:
        return None, "no output has the batch"
    pairs = {name: pair[0] for name, pair in found.items()}, {name: pair[1] for name, pair in found.items()}
    return apart(*pairs), f"batch {size} against {1 if size > 1 else 2}"


def apart(got: _Arrays, want: _Arrays) -> float:
    """Return the largest relative L2 distance over outputs; infinite where shapes or whole numbers differ."""
    largest = 0.0
    for name, array in want.items():
        other = got.get(name)
        if other is None or other.shape != array.shape:
            return math.inf
        if is_floating(array):
            largest = max(largest, relative_l2(other, array))
        elif any(np.any(block.got != block.want) for block in Pair(other, array).blocks()):
            return math.inf
    return largest
