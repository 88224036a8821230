from typing import Any

import numpy as np
import pytest

from crosshead.export.artifact import Artifact
from crosshead.runtimes import (
    BackendError,
    PlacementError,
    Session,
    Settings,
    UnknownBackendError,
    UnsupportedError,
    get_runtime,
)


def opened(artifact: Artifact, **behaviour: object) -> Session:
    return get_runtime("fake").open(artifact, Settings(fake=behaviour))


def test_it_answers_with_what_the_artifact_expects(linear: Artifact) -> None:
    for case in ("1x5", "2x7"):
        outputs = opened(linear).run(linear.inputs(case))
        assert outputs["y"].dtype == np.float32
        np.testing.assert_array_equal(outputs["y"], linear.expected(case)["y"].astype(np.float32))


def test_it_refuses_what_is_no_case(linear: Artifact) -> None:
    with pytest.raises(BackendError, match="knows only the cases that the artifact carries"):
        opened(linear).run({"x": np.zeros((1, 5, 4), np.float32)})


def test_relative_error_is_the_relative_l2_error(linear: Artifact) -> None:
    got = opened(linear, relative_error=1e-3).run(linear.inputs("2x7"))["y"].astype(np.float64)
    want = linear.expected("2x7")["y"].astype(np.float64)
    assert np.linalg.norm(got - want) / np.linalg.norm(want) == pytest.approx(1e-3, rel=1e-3)


def test_nan_is_one_element(linear: Artifact) -> None:
    assert np.isnan(opened(linear, nan=True).run(linear.inputs("2x7"))["y"]).sum() == 1


def test_noise_differs_from_call_to_call(assert_close: Any, linear: Artifact) -> None:
    session = opened(linear, noise=1e-2)
    first, second = (session.run(linear.inputs("2x7"))["y"] for _ in range(2))
    assert not np.array_equal(first, second)
    assert_close(first, second, atol=0.2)


def test_an_output_can_be_left_out(linear: Artifact) -> None:
    assert opened(linear, drop_output="y").run(linear.inputs("1x5")) == {}


def test_refusals(linear: Artifact) -> None:
    with pytest.raises(UnsupportedError, match="no bf16 here"):
        opened(linear, unsupported="no bf16 here")
    with pytest.raises(PlacementError, match="OtherProvider"):
        opened(linear, wrong_placement=True)


def test_wrong_placement_that_is_allowed_is_told(linear: Artifact) -> None:
    session = get_runtime("fake").open(linear, Settings(fake={"wrong_placement": True}, allow_fallback=True))
    placement = session.placement()
    assert placement is not None
    assert list(placement.providers) == ["OtherProvider"]
    assert placement.fallen_back


def test_trouble_comes_after_so_many_calls(linear: Artifact) -> None:
    session = opened(linear, raises="third time", after_calls=2)
    step = session.bind(linear.inputs("1x5"))
    step()
    step()
    with pytest.raises(RuntimeError, match="third time"):
        step()
    step()


def test_inputs_that_are_no_case_get_zeros_when_that_is_asked_for(linear: Artifact) -> None:
    x = np.ones((3, 4, 4), np.float32)
    assert opened(linear, zeros=True).run({"x": x})["y"].shape == (3, 4, 3)
    with pytest.raises(BackendError, match="none of them"):
        opened(linear).run({"x": x})


def test_an_unknown_option_is_named(linear: Artifact) -> None:
    with pytest.raises(
        BackendError, match="the fake backend has no option 'slep_s'; it has: slow_start_s, compile_s, sleep_s"
    ):
        opened(linear, slep_s=1.0)


def test_an_option_of_the_wrong_type_is_named(linear: Artifact) -> None:
    with pytest.raises(BackendError, match=r"wrong type: Expected `float`, got `str` - at `\$.sleep_s`"):
        opened(linear, sleep_s="long")


def test_a_slower_call_takes_its_share_longer(linear: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("crosshead.runtimes.fake.time.perf_counter", tick)
    monkeypatch.setattr("crosshead.runtimes.fake.time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    step = opened(linear, sleep_s=99.0, slower=0.5).bind(linear.inputs("1x5"))
    began = now[0]
    step()
    assert now[0] - began == 1.0 + 1.5 * 100.0  # reading the clock moves it by one


@pytest.mark.parametrize("slower", [0.0, 0.01])
def test_another_backend_can_do_the_work(linear: Artifact, slower: float) -> None:
    inputs = {"x": np.ones((3, 2, 4), np.float32)}  # no case of the artifact
    with (
        get_runtime("ort-cpu").open(linear, Settings(threads=1)) as right,
        opened(linear, wraps="ort-cpu", slower=slower, relative_error=1.0) as wrong,
    ):
        wrong.bind(inputs)()
        want = right.run(inputs)["y"].astype(np.float64)
        np.testing.assert_array_equal(wrong.run(inputs)["y"], 2.0 * want)


def test_what_is_to_be_wrapped_has_to_be_there_and_alone(linear: Artifact) -> None:
    with pytest.raises(UnknownBackendError, match="there is no backend 'ort-gpu'; did you mean 'ort-cpu'"):
        opened(linear, wraps="ort-gpu")
    with pytest.raises(BackendError, match=r"set one of them"):
        opened(linear, wraps="ort-cpu", fault="softmax-axis")
