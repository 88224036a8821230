"""The relative L2 error against its formula, and its special values."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from crosshead.export import error, pair
from crosshead.export.error import relative_l2, relative_l2_row

FINITE = st.floats(-1e3, 1e3)


@given(st.data())
def test_both_equal_their_formulas(data: st.DataObject) -> None:
    shape = data.draw(array_shapes(min_dims=1, max_dims=4))
    want = data.draw(arrays(np.float64, shape, elements=FINITE))
    got = want + data.draw(arrays(np.float64, shape, elements=FINITE))
    norm = np.linalg.norm(want)
    if norm < 1e-100:  # the next test is about these
        return
    assert relative_l2(got, want) == pytest.approx(np.linalg.norm(got - want) / norm, rel=1e-12)
    rows_got, rows = got.reshape(-1, shape[-1]), want.reshape(-1, shape[-1])
    floor = norm / np.sqrt(len(rows))
    by_row = [np.linalg.norm(g - w) / max(np.linalg.norm(w), floor) for g, w in zip(rows_got, rows, strict=True)]
    assert relative_l2_row(got, want) == pytest.approx(max(by_row), rel=1e-12)


@pytest.mark.parametrize("measure", [relative_l2, relative_l2_row])
@pytest.mark.parametrize(
    ("got", "want", "expected"),
    [
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([0.0, 1.0], [0.0, 0.0], np.inf),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([1.0, np.inf], [1.0, 3e38], np.inf),
        ([3.0, -np.inf], [2.0, -np.inf], 0.5),
        ([np.nan, np.nan], [np.nan, np.nan], 0.0),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
        (3.0, 2.0, 0.5),
        ([True, False], [True, True], np.sqrt(0.5)),
        ([3, 0], [2, 0], 0.5),
        ([3e-200, 0.0], [2e-200, 0.0], 0.5),
        ([3e200, 0.0], [2e200, 0.0], 0.5),
        ([1e-320, 0.0], [2e-320, 0.0], 0.5),
    ],
)
def test_special_values(measure: Callable[..., float], got: Any, want: Any, expected: float) -> None:
    assert measure(np.array(got), np.array(want)) == pytest.approx(expected, rel=1e-3, abs=0)


def test_empty_axes_have_no_error() -> None:
    for shape in [(0, 4), (4, 0), (2, 0, 3)]:
        assert relative_l2(np.zeros(shape), np.zeros(shape)) == 0.0
        assert relative_l2_row(np.zeros(shape), np.zeros(shape)) == 0.0


def test_one_wrong_row_shows_and_a_row_of_small_values_does_not() -> None:
    want = np.random.default_rng(0).normal(size=(1000, 16))
    got = want.copy()
    got[7] *= 1.5
    assert relative_l2(got, want) < 0.03
    assert relative_l2_row(got, want) > 0.3
    small = want.copy()
    small[7] *= 1e-6
    got = small.copy()
    got[7] += 1e-7  # a fifth of the row, and a ten-millionth of its neighbours
    assert relative_l2_row(got, small) < 1e-6


def test_pieces_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    want = rng.normal(size=(3, 7, 11))
    got = want + 1e-3 * rng.normal(size=want.shape)
    whole = relative_l2(got, want), relative_l2_row(got, want)
    for chunk in (1, 5, 11, 40):
        monkeypatch.setattr(pair, "BLOCK", chunk)
        monkeypatch.setattr(error, "_ROWS_KEPT", 21 if chunk == 5 else 20)
        assert (relative_l2(got, want), relative_l2_row(got, want)) == pytest.approx(whole, rel=1e-14)


def test_bfloat16_is_widened() -> None:
    want = np.array([1.0, 2.0, 3.0])
    assert relative_l2(want.astype(ml_dtypes.bfloat16), want) == 0.0


def test_importing_it_needs_numpy_alone() -> None:
    code = "import sys, crosshead.export.error; print({'torch', 'onnx', 'onnxruntime'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
