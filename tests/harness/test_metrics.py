"""Every figure of a comparison, against values worked out by hand or by NumPy."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from crosshead.harness.metrics import is_floating, measure_error

ordinary = st.one_of(st.just(0.0), st.floats(1e-6, 1e3), st.floats(-1e3, -1e-6))


def test_an_exact_output_has_no_error() -> None:
    want = np.arange(6.0).reshape(2, 3)
    found = measure_error(want.astype(np.float32), want)
    assert found["max_abs"] == found["max_rel"] == found["rel_l2"] == found["rel_l2_row"] == 0.0
    assert found["cosine_distance"] == pytest.approx(0.0, abs=1e-15)
    assert found["snr_db"] is None
    assert found["ulp"].max == 0.0
    assert found["histogram"].zeros == 6


def test_the_worst_element_is_named() -> None:
    want = np.ones((2, 3))
    got = want.astype(np.float32)
    got[1, 2] = 1.5
    worst = measure_error(got, want)["worst"]
    assert (worst.index, worst.got, worst.want) == ([1, 2], 1.5, 1.0)


def test_one_unit_in_the_last_place_is_one_ulp() -> None:
    want = np.array([1.0, 2.0, 3.0, 1000.0])
    got = np.nextafter(want.astype(np.float32), np.float32(np.inf))
    ulp = measure_error(got, want)["ulp"]
    assert ulp.median == ulp.max == 1.0


def test_ulp_is_counted_in_the_output_dtype() -> None:
    want = np.array([1.0, 1.0])
    got = np.array([1.0 + 2.0**-7, 1.0], dtype=ml_dtypes.bfloat16)
    assert measure_error(got, want)["ulp"].max == 1.0


@pytest.mark.parametrize(("got", "want", "nan", "expected_nan"), [(math.nan, 1.0, 1, 0), (1.0, math.nan, 0, 1)])
def test_nan_on_one_side_is_an_infinite_error(got: float, want: float, nan: int, expected_nan: int) -> None:
    found = measure_error(np.array([got, 2.0], np.float32), np.array([want, 2.0]))
    assert (found["nan"], found["expected_nan"]) == (nan, expected_nan)
    assert found["rel_l2"] == math.inf


def test_the_same_nonfinite_values_agree() -> None:
    values = np.array([math.nan, math.inf, -math.inf, 1.0])
    found = measure_error(values.astype(np.float32), values)
    assert found["rel_l2"] == 0.0
    assert (found["nan"], found["inf"]) == (1, 2)


def test_infinities_of_other_sign_differ() -> None:
    found = measure_error(np.array([math.inf], np.float32), np.array([-math.inf]))
    assert found["rel_l2"] == found["max_abs"] == math.inf


def test_relative_error_has_a_floor_not_a_zero() -> None:
    found = measure_error(np.array([1e-20, 1.0], np.float32), np.array([0.0, 1.0]))
    assert math.isfinite(found["max_rel"])
    assert found["max_rel"] > 1e17


def test_argmax_agreement_only_for_distributions() -> None:
    want = np.array([[0.7, 0.3], [0.4, 0.6]])
    flipped = np.array([[0.7, 0.3], [0.6, 0.4]], np.float32)
    assert measure_error(flipped, want)["argmax_agreement"] == 0.5
    assert measure_error((2 * flipped).astype(np.float32), 2 * want)["argmax_agreement"] is None


def test_fully_masked_rows_are_left_out_of_argmax_agreement() -> None:
    want = np.array([[0.7, 0.3], [0.0, 0.0]])
    assert measure_error(want.astype(np.float32), want)["argmax_agreement"] == 1.0


def test_empty_outputs_have_no_error() -> None:
    assert measure_error(np.empty((0, 4), np.float32), np.empty((0, 4)))["rel_l2"] == 0.0


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_scalar_is_measured_as_its_one_element_is(dtype: type) -> None:
    got: np.ndarray = np.array(2.5).astype(dtype)
    want = np.array(2.0)
    found = measure_error(got, want)
    assert (found["worst"].index, found["worst"].got, found["worst"].want) == ([], 2.5, 2.0)
    alone = measure_error(got.reshape(1), want.reshape(1))
    assert alone["worst"].index == [0]
    assert {**found, "worst": None} == {**alone, "worst": None}
    assert (found["max_abs"], found["rel_l2"], found["rel_l2_row"]) == (0.5, 0.25, 0.25)
    assert found["argmax_agreement"] is None
    assert sum(found["histogram"].counts) == 1


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (1.0, 1.0, 0.0),
        (0.0, 0.0, 0.0),
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, 1.0, math.inf),
        (math.inf, -math.inf, math.inf),
    ],
)
def test_a_scalar_may_be_nothing_ordinary(got: float, want: float, error: float) -> None:
    found = measure_error(np.array(got, np.float32), np.array(want))
    assert found["max_abs"] == found["max_rel"] == found["rel_l2"] == found["rel_l2_row"] == error


def test_bfloat16_counts_as_floating() -> None:
    assert is_floating(np.zeros(1, ml_dtypes.bfloat16))
    assert not is_floating(np.zeros(1, np.int64))


@given(arrays(np.float64, array_shapes(max_dims=3, max_side=5), elements=ordinary), st.floats(1e-7, 1e-3))
def test_figures_are_consistent(want: np.ndarray, size: float) -> None:
    got = (want * (1 + size)).astype(np.float32)
    found = measure_error(got, want)
    error = np.abs(got.astype(np.float64) - want)
    assert found["max_abs"] == pytest.approx(error.max())
    histogram = found["histogram"]
    assert sum(histogram.counts) + histogram.zeros == want.size
    if want.any():
        assert found["rel_l2"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(want))
