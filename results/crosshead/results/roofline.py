"""How near a latency comes to what the machine can do: the roofline model.

A call needs at least the time that its arithmetic takes at the machine's best product rate, and at least the time that
its inputs, outputs and weights take to move at its best copying rate; the larger of the two is the limit.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52 (4).
"""

from typing import NamedTuple

from crosshead.results.records import Bound, PeakRecord


class Roofline(NamedTuple):
    """Where a latency stands under the roofline.

    Attributes:
        gflop_s: arithmetic over the latency, in 10^9 operations a second; None where the arithmetic is not known.
        gbyte_s: bytes that have to move over the latency, in 10^9 a second; None where they are not known.
        limit_share: the limit's time over the latency; about 1 at most, since peaks are measured, too. None without a
            limit.
        bound: which of the two limits is the later one; None without a limit.
    """

    gflop_s: float | None = None
    gbyte_s: float | None = None
    limit_share: float | None = None
    bound: Bound | None = None


def roofline(
    latency_s: float, *, flops: float | None = None, moved_bytes: float | None = None, peak: PeakRecord | None = None
) -> Roofline:
    """Set a latency under the roofline.

    Args:
        latency_s: seconds a call; nothing is said of 0.
        flops: floating-point operations of one call.
        moved_bytes: bytes that one call has to move.
        peak: the machine's peaks; without it there is no limit.
    """
    if latency_s <= 0.0:
        return Roofline()
    gflop_s = flops / latency_s / 1e9 if flops is not None else None
    gbyte_s = moved_bytes / latency_s / 1e9 if moved_bytes is not None else None
    shares: dict[Bound, float] = {}
    if gflop_s is not None and peak is not None and peak.gflop_s:
        shares["compute"] = gflop_s / peak.gflop_s
    if gbyte_s is not None and peak is not None and peak.gbyte_s:
        shares["memory"] = gbyte_s / peak.gbyte_s
    bound = max(shares, key=lambda name: shares[name], default=None)
    return Roofline(gflop_s, gbyte_s, None if bound is None else shares[bound], bound)
