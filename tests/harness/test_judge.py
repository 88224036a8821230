"""The rule over one output: 5 and 50 yardsticks, 10 and 100 without the source framework's own error."""

import math

import numpy as np
import pytest

from crosshead.export.artifact import Yardstick
from crosshead.harness.judge import Tolerance, Tolerances, doubt_empty, judge_output
from crosshead.results import OutputRecord

U = 2.0**-24
YARDSTICK = Yardstick(sensitivity=1e-7, sensitivity_row=1e-7, unit_roundoff=U, native=3e-7, native_row=4e-7)
WANT = np.linspace(1.0, 2.0, 12).reshape(3, 4)


def judged(
    error: float, *, yardstick: Yardstick | None = YARDSTICK, native: bool = True, **tolerance: float
) -> OutputRecord:
    return judge_output(
        "output",
        (WANT * (1 + error)).astype(np.float64),
        WANT,
        expected_dtype="float64",
        yardstick=yardstick,
        use_native=native,
        tolerance=Tolerance(**tolerance),
    )


@pytest.mark.parametrize(
    ("times", "verdict"), [(0.0, "pass"), (4.9, "pass"), (5.1, "suspect"), (49.0, "suspect"), (51.0, "fail")]
)
def test_limits_with_native(times: float, verdict: str) -> None:
    record = judged(times * 3e-7)
    assert (record.verdict, record.rule) == (verdict, "yardstick")
    assert record.times_expected == pytest.approx(times, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("times", "verdict"), [(9.9, "pass"), (10.1, "suspect"), (99.0, "suspect"), (101.0, "fail")])
def test_limits_without_native(times: float, verdict: str) -> None:
    record = judged(times * 1e-7, native=False)
    assert (record.verdict, record.rule) == (verdict, "sensitivity")


def test_the_yardstick_is_never_below_half_a_roundoff() -> None:
    tiny = Yardstick(sensitivity=0.0, sensitivity_row=0.0, unit_roundoff=U, native=0.0, native_row=0.0)
    assert judged(4 * U / 2, yardstick=tiny).verdict == "pass"


def test_one_wrong_row_shows() -> None:
    got = np.tile(WANT, (500, 1))
    want = got.copy()
    got[7] *= 1 + 1e-4
    record = judge_output("output", got, want, expected_dtype="float64", yardstick=YARDSTICK, use_native=True)
    assert record.rel_l2 is not None
    assert record.rel_l2 < 50 * 3e-7
    assert record.verdict == "fail"
    assert "worst row" in record.reason


@pytest.mark.parametrize("tolerance", [{}, {"rtol": 1e-3}, {"budget": 1e-3}])
def test_a_scalar_is_judged(tolerance: dict[str, float]) -> None:
    for got, verdict in ((2.0, "pass"), (2.5, "fail")):
        record = judge_output(
            "loss",
            np.array(got),
            np.array(2.0),
            expected_dtype="float64",
            yardstick=YARDSTICK,
            use_native=True,
            tolerance=Tolerance(**tolerance),
        )
        assert (record.shape, record.verdict) == ([], verdict)
    count = judge_output("n", np.array(3), np.array(4), expected_dtype="int64", yardstick=None, use_native=True)
    assert count.reason == "1 of 1 elements differ"


@pytest.mark.parametrize("tolerance", [{}, {"rtol": 1e-3}, {"budget": 1e-3}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_oracle_without_a_finite_number_is_not_passed(value: float, tolerance: dict[str, float]) -> None:
    def judged_against_nothing(got: float) -> OutputRecord:
        return judge_output(
            "output",
            np.full((2, 3), got, np.float32),
            np.full((2, 3), value),
            expected_dtype="float32",
            yardstick=YARDSTICK,
            use_native=True,
            tolerance=Tolerance(**tolerance),
        )

    record = judged_against_nothing(value)
    assert record.verdict == "suspect"
    assert record.reason == "nothing to judge: the oracle is NaN or Inf everywhere (are the weights loaded?)"
    assert judged_against_nothing(1.0).verdict == "fail"


def test_one_finite_number_in_the_oracle_is_something_to_judge() -> None:
    want = np.array([math.nan, 1.0])
    record = judge_output("y", want, want, expected_dtype="float64", yardstick=YARDSTICK, use_native=True)
    assert (record.verdict, record.reason) == ("pass", "")


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_an_empty_output_passes_beside_others_alone(dtype: str) -> None:
    nothing = np.empty((2, 0, 3), dtype)
    empty = judge_output("past", nothing, nothing, expected_dtype=dtype, yardstick=None, use_native=True)
    assert (empty.verdict, empty.reason) == ("pass", "empty")
    assert doubt_empty([empty, judged(0.0)]) == [empty, judged(0.0)]
    told = [(record.verdict, record.reason) for record in doubt_empty([empty, empty])]
    assert told == [("suspect", "nothing to judge: the output is empty")] * 2
    wrong = judge_output("past", nothing, nothing, expected_dtype="float16", yardstick=None, use_native=True)
    assert doubt_empty([wrong]) == [wrong]
    assert wrong.verdict == "fail"


def test_nan_fails_and_says_whose() -> None:
    got = WANT.copy()
    got[0, 0] = math.nan
    record = judge_output("output", got, WANT, expected_dtype="float64", yardstick=YARDSTICK, use_native=True)
    assert record.verdict == "fail"
    assert record.reason == "1 NaN here, 0 in the oracle"


def test_a_budget_of_another_person_rules() -> None:
    assert judged(1e-3, budget=1e-2).verdict == "pass"
    record = judged(1e-3, budget=1e-4)
    assert (record.verdict, record.rule) == ("fail", "user")


def test_allclose_rules_where_asked() -> None:
    assert judged(1e-4, rtol=1e-3).verdict == "pass"
    record = judged(1e-2, rtol=1e-3)
    assert record.verdict == "fail"
    assert record.reason == "12 of 12 elements outside rtol 0.001, atol 0 (asked for)"


def test_shape_and_dtype_must_fit() -> None:
    wrong_shape = judge_output("y", WANT.T, WANT, expected_dtype="float64", yardstick=YARDSTICK, use_native=True)
    assert (wrong_shape.verdict, wrong_shape.reason) == ("fail", "shape [4, 3], expected [3, 4]")
    wrong_dtype = judge_output("y", WANT, WANT, expected_dtype="float32", yardstick=YARDSTICK, use_native=True)
    assert (wrong_dtype.verdict, wrong_dtype.reason) == ("fail", "dtype float64, expected float32")


def test_whole_numbers_must_be_equal() -> None:
    got, want = np.array([1, 2, 4]), np.array([1, 2, 3])
    record = judge_output("ids", got, want, expected_dtype="int64", yardstick=None, use_native=True)
    assert (record.verdict, record.rule, record.reason) == ("fail", "exact", "1 of 3 elements differ")
    same = judge_output("ids", want, want, expected_dtype="int64", yardstick=None, use_native=True)
    assert same.verdict == "pass"


def test_a_precision_without_digits_is_not_passed() -> None:
    loose = Yardstick(sensitivity=0.2, sensitivity_row=0.2, unit_roundoff=2.0**-8)
    record = judged(0.0, yardstick=loose)
    assert record.verdict == "suspect"
    assert "ill-conditioned" in record.reason


def test_no_yardstick_is_not_a_pass() -> None:
    assert judged(1e-12, yardstick=None).verdict == "suspect"


def test_an_oracle_of_zeros_passes_zeros_and_doubts_the_rest() -> None:
    zeros = np.zeros((2, 3))
    for got, verdict in ((zeros, "pass"), (zeros + 1e-9, "suspect")):
        record = judge_output("y", got, zeros, expected_dtype="float64", yardstick=YARDSTICK, use_native=True)
        assert record.verdict == verdict
    assert "zero everywhere" in record.reason


def test_what_is_said_by_name_goes_first() -> None:
    tolerances = Tolerances(default=Tolerance(rtol=1e-3, atol=1e-5), by_output={"weights": Tolerance(atol=1e-2)})
    assert tolerances.of("weights") == Tolerance(rtol=1e-3, atol=1e-2)
    assert tolerances.of("output") == Tolerance(rtol=1e-3, atol=1e-5)
    budget = Tolerances(default=Tolerance(budget=0.1), by_output={"weights": Tolerance(rtol=1e-2)})
    assert budget.of("weights") == Tolerance(rtol=1e-2)
