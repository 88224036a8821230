"""How resident memory grows when a graph is called with many lengths: one worker a cell, asked for by `--growth N`."""

from crosshead.harness.accuracy import Limits, launch
from crosshead.harness.cells import Cell
from crosshead.results import GrowthRecord, Notice, scrub
from crosshead.runtimes import BackendError, WorkerError

GROWTH_LIMIT_BYTES = 50_000_000
"""More than this is said in a notice."""


def measure_growth(cell: Cell, *, calls: int, seed: int, limits: Limits) -> tuple[GrowthRecord | None, list[Notice]]:
    """Call a cell's graph with many lengths in a worker of its own, with nothing beside it.

    Args:
        cell: of a backend that executes graphs.
        calls: how many.
        seed: of the lengths and their order.
        limits: of the worker.

    Returns:
        What was read, or None where it could not be; and notices that say so.
    """
    where = f"{cell.label} {cell.case}"
    try:
        with launch(cell, limits) as worker:
            worker.start()
            grown = worker.grow(cell.artifact.inputs_path(cell.case), calls, seed)
    except (BackendError, WorkerError) as error:
        message = f"memory growth is not known: {scrub(' '.join(str(error).split()))}"
        return None, [Notice(code="growth-unknown", message=message, where=where)]
    record = GrowthRecord(
        calls=grown.calls,
        shapes=grown.shapes,
        axes=grown.axes,
        rss_start_bytes=grown.rss_start_bytes,
        rss_end_bytes=grown.rss_end_bytes,
        idle_bytes=grown.idle_bytes,
        new_shape_call_s=grown.new_shape_call_s,
        repeat_call_s=grown.repeat_call_s,
    )
    grew_bytes = record.rss_end_bytes - record.rss_start_bytes
    if grew_bytes <= GROWTH_LIMIT_BYTES:
        return record, []
    message = (
        f"over {record.calls} calls with {record.shapes} lengths the process kept {grew_bytes / 1e6:.0f} MB more than "
        "before; for ONNX Runtime, --setting arena_shrinkage=on or memory_pattern=off keeps less"
    )
    return record, [Notice(code="memory-growth", message=message, where=where)]
