"""What a backend gives and what can be compared."""

import ml_dtypes
import numpy as np
import pytest

from crosshead.export.artifact import Artifact
from crosshead.runtimes import BackendError, Settings, get_runtime
from crosshead.runtimes.fake import _FakeSession
from crosshead.runtimes.outputs import check_outputs


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", ml_dtypes.bfloat16])
def test_numbers_pass(dtype: str) -> None:
    check_outputs({"y": np.zeros((0, 2), dtype), "z": np.zeros((), dtype)})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            np.array(["a"], dtype=object),
            "^output 'y': expected booleans, whole or floating numbers, got object",
        ),
        (np.array(["abc"]), "got str96; cast it in the graph, or take it off"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), "got float8_e4m3fn; cast it"),
        ([1.0], "^output 'y': expected an array, got list; leave it out$"),
        (None, "got NoneType"),
    ],
)
def test_what_holds_no_numbers_is_named(output: object, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        check_outputs({"x": np.ones(1), "y": output})


def test_a_session_gives_nothing_that_cannot_be_compared(linear: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_FakeSession, "_run", lambda *_: {"y": np.array(["text"])})
    with get_runtime("fake").open(linear, Settings()) as session, pytest.raises(BackendError, match="output 'y'"):
        session.run(linear.inputs("1x5"))
