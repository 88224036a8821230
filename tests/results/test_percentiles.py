import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosshead.results import percentile_or_missing, samples_needed


@pytest.mark.parametrize(("p", "needed"), [(0.5, 7), (0.9, 44), (0.95, 90), (0.99, 459), (0.999, 4603)])
def test_published_counts_follow_from_the_rule(p: float, needed: int) -> None:
    assert samples_needed(p) == needed


@given(st.floats(0.01, 0.9999), st.floats(0.5, 0.9999))
def test_it_is_the_smallest_count_that_is_sure_enough(p: float, confidence: float) -> None:
    n = samples_needed(p, confidence)
    assert 1.0 - p**n >= confidence - 1e-12
    assert n == 1 or 1.0 - p ** (n - 1) < confidence + 1e-12


def test_samples_of_that_count_reach_the_percentile_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    largest = rng.uniform(size=(20_000, samples_needed(0.9))).max(axis=1)  # (draws,)
    assert np.mean(largest >= 0.9) == pytest.approx(0.99, abs=0.003)


def test_a_percentile_is_given_from_the_last_needed_sample_on() -> None:
    samples = [float(value) for value in range(459)]
    assert percentile_or_missing(samples[:-1], 0.99) == (None, 1)
    value, missing = percentile_or_missing(samples, 0.99)
    assert missing == 0
    assert value == pytest.approx(np.percentile(samples, 99))


def test_no_samples_miss_all_of_them() -> None:
    assert percentile_or_missing([], 0.5) == (None, 7)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, 99.0])
def test_a_quantile_outside_its_range_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        samples_needed(p)
