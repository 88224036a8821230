import numpy as np
import pytest
from onnx import helper

from crosshead.export.artifact import Artifact
from crosshead.runtimes import InputError
from crosshead.runtimes.inputs import check_inputs

GOOD = np.zeros((2, 5, 4), np.float32)


def test_inputs_that_fit_pass(linear: Artifact) -> None:
    check_inputs(linear, {"x": GOOD})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing; expected: x; got: none"),
        ({"y": GOOD}, "input 'x' is missing; expected: x; got: y"),
        ({"x": GOOD, "mask": GOOD}, "there is no input 'mask'; expected: x"),
        ({"x": GOOD.astype(np.float64)}, "input 'x': expected dtype float32, got float64"),
        ({"x": GOOD[0]}, r"input 'x': expected shape \(batch, seq, 4\), got \(5, 4\)"),
        ({"x": GOOD[..., :3]}, r"expected shape \(batch, seq, 4\), got \(2, 5, 3\); axis 2 is fixed at 4"),
    ],
)
def test_inputs_that_do_not_fit_are_named(linear: Artifact, inputs: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_inputs(linear, inputs)


def test_an_axis_of_one_name_has_one_size(make_artifact, typed_value) -> None:  # type: ignore[no-untyped-def]  # fixtures
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "sum",
        [typed_value("a", "float32", ("n",)), typed_value("b", "float32", ("n",))],
        [typed_value("y", "float32", ("n",))],
    )
    artifact = make_artifact(graph)
    with pytest.raises(InputError, match=r"input 'b': expected shape \(n\), got \(3,\); axis 0 is 'n', and 2 in 'a'"):
        check_inputs(artifact, {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
