import functools
import logging
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from crosshead.export import CaptureError, load_source
from crosshead.export._failure import innermost
from crosshead.export._quiet import silence
from crosshead.export._sizes import accidents, distinct
from crosshead.export.capture import Captured, capture

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"

Shape = tuple[int | str, ...]


@functools.cache
def captured(name: str, **options: bool) -> Captured:
    return capture(load_source(f"{TROUBLES}:{name}", options=options))


@functools.cache
def refusal(name: str) -> str:
    with pytest.raises(CaptureError, match=r"^[^\n]+$") as caught:
        captured(name)
    return str(caught.value)


def shapes(values: object) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for value in values:  # type: ignore[attr-defined]  # graph inputs or outputs
        found[value.name] = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return found


def run(model: ir.Model, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)  # type: ignore[return-value]  # arrays alone here


def codes(name: str) -> list[str]:
    return [notice.code for notice in captured(name).notices]


def test_axes_come_out_by_their_names_and_stay_apart() -> None:
    graph = captured("causal_unequal_lengths").model.graph
    assert shapes(graph.inputs) == {
        "query": ("batch", 4, "q_len", 8),
        "key": ("batch", 4, "kv_len", 8),
        "value": ("batch", 4, "kv_len", 8),
    }
    assert shapes(graph.outputs) == {"output": ("batch", 4, "q_len", 8)}
    assert codes("causal_unequal_lengths") == []
    assert captured("causal_unequal_lengths").model.opset_imports == {"": 23}


def test_an_example_of_batch_one_and_equal_lengths_binds_nothing() -> None:
    graph = captured("equal_lengths_batch_one").model.graph
    assert shapes(graph.inputs) == {
        "query": ("batch", 4, "q_len", 8),
        "key": ("batch", 4, "kv_len", 8),
        "value": ("batch", 4, "kv_len", 8),
    }
    assert codes("equal_lengths_batch_one") == []


def test_related_axes_are_exported_on_the_examples_own_sizes_with_a_notice() -> None:
    graph = captured("related_axes").model.graph
    assert set(shapes(graph.inputs)) == {"past", "new", "bias"}
    first = captured("related_axes").notices[0]
    assert first.code == "baked-dimension"
    assert "'past' is 1" in first.message


def test_an_axis_that_is_broadcast_cannot_be_declared_dynamic() -> None:
    said = refusal("broadcast_declared_dynamic")
    assert "axis 0 of 'y' to equal 'n', which is 3 in 'x', but it is 1 in the example" in said


def test_an_axis_fixed_by_a_table_on_the_module_is_refused_by_name() -> None:
    said = refusal("table_cached_on_first_call")
    assert "(baked-dimension): axis 1 ('seq') of input 'x' is fixed at 6" in said
    assert "table kept on the module" in said
    assert "leave the axis out of the dynamic axes" in said


def test_with_the_axis_static_the_same_module_passes() -> None:
    graph = captured("table_cached_on_first_call", dynamic=False).model.graph
    assert shapes(graph.inputs) == {"x": (2, 6, 8)}


def test_a_branch_on_a_size_is_said() -> None:
    (notice,) = captured("branches_on_length").notices
    assert notice.code == "baked-dimension"
    assert "axis 'seq' must be at least 5" in notice.message


def test_a_failure_shows_its_innermost_cause_and_what_to_try() -> None:
    said = refusal("data_dependent")
    assert said.startswith(
        "troubles.py:data_dependent cannot be exported: GuardOnDataDependentSymNode: Could not guard"
    )
    assert said.endswith("use torch.where, or move the branch out of forward")
    said = refusal("no_onnx_operator")
    assert "DispatchError: No ONNX function found for <OpOverload(op='aten.linalg_eig'" in said
    assert said.endswith("write that step with other operators")


def test_a_module_that_fails_by_itself_is_told_apart_with_its_own_sizes() -> None:
    said = refusal("wrong_mask_shape")
    assert said == (
        "troubles.py:wrong_mask_shape: the module fails on its own inputs: InputError: "
        "attn_mask: expected shape (5 or 1, 5), got (5, 6)"
    )


def test_a_number_among_the_outputs_is_told_by_its_place() -> None:
    assert refusal("number_beside") == "troubles.py:number_beside: output 1 is an int; return tensors alone"


def test_the_innermost_cause_of_a_chain() -> None:
    def chain() -> BaseException:
        try:
            try:
                try:
                    raise KeyError("bottom")
                except KeyError as error:
                    raise ValueError("middle") from error
            except ValueError:
                raise RuntimeError("top")  # noqa: B904  # a context, not a cause, is what is tested
        except RuntimeError as error:
            return error

    assert str(innermost(chain())) == "'bottom'"
    hidden = RuntimeError("alone")
    hidden.__context__ = ValueError("hidden")
    hidden.__suppress_context__ = True
    assert innermost(hidden) is hidden
    circle = RuntimeError("circle")
    circle.__cause__ = circle
    assert innermost(circle) is circle


def test_inputs_that_are_returned_keep_their_names() -> None:
    found = captured("returned_inputs")
    assert shapes(found.model.graph.inputs) == {"x": (2, 3), "y": (2, 3)}
    assert found.output_names == ("x_out", "sums_0", "sums_1")
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    got = run(found.model, {"x": x, "y": y})
    assert [each.mean() for each in got] == [1.0, 3.0, 2.0]
    onnx.checker.check_model(ir.to_proto(found.model), full_check=True)


def test_aliased_inputs_stay_apart() -> None:
    graph = captured("aliased").model.graph
    (node,) = graph
    assert [value.name for value in node.inputs if value is not None] == ["query", "key", "value"]


def test_an_unused_input_is_kept() -> None:
    assert shapes(captured("unused_input").model.graph.inputs) == {"x": (2, 6, 8), "unused": (3,)}


def test_complex_numbers_inside_keep_the_axis_dynamic() -> None:
    found = captured("complex_rotary")
    assert shapes(found.model.graph.inputs) == {"x": (2, "seq", 8)}
    x = np.random.default_rng(0).standard_normal((2, 9, 8)).astype(np.float32)
    module = load_source(f"{TROUBLES}:complex_rotary").module
    import torch

    want = module(torch.from_numpy(x)).numpy()
    assert np.abs(run(found.model, {"x": x})[0] - want).max() < 1e-5


def test_a_decoding_step() -> None:
    found = captured("decode_step")
    assert shapes(found.model.graph.inputs)["past_key"] == (2, 4, "past", 8)
    assert found.output_names == ("output_0", "output_1", "output_2")
    assert shapes(found.model.graph.outputs)["output_1"] == (2, 4, "past + 1", 8)


def test_a_block_with_a_past_names_its_outputs() -> None:
    loaded = load_source("mha-decode", options={"d_model": 16, "num_heads": 2})
    assert capture(loaded).output_names == ("output", "present_key", "present_value")


def test_bfloat16_is_exported_as_such() -> None:
    assert {value.dtype for value in captured("bfloat16_core").model.graph.inputs} == {ir.DataType.BFLOAT16}


def test_what_a_module_changes_in_itself_is_said() -> None:
    (notice,) = captured("counts_its_calls").notices
    assert notice.code == "state-not-kept"
    assert "'calls'" in notice.message


def test_nothing_reaches_the_terminal_and_settings_are_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    stdout, stderr, level = sys.stdout, sys.stderr, logging.root.manager.disable
    with silence():
        print("python")  # noqa: T201  # what is tested
        print("python", file=sys.stderr)  # noqa: T201  # what is tested
        os.write(1, b"descriptor\n")
        os.write(2, b"descriptor\n")
        logging.getLogger("torch.onnx").error("logged")
        warnings.warn("warned", stacklevel=1)
    assert capfd.readouterr() == ("", "")
    assert (sys.stdout, sys.stderr, logging.root.manager.disable) == (stdout, stderr, level)
    with pytest.raises(KeyError), silence():
        raise KeyError
    os.write(1, b"back\n")
    assert capfd.readouterr().out == "back\n"


def test_an_export_that_fails_is_as_silent(capfd: pytest.CaptureFixture[str]) -> None:
    loaded = load_source(f"{TROUBLES}:data_dependent")
    with pytest.raises(CaptureError):
        capture(loaded)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("sizes", "found", "drawn"),
    [
        ({"batch": 2, "a": 3, "b": 5}, {}, (2, 3, 5)),
        ({"batch": 1, "a": 3, "b": 5}, {"batch": 1}, (2, 3, 5)),
        ({"batch": 2, "a": 6, "b": 6}, {"b": 6}, (2, 6, 7)),
        ({"batch": 1, "a": 1, "b": 1}, {"batch": 1, "a": 1, "b": 1}, (2, 3, 4)),
        ({"batch": 8, "a": 0, "b": 9}, {"batch": 8, "a": 0}, (10, 2, 9)),
    ],
)
def test_sizes_that_could_be_mistaken_are_moved(
    sizes: dict[str, int], found: dict[str, int], drawn: tuple[int, ...]
) -> None:
    dynamic = {"x": {0: "batch", 1: "a"}, "y": {0: "batch", 1: "b"}}
    inputs: dict[str, np.ndarray] = {
        "x": np.ones((sizes["batch"], sizes["a"], 8), np.float32),
        "y": np.ones((sizes["batch"], sizes["b"], 8), np.int64),
    }
    assert accidents(inputs, dynamic) == found
    moved = distinct(inputs, dynamic)
    assert moved["x"].shape == (drawn[0], drawn[1], 8)
    assert moved["y"].shape == (drawn[0], drawn[2], 8)
    assert moved["y"].dtype == np.int64
    assert accidents(moved, dynamic) == {}
