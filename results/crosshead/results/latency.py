"""The latency of a cell from the raw samples of its processes."""

from collections.abc import Sequence
from typing import Any

from crosshead.results.percentiles import PERCENTILES, percentile_or_missing
from crosshead.results.records import LatencyRecord, PeakRecord, SurroundingsRecord
from crosshead.results.roofline import roofline
from crosshead.results.statistics import median, median_interval


def latency_record(
    samples_s: Sequence[Sequence[float]],
    *,
    first_call_s: float,
    session_s: float,
    import_s: float,
    calls_per_sample: int = 1,
    steady: bool = True,
    settled: bool = False,
    host_to_device_s: float | None = None,
    device_to_host_s: float | None = None,
    compile_s: float | None = None,
    compile_cached_s: float | None = None,
    flops: float | None = None,
    moved_bytes: float | None = None,
    peak: PeakRecord | None = None,
    surroundings: SurroundingsRecord | None = None,
) -> LatencyRecord:
    """Derive a cell's latency.

    Args:
        samples_s: by process, seconds a call; a process without samples is left out.
        first_call_s: seconds of the very first call.
        session_s: seconds of loading the artifact.
        import_s: seconds of importing the backend's library, NumPy included.
        calls_per_sample: calls that each sample is the mean of.
        steady: whether every process reached a steady state in its warm-up.
        settled: whether the interval came within ±1 % of the median.
        host_to_device_s: seconds of copying the inputs; None where nothing is copied.
        device_to_host_s: seconds of copying the outputs back; None where nothing is copied.
        compile_s: seconds of compiling in the first process; None where the backend does not compile.
        compile_cached_s: the same in later processes, from the run's cache.
        flops: floating-point operations of one call; None where they are not known.
        moved_bytes: bytes that one call has to move; None where they are not known.
        peak: what the machine can do at this precision; None where it was not measured.
        surroundings: what went on around the turns.

    Raises:
        ValueError: there are no samples.
    """
    timed = [samples for samples in samples_s if len(samples) > 0]
    if not timed:
        raise ValueError("a latency needs samples, got none")
    medians = [median(samples) for samples in timed]
    middle = median(medians)
    # A process whose clock did not advance has a median of 0, and no logarithm to draw an interval from.
    interval = median_interval(medians) if min(medians) > 0.0 else None
    low, high = interval if interval is not None else (None, None)
    pooled = [sample for samples in timed for sample in samples]
    percentiles = {name: percentile_or_missing(pooled, p) for name, p in PERCENTILES.items()}
    values: dict[str, Any] = {f"{name}_s": value for name, (value, _) in percentiles.items()}
    return LatencyRecord(
        median_s=middle,
        ci_low_s=low,
        ci_high_s=high,
        min_s=min(pooled),
        **values,
        missing_samples={name: missing for name, (_, missing) in percentiles.items() if missing > 0},
        samples=len(pooled),
        calls_per_sample=calls_per_sample,
        processes=len(timed),
        process_medians_s=medians,
        first_call_s=first_call_s,
        session_s=session_s,
        import_s=import_s,
        steady=steady,
        settled=settled,
        host_to_device_s=host_to_device_s,
        device_to_host_s=device_to_host_s,
        compile_s=compile_s,
        compile_cached_s=compile_cached_s,
        surroundings=surroundings,
        **roofline(middle, flops=flops, moved_bytes=moved_bytes, peak=peak)._asdict(),
    )
