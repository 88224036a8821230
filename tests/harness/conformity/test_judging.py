from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from crosshead.harness.conformity.judging import Tolerance, judge_outputs, same

if TYPE_CHECKING:
    from crosshead.export.artifact import Arrays

DERIVED = Tolerance()
WANT = np.array([[1.0, -2.0, 4.0], [0.5, 3.0, -8.0]])


def judged(got: Any, want: Any, tolerance: Tolerance = DERIVED) -> Any:
    (found,) = judge_outputs({"y": np.asarray(got)}, {"y": np.asarray(want)}, tolerance)
    return found


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        (np.float64, 0.9e-3, 1.1e-3),
        (np.float32, 0.9e-3, 1.1e-3),
        (np.float16, 1.9e-3, 7e-3),
        (ml_dtypes.bfloat16, 1.4e-2, 6e-2),
    ],
)
def test_the_relative_part_grows_with_the_unit_roundoff(dtype: Any, right: float, wrong: float) -> None:
    want = np.full(5, 1.0).astype(dtype)
    assert not judged((want.astype(np.float64) * (1 + right)).astype(dtype), want).reason
    found = judged((want.astype(np.float64) * (1 + wrong)).astype(dtype), want)
    assert found.off == 5
    assert found.times_tolerance > 1.0


def test_an_element_near_zero_may_be_off_by_the_rounding_of_its_neighbours_alone() -> None:
    want = np.array([1.0, 1.0, 1.0, 0.0], np.float16)
    assert not judged(want + np.array([0, 0, 0, 1.9e-3], np.float16), want).reason
    assert judged(want + np.array([0, 0, 0, 4e-3], np.float16), want).worst.index == [3]


def test_a_huge_fill_does_not_excuse_the_rest() -> None:
    want = np.array([1.0, 2.0, 1.0, -1e9, 1.5], np.float32)
    got = want.copy()
    got[1] = 2.1
    assert judged(got, want).worst.index == [1]


def test_infinities_and_nan_must_stand_where_they_are_expected() -> None:
    want = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    assert not judged(want.copy(), want).reason
    lowest = np.array([np.inf, np.finfo(np.float32).min, np.nan, 1.0], np.float32)
    found = judged(lowest, want)
    assert (found.off, found.worst.index, found.worst.want) == (1, [1], -np.inf)
    assert found.times_tolerance == np.inf
    assert found.max_abs == 0.0  # of what is finite on both sides
    assert judged(np.array([np.inf, -np.inf, 0.0, 1.0], np.float32), want).off == 1
    assert judged(np.array([np.inf, -np.inf, np.nan, np.nan], np.float32), want).off == 1


def test_shape_dtype_and_presence_are_the_standards_own() -> None:
    want = WANT.astype(np.float32)
    assert "expected shape (2, 3), got (3, 2)" in judged(want.T, want).reason
    assert "expected float32, got float64" in judged(WANT, want).reason
    (missing,) = judge_outputs({"z": want}, {"y": want}, Tolerance())
    assert missing.reason == "output 'y' is missing; it gave: z"
    assert not judged(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).reason


def test_whole_numbers_and_booleans_are_exact() -> None:
    assert not judged([1, 2, 3], [1, 2, 3]).reason
    found = judged([1, 2, 4], [1, 2, 3])
    assert (found.off, found.worst.got, found.worst.want) == (1, 4.0, 3.0)
    assert judged([True, False], [True, True]).off == 1


def test_a_persons_own_numbers_hold_for_every_dtype() -> None:
    want = WANT.astype(np.float32)
    tight = Tolerance(rtol=0.0, atol=0.0)
    assert not judged(want.copy(), want, tight).reason
    assert judged(np.nextafter(want, 9), want, tight).off == 6
    assert tight.rule().sentence.endswith("rtol 0, atol 0")
    assert not judged(want + np.float32(0.09), want, Tolerance(atol=0.1)).reason
    assert "u is the unit roundoff" in Tolerance(atol=0.1).rule().sentence


def test_two_wrong_backends_may_still_be_the_same() -> None:
    want: Arrays = {"y": WANT.astype(np.float32)}
    wrong: Arrays = {"y": (1.5 * WANT).astype(np.float32)}
    assert same(wrong, {"y": (1.5001 * WANT).astype(np.float32)}, want, Tolerance())
    assert not same(wrong, want, want, Tolerance())
    assert not same(wrong, {"y": WANT}, want, Tolerance())
    assert not same(wrong, {}, want, Tolerance())
    assert not same({"y": np.array([1])}, {"y": np.array([2])}, {"y": np.array([1])}, Tolerance())
