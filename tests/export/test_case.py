from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from crosshead.export import LoadedSource, SourceError, cases_for, load_source
from crosshead.export.artifact import Arrays
from crosshead.export.case import is_mask, keeps_nothing, stretch

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"


@pytest.fixture(scope="module")
def mha() -> LoadedSource:
    return load_source("mha", options={"d_model": 16, "num_heads": 2}, seed=3)


@pytest.fixture(scope="module")
def lengths() -> LoadedSource:
    return load_source(f"{TROUBLES}:causal_unequal_lengths", seed=3)


def with_inputs(loaded: LoadedSource, inputs: Arrays, dynamic: dict[str, dict[int, str]]) -> LoadedSource:
    return replace(loaded, inputs=inputs, dynamic=dynamic, roles={})


def refusal(loaded: LoadedSource, **shapes: list[tuple[int, ...]]) -> str:
    with pytest.raises(SourceError, match=r"^[^\n]+$") as caught:
        cases_for(loaded, shapes=shapes)
    return str(caught.value)


def test_a_block_gets_every_batch_with_every_length(mha: LoadedSource) -> None:
    cases = cases_for(mha, batches=(1, 3, 1), lengths=(5, 9))
    assert [case.name for case in cases] == ["1x5", "1x9", "3x5", "3x9"]
    assert [case.inputs["query"].shape for case in cases] == [(1, 5, 16), (1, 9, 16), (3, 5, 16), (3, 9, 16)]
    assert {case.seed for case in cases} == {3}
    assert cases[0].reason == "batch 1, 5 tokens, standard normal"
    again = cases_for(mha, batches=(1,), lengths=(5,))[0]
    assert again.inputs["query"].tobytes() == cases[0].inputs["query"].tobytes()
    assert [case.name for case in cases_for(mha)] == ["1x128", "8x128"]


def test_a_block_refuses_shapes_and_sizes_that_it_cannot_have(mha: LoadedSource) -> None:
    assert "give its sizes with --batch and --seq" in refusal(mha, query=[(1, 2, 16)])
    with pytest.raises(SourceError, match="mha-decode, batch 1, 2 tokens: seq: expected at least new_tokens=3, got 2"):
        cases_for(load_source("mha-decode", options={"new_tokens": 3}), batches=(1,), lengths=(2,))


def test_a_factory_gets_its_own_inputs(lengths: LoadedSource) -> None:
    (case,) = cases_for(lengths)
    assert case.name == "example"
    assert all(case.inputs[name] is array for name, array in lengths.inputs.items())


def test_a_shape_binds_the_axes_of_other_inputs(lengths: LoadedSource) -> None:
    (case,) = cases_for(lengths, shapes={"key": [(5, 4, 9, 8)]})
    assert case.name == "5x4x9x8"
    assert {name: array.shape for name, array in case.inputs.items()} == {
        "query": (5, 4, 3, 8),
        "key": (5, 4, 9, 8),
        "value": (5, 4, 9, 8),
    }
    assert not np.array_equal(case.inputs["key"], case.inputs["value"])


def test_several_shapes_are_several_cases(lengths: LoadedSource) -> None:
    cases = cases_for(lengths, shapes={"key": [(1, 4, 2, 8), (2, 4, 6, 8)]})
    assert [case.name for case in cases] == ["1x4x2x8", "2x4x6x8"]
    shapes = {"key": [(1, 4, 2, 8), (1, 4, 6, 8)], "query": [(1, 4, 5, 8)]}
    assert [case.name for case in cases_for(lengths, shapes=shapes)] == [
        "key=1x4x2x8,query=1x4x5x8",
        "key=1x4x6x8,query=1x4x5x8",
    ]


def test_shapes_that_do_not_fit_are_refused(lengths: LoadedSource) -> None:
    assert "there is no input 'x'; inputs: query, key, value" in refusal(lengths, x=[(1,)])
    assert "input 'key': expected 4 axes as in (2, 4, 7, 8), got (2, 4)" in refusal(lengths, key=[(2, 4)])
    assert "axis 3 is fixed at 8, got 16; let the factory return it" in refusal(lengths, key=[(2, 4, 7, 16)])
    said = refusal(lengths, key=[(2, 4, 7, 8)], value=[(2, 4, 6, 8)])
    assert "axis 'kv_len' is 7 in 'key' and 6 in 'value'" in said
    assert "give it 1 or 3" in refusal(lengths, key=[(2, 4, 7, 8)] * 2, value=[(2, 4, 6, 8)] * 3)


def test_drawn_inputs_are_like_the_example(lengths: LoadedSource) -> None:
    example: Arrays = {
        "ids": np.array([[3, 9, 4]], dtype=np.int32),
        "half": np.ones((1, 3), dtype=ml_dtypes.bfloat16),
        "keep": np.array([[True, True, False]]),
        "bias": np.array([[0.0, 0.0, -np.inf]], dtype=np.float32),
        "other": np.array([7.0], dtype=np.float32),
    }
    dynamic = {name: {0: "batch", 1: "seq"} for name in ("ids", "half", "keep", "bias")}
    (case,) = cases_for(with_inputs(lengths, example, dynamic), shapes={"ids": [(4, 30)]})
    drawn = case.inputs
    assert list(drawn) == list(example)
    assert {name: drawn[name].dtype for name in drawn} == {name: example[name].dtype for name in example}
    assert sorted(set(drawn["ids"].ravel().tolist())) == list(range(3, 10))
    assert 0.5 < drawn["half"].astype(np.float32).std() < 1.5
    assert drawn["keep"].sum(axis=1).tolist() == [20] * 4
    assert (drawn["bias"].astype(np.float32) == -np.inf).sum(axis=1).tolist() == [10] * 4
    assert drawn["other"] is example["other"]


def test_an_empty_mask_cannot_be_stretched() -> None:
    with pytest.raises(SourceError, match="empty mask"):
        stretch(np.zeros((1, 0), dtype=bool), (1, 3))
    assert stretch(np.ones((1, 3), dtype=bool), (2, 0)).shape == (2, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 11, 20])
def test_a_stretched_causal_mask_keeps_something_in_each_row(size: int) -> None:
    mask = stretch(np.tril(np.ones((7, 7), dtype=bool)), (size, size))
    assert mask.any(axis=-1).all()
    assert mask[0, 0]


def test_what_looks_like_a_mask() -> None:
    assert is_mask(np.array([True]))
    assert is_mask(np.array([0.0, -np.inf], dtype=ml_dtypes.bfloat16))
    assert not is_mask(np.array([0.0, np.inf]))
    assert not is_mask(np.array([1]))


@pytest.mark.parametrize(
    ("array", "role", "true_is_blocked", "nothing"),
    [
        ([[True, False], [True, True]], "key_padding_mask", False, True),
        ([[True, False], [False, False]], "key_padding_mask", False, False),
        ([[True, False], [False, False]], "attn_mask", False, True),
        ([[True, False], [False, False]], "attn_mask", True, False),
        ([[True, True], [False, False]], "attn_mask", True, True),
        ([[False, False]], None, False, False),
        ([[0.0, -np.inf], [0.0, 0.0]], None, False, False),
        ([[0.0, 0.0], [-np.inf, -np.inf]], None, False, True),
        ([[0.0, 1.0]], "attn_mask", False, False),
        ([[1, 0]], "attn_mask", False, False),
        ([], "attn_mask", False, False),
    ],
)
def test_rows_that_keep_nothing(array: list[object], role: str | None, true_is_blocked: bool, nothing: bool) -> None:
    assert keeps_nothing(np.array(array), role, true_is_blocked=true_is_blocked) is nothing
