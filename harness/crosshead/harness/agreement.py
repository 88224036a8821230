"""Every two cells of one case against each other: do they compute the same function?"""

import math
from collections.abc import Mapping, Sequence

from crosshead.export.artifact import Artifact, CaseRecord, Readable, open_arrays
from crosshead.export.error import relative_l2_both
from crosshead.harness.accuracy import Visit
from crosshead.harness.padding import Positions, padded_positions, unpadded
from crosshead.harness.randomness import NOISE_TIMES
from crosshead.results import AgreementRecord, NoiseRecord

AGREEMENT_TIMES = 10.0
"""Two backends are the same when the error between them is at most so many yardsticks."""


def agreements(
    visits: Sequence[Visit], artifacts: Mapping[str, Artifact], noise: Sequence[NoiseRecord] = ()
) -> list[AgreementRecord]:
    """Hold every two cells of one case and precision against each other.

    They agree where the error between them is at most 10 yardsticks, or what the two differ from themselves by: when
    they are run again, and with another number of threads.

    Args:
        visits: of all cells.
        artifacts: as they stand now, by id.
        noise: the noise floors that were measured.
    """
    floors = {(f"{each.backend}/{each.artifact}", each.case): each.other_threads or 0.0 for each in noise}
    found: list[AgreementRecord] = []
    ready = [visited for visited in visits if visited.outputs is not None]
    for index, a in enumerate(ready):
        first = open_arrays(a.outputs) if a.outputs is not None else {}
        for b in ready[index + 1 :]:
            same_precision = a.cell.artifact.manifest.precision == b.cell.artifact.manifest.precision
            if a.cell.case != b.cell.case or not same_precision or b.outputs is None:
                continue
            artifact = artifacts[a.cell.artifact.id]
            padded = padded_positions(artifact, a.cell.case, first)
            floor = sum(_finite(floors.get((each.cell.label, each.cell.case), 0.0)) for each in (a, b))
            record = _agreement(a, b, first, open_arrays(b.outputs), artifact.case(a.cell.case), padded, floor)
            if record is not None:
                found.append(record)
    return found


def _agreement(
    a: Visit,
    b: Visit,
    first: Mapping[str, Readable],
    second: Mapping[str, Readable],
    case: CaseRecord,
    padded: Mapping[str, Positions],
    floor: float,
) -> AgreementRecord | None:
    found: list[tuple[float, float, float, bool]] = []  # yardsticks, error, noise, whether it agrees
    for name, got in first.items():
        other = second.get(name)
        yardstick = case.yardsticks.get(name)
        if other is None or yardstick is None or other.shape != got.shape:
            continue
        error, _ = relative_l2_both(got, other, unpadded(padded.get(name)))
        yard = max(yardstick.sensitivity, yardstick.native or 0.0, yardstick.unit_roundoff / 2)
        repeat = _finite(a.noise.get(name, 0.0)) + _finite(b.noise.get(name, 0.0))
        noise = max(repeat, floor, NOISE_TIMES * case.noise.get(name, 0.0))
        found.append((error / yard, error, noise, error <= max(AGREEMENT_TIMES * yard, noise)))
    if not found:
        return None
    yardsticks, error, noise, _ = max(found)
    return AgreementRecord(
        a=a.cell.label,
        b=b.cell.label,
        case=case.name,
        error=error,
        yardsticks=yardsticks,
        noise=noise,
        verdict="pass" if all(agrees for *_, agrees in found) else "fail",
    )


def _finite(noise: float) -> float:
    """Return a floor; nothing where it is infinite, since that would excuse everything."""
    return noise if math.isfinite(noise) else 0.0
