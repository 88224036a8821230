from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from crosshead.results import sample_notices

Floats = NDArray[np.float64]


def healthy(rng: np.random.Generator, count: int = 200, spread: float = 0.02, memory: float = 0.6) -> list[Floats]:
    """Five processes on a quiet machine: 1.5 % apart, correlated and skewed samples, half a percent of pauses."""
    processes = []
    for _ in range(5):
        noise = rng.normal(size=count)
        for i in range(1, count):
            noise[i] = memory * noise[i - 1] + np.sqrt(1.0 - memory**2) * noise[i]
        samples = 1e-3 * np.exp(0.015 * rng.normal() + spread * noise) * (1.0 + rng.exponential(spread, size=count))
        paused = rng.uniform(size=count) < 0.005
        samples[paused] *= 1.0 + rng.exponential(1.0, size=int(paused.sum()))
        processes.append(samples)
    return processes


def codes(processes: list[Floats], *, on_gpu: bool = False) -> list[str]:
    return [notice.code for notice in sample_notices([p.tolist() for p in processes], where="a cell", on_gpu=on_gpu)]


@pytest.mark.parametrize(("count", "spread"), [(40, 0.02), (200, 0.005), (200, 0.04), (1000, 0.02)])
def test_healthy_samples_seldom_raise_an_alarm(count: int, spread: float) -> None:
    rng = np.random.default_rng(0)
    trials = 60
    alarms = Counter(code for _ in range(trials) for code in codes(healthy(rng, count, spread)))
    assert alarms.total() <= 0.05 * trials, alarms


def test_a_trend_is_seen_with_its_size_and_direction() -> None:
    rng = np.random.default_rng(1)
    warming = [samples * np.linspace(1.0, 1.10, samples.size) for samples in healthy(rng)]
    (notice,) = sample_notices([samples.tolist() for samples in warming], where="ort-cpu/standard")
    assert (notice.code, notice.where) == ("trend", "ort-cpu/standard")
    size = float(notice.message.split("%")[0].split()[-1])
    assert size == pytest.approx(10.0, abs=2.5)
    assert "slower" in notice.message
    assert "faster" in sample_notices([samples[::-1].tolist() for samples in warming], where="")[0].message


def test_a_trend_too_small_to_matter_is_not_mentioned() -> None:
    rng = np.random.default_rng(2)
    assert codes([samples * np.linspace(1.0, 1.01, samples.size) for samples in healthy(rng, 1000, 0.005)]) == []


def test_two_speeds_are_seen_with_both_of_them() -> None:
    rng = np.random.default_rng(3)
    processes = healthy(rng, 400, 0.01)
    processes[2] *= np.where(np.arange(400) % 50 < 20, 1.3, 1.0)  # another program's turns
    found = {notice.code: notice for notice in sample_notices([p.tolist() for p in processes], where="")}
    notice = found["bimodal"]
    assert "1 of 5 processes" in notice.message
    assert "40% in the slower one" in notice.message


def test_two_speeds_nearer_than_anybody_cares_are_not_mentioned() -> None:
    rng = np.random.default_rng(4)
    processes = [1e-3 * np.where(rng.uniform(size=400) < 0.5, 1.0, 1.02) * np.exp(1e-3 * rng.normal(size=400))]
    assert codes(processes) == []


def test_many_interruptions_are_outliers_and_noise() -> None:
    rng = np.random.default_rng(5)
    processes = healthy(rng, 400)
    for samples in processes:
        samples[rng.uniform(size=400) < 0.12] *= 1.5
    assert {"outliers", "noisy-machine"} <= set(codes(processes))


def test_outliers_are_counted_where_more_than_half_the_samples_are_equal() -> None:
    samples = np.array([1e-3] * 90 + [1e-2] * 10)
    assert "outliers" in codes([samples])


def test_clock_ticks_alone_are_no_disturbance() -> None:
    rng = np.random.default_rng(6)
    assert codes([np.round(samples, 5) for samples in healthy(rng, 400, 0.01)]) == []  # ticks of one percent


def test_a_gpu_is_held_to_less_variation() -> None:
    rng = np.random.default_rng(7)
    processes = [1e-3 * np.exp(0.04 * rng.normal(size=300)) for _ in range(5)]
    assert codes(processes) == []
    assert codes(processes, on_gpu=True) == ["noisy-machine"]


@pytest.mark.parametrize("samples", [[], [[]], [[1e-3] * 19], [[0.0] * 100]])
def test_too_few_samples_or_a_clock_that_stands_still_say_nothing(samples: list[list[float]]) -> None:
    assert sample_notices(samples, where="") == []
