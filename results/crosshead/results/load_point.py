"""The figures of one load, from the times of its requests."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crosshead.results.load_records import SpreadRecord
from crosshead.results.percentiles import PERCENTILES, percentile_or_missing

Floats = NDArray[np.float64]


class LoadSamples(NamedTuple):
    """Times in seconds from the start of a test, one entry a request, in the order of sending.

    Attributes:
        intended_s: when it was to be sent.
        started_s, ended_s: its call.
        idle: whether a worker stood idle for it.
    """

    intended_s: Floats
    started_s: Floats
    ended_s: Floats
    idle: NDArray[np.bool_]

    def counted(self, lead_s: float) -> "LoadSamples":
        """Return the requests that were to be sent from `lead_s` on."""
        kept = self.intended_s >= lead_s
        return LoadSamples(self.intended_s[kept], self.started_s[kept], self.ended_s[kept], self.idle[kept])

    @property
    def latency_s(self) -> Floats:
        """What a user waits: from the intended send time to the end of the call."""
        latency_s: Floats = self.ended_s - self.intended_s
        return latency_s

    @property
    def queue_s(self) -> Floats:
        """From the intended send time to the start of the call."""
        queue_s: Floats = self.started_s - self.intended_s
        return queue_s

    @property
    def service_s(self) -> Floats:
        """The call: what a client that measures from its actual send sees."""
        service_s: Floats = self.ended_s - self.started_s
        return service_s


def spread(times_s: Sequence[float] | Floats) -> SpreadRecord:
    """Return mean, largest, and the percentiles that so many times support.

    Raises:
        ValueError: there are none.
    """
    times = np.asarray(times_s, dtype=np.float64)
    if not times.size:
        raise ValueError("a spread needs times, got none")
    found = {name: percentile_or_missing(times, p) for name, p in {"median": 0.5, **PERCENTILES}.items()}
    return SpreadRecord(
        mean_s=float(times.mean()),
        max_s=float(times.max()),
        **{f"{name}_s": value for name, (value, _) in found.items()},
        missing_samples={name: missing for name, (_, missing) in found.items() if missing > 0},
    )


def figures(samples: LoadSamples, *, lead_s: float, window_s: float, workers: int, open_loop: bool) -> dict[str, Any]:
    """Return the figures of a `LoadPointRecord` by field.

    Args:
        samples: all that were answered, those before the lead included.
        lead_s: where counting starts.
        window_s: until when requests were sent.
        workers: calls that may run at the same time.
        open_loop: whether arrivals did not depend on the answers.

    Raises:
        ValueError: no request was counted, or the window holds nothing but the lead.
    """
    counted = samples.counted(lead_s)
    length_s = window_s - lead_s
    if not len(counted.intended_s) or length_s <= 0.0:
        raise ValueError("no request was counted")
    inside_s = np.minimum(samples.ended_s, window_s) - np.maximum(samples.started_s, lead_s)
    answers = np.count_nonzero((samples.ended_s > lead_s) & (samples.ended_s <= window_s))
    service, woken = spread(counted.service_s), counted.queue_s[counted.idle]
    return {
        "requests": len(counted.intended_s),
        "throughput_per_s": float(answers / length_s),
        "busy_share": float(np.maximum(0.0, inside_s).sum() / (workers * length_s)),
        "latency": spread(counted.latency_s),
        "queue": spread(counted.queue_s),
        "service": service,
        "expected_queue_s": (
            expected_queue_s(counted.service_s, len(counted.intended_s) / length_s)
            if open_loop and workers == 1
            else None
        ),
        "wake_median_s": percentile_or_missing(woken, 0.5)[0],
        "wake_p99_s": percentile_or_missing(woken, 0.99)[0],
    }


def expected_queue_s(service_s: Floats, rate_per_s: float) -> float | None:
    """Return the mean queueing time of one server under Poisson arrivals: rate · E[S²] / (2 (1 - rate · E[S])).

    Pollaczek and Khinchine's formula (Kleinrock 1975, "Queueing Systems", volume 1, section 5.6). Where every call
    takes the same time S it is that of M/D/1, u S / (2 (1 - u)) at utilisation u = rate · S.

    Args:
        service_s: seconds of the calls.
        rate_per_s: requests a second.

    Returns:
        None at a rate that the server cannot keep up with.
    """
    busy = rate_per_s * float(np.mean(service_s))
    if busy >= 1.0:
        return None
    return rate_per_s * float(np.mean(np.square(service_s))) / (2.0 * (1.0 - busy))
