"""Which backends leave the range of fp16, and on what."""

from collections.abc import Sequence

from crosshead.harness.accuracy import Visit
from crosshead.results import CellRecord, Notice

CODE = "fp16-overflow"


def overflow_notices(visits: Sequence[Visit]) -> list[Notice]:
    """Say for each case in fp16 who has NaN or Inf that the oracle has not, who has none, and where it begins.

    Args:
        visits: judged; the manifest of an fp16 artifact says by a notice what does not fit.
    """
    half = [visited for visited in visits if visited.cell.artifact.manifest.precision == "fp16" and visited.outputs]
    notices = []
    for case in dict.fromkeys(visited.cell.case for visited in half):
        here = [visited for visited in half if visited.cell.case == case]
        broken = [f"{_side(visited)} ({_count(visited.record)})" for visited in here if _count(visited.record)]
        if not broken:
            continue
        sound = [_side(visited) for visited in here if not _count(visited.record)]
        nodes = dict.fromkeys(
            notice.where for visited in here for notice in visited.cell.artifact.manifest.notices if notice.code == CODE
        )
        cause = (
            f"{' or '.join(nodes)} goes beyond 65504, so fp16 does not hold for this model; try bf16 or fp32"
            if nodes
            else "no value of the graph goes beyond 65504 in float64, so it happens inside those backends' kernels"
        )
        others = f"; none: {', '.join(sound)}" if sound else ""
        message = f"NaN or Inf that the oracle has not: {', '.join(broken)}{others}; {cause}"
        notices.append(Notice(code=CODE, message=message, where=f"case {case} in fp16"))
    return notices


def _side(visited: Visit) -> str:
    runtime, manifest = visited.cell.runtime, visited.cell.artifact.manifest
    return runtime.name if runtime.capabilities.executes == "module" else f"{runtime.name} {manifest.form}"


def _count(record: CellRecord) -> str:
    """Return how many NaN and Inf stand where the oracle has none; empty when there are none."""
    nan = sum(max(0, output.nan - output.expected_nan) for output in record.outputs)
    inf = sum(max(0, output.inf - output.expected_inf) for output in record.outputs)
    return " and ".join(f"{number} {what}" for number, what in ((nan, "NaN"), (inf, "Inf")) if number)
