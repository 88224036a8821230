import functools
import math

import numpy as np
import pytest

import crosshead.results as room

latency_record = functools.partial(room.latency_record, first_call_s=0.02, session_s=0.3, import_s=0.5)


def test_the_figures_come_from_processes_first_and_samples_second() -> None:
    rng = np.random.default_rng(0)
    samples = [(center * np.exp(0.01 * rng.normal(size=100))).tolist() for center in (1.0e-3, 1.1e-3, 1.3e-3)]
    record = latency_record(samples, calls_per_sample=4, host_to_device_s=1e-5, flops=2e9)
    medians = [float(np.median(values)) for values in samples]
    assert record.process_medians_s == pytest.approx(medians)
    assert record.median_s == pytest.approx(np.median(medians))
    assert record.ci_low_s is not None
    assert record.ci_high_s is not None
    assert record.ci_low_s < record.median_s < record.ci_high_s
    assert (record.samples, record.processes, record.calls_per_sample) == (300, 3, 4)
    assert record.min_s == min(map(min, samples))
    assert record.p95_s == pytest.approx(np.percentile(np.concatenate(samples), 95))
    assert record.gflop_s == pytest.approx(2.0 / record.median_s)
    assert (record.first_call_s, record.session_s, record.import_s) == (0.02, 0.3, 0.5)
    assert (record.host_to_device_s, record.device_to_host_s) == (1e-5, None)


def test_percentiles_without_support_say_what_is_missing() -> None:
    record = latency_record([[1e-3] * 50, [1e-3] * 50])
    assert record.p90_s == pytest.approx(1e-3)
    assert record.p95_s == pytest.approx(1e-3)
    assert (record.p99_s, record.p999_s) == (None, None)
    assert record.missing_samples == {"p99": 359, "p999": 4503}


def test_one_process_has_no_interval_and_empty_ones_do_not_count() -> None:
    record = latency_record([[], [1e-3, 2e-3, 3e-3], []])
    assert (record.processes, record.ci_low_s, record.ci_high_s) == (1, None, None)
    assert record.median_s == 2e-3
    assert record.gflop_s is None


def test_a_clock_that_stands_still_gives_no_interval_and_no_division_by_zero() -> None:
    record = latency_record([[0.0] * 10, [0.0] * 10], flops=1e9)
    assert (record.median_s, record.ci_low_s, record.gflop_s) == (0.0, None, None)


def test_no_samples_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="needs samples"):
        latency_record([[], []])


def test_all_figures_are_finite() -> None:
    record = latency_record([[1e-9, 10.0], [1e-9, 1e-9]])
    assert all(math.isfinite(value) for value in (record.median_s, record.ci_low_s or 0.0, record.ci_high_s or 0.0))
