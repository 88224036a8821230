"""Other sizes of the dynamic axes: which are tried, what a case of them holds, and what the module refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crosshead.export import LoadedSource, load_source
from crosshead.export.artifact import UNIT_ROUNDOFFS, TensorSpec
from crosshead.export.size_cases import MOST_ELEMENTS, SizeCases, record_size_cases, size_cases

SOURCES = Path(__file__).parent / "sources" / "sizes.py"
SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 2}


def specs_of(loaded: LoadedSource) -> list[TensorSpec]:
    return [
        TensorSpec(
            name=name,
            dtype=array.dtype.name,
            shape=tuple(loaded.dynamic.get(name, {}).get(axis, size) for axis, size in enumerate(array.shape)),
        )
        for name, array in loaded.inputs.items()
    ]


def found(name: str, outputs: tuple[str, ...] = ("output",), growth: float = 1.0, **options: Any) -> SizeCases:
    loaded = load_source(name if name in BLOCKS else f"{SOURCES}:{name}", options=options)
    return size_cases(loaded, specs_of(loaded), outputs, growth=growth)


BLOCKS = {
    "mha": {"batch": (1, 3), "seq": (1, 11)},
    "gqa": {"batch": (1, 3), "seq": (1, 11)},
    "encoder-layer-padded": {"batch": (1, 3), "seq": (1, 11)},
    "mha-masked": {"batch": (1, 3), "seq": (1, 11)},
    "cross-attention": {"batch": (1, 3), "seq": (1, 13), "kv_seq": (1, 17)},
    "mha-decode": {"batch": (1, 5), "seq": (1, 7), "past": (0, 1, 17)},
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_tried_at_1_and_at_a_size_that_no_other_axis_has(block: str) -> None:
    outputs = ("output", "present_key", "present_value") if block == "mha-decode" else ("output",)
    cases = found(block, outputs, d_model=48, num_heads=4, **({"num_kv_heads": 2} if block == "gqa" else {}))
    tried: dict[str, tuple[int, ...]] = {}
    for case in cases.cases[:-1]:
        ((axis, size),) = cases.sizes[case.name].items()
        tried[axis] = (*tried.get(axis, ()), size)
    assert tried == BLOCKS[block]
    assert cases.sizes[cases.cases[-1].name] == {axis: sizes[-1] for axis, sizes in tried.items()}
    assert (cases.left_out, cases.notices) == ({}, [])
    assert all(np.isfinite(array).all() for each in cases.expected.values() for array in each.values())


def test_a_past_of_no_tokens_is_a_case_of_decoding() -> None:
    cases = found("mha-decode", ("output", "present_key", "present_value"), **SMALL)
    case = next(case for case in cases.cases if case.name == "axes past=0")
    assert case.inputs["past_key"].shape == (2, 2, 0, 8)
    assert cases.expected[case.name]["present_key"].shape == (2, 2, 3, 8)


def test_sizes_that_agree_by_accident_are_taken_apart() -> None:
    cases = found("like_axes")
    shapes = {case.name: [array.shape[:2] for array in case.inputs.values()] for case in cases.cases}
    assert shapes["axes seq=1"] == [(1, 1), (1, 5)]
    assert shapes["axes seq=7"] == [(1, 7), (1, 5)]
    assert shapes["axes batch=2,seq=7,kv_seq=11"] == [(2, 7), (2, 11)]


def test_a_size_that_the_module_itself_refuses_is_no_case_but_a_notice() -> None:
    cases = found("refuses_one")
    assert list(cases.sizes.values()) == [{"batch": 1}, {"batch": 3}, {"seq": 7}, {"batch": 3, "seq": 7}]
    (notice,) = cases.notices
    assert notice.code == "size-refused"
    assert "the module itself refuses seq=1: ValueError: two tokens at least" in notice.message
    assert cases.left_out == {"seq": "seq=1: ValueError: two tokens at least"}


def test_an_axis_with_a_last_size_is_tried_below_it_without_a_notice(tmp_path: Path) -> None:
    cases = found("table_that_ends")
    assert {"seq": 7} in cases.sizes.values()
    text = SOURCES.read_text().replace("torch.randn(7, WIDTH)", "torch.randn(6, WIDTH)")
    (tmp_path / "shorter.py").write_text(text)
    loaded = load_source(f"{tmp_path}/shorter.py:table_that_ends")
    cases = size_cases(loaded, specs_of(loaded), ("output",))
    assert {"seq": 5} in cases.sizes.values()
    assert cases.left_out["seq"].startswith("seq=7: RuntimeError: ")
    assert cases.notices == []


@pytest.mark.parametrize(
    ("name", "code", "sizes"), [("fixed_table", "size-refused", [{"seq": 1}]), ("fixed_view", "baked-dimension", [])]
)
def test_a_module_that_takes_no_other_size_says_so(name: str, code: str, sizes: list[dict[str, int]]) -> None:
    cases = found(name)  # at length 1 the table is broadcast; a view takes no other length at all
    assert [each for each in cases.sizes.values() if "seq" in each] == sizes
    (notice,) = cases.notices
    assert notice.code == code
    assert "seq=7: RuntimeError" in notice.message
    assert "seq=12: RuntimeError" in notice.message
    assert "seq" in cases.left_out
    assert cases.fixed == {"seq": 6}


def test_cases_stay_small_by_cutting_the_other_axes() -> None:
    cases = found("logits", growth=50_000.0)
    assert cases.cases
    assert all(case.inputs["ids"].size * 50_000 <= MOST_ELEMENTS for case in cases.cases)
    assert {"batch", "seq"} == {name for sizes in cases.sizes.values() for name in sizes}


def test_what_cannot_be_small_is_left_out_and_said() -> None:
    cases = found("wide", ("output",))
    assert cases.cases == []
    (notice,) = cases.notices
    assert notice.code == "size-not-tried"
    assert "axis 'seq' was not tried at 1, 3, 4" in notice.message
    assert f"more than {MOST_ELEMENTS} elements" in cases.left_out["seq"]


def test_whole_numbers_that_do_not_fit_a_shorter_axis_are_the_examples_lowest() -> None:
    cases = found("picks_positions")
    case = next(case for case in cases.cases if case.name == "axes seq=1")
    assert case.inputs["position"].tolist() == [0, 0]
    assert cases.notices == []


def test_a_stretched_mask_leaves_no_row_without_a_key() -> None:
    cases = found("padded_from_the_left")
    case = next(case for case in cases.cases if case.name == "axes seq=1")
    assert not case.inputs["padding"].any()
    case = next(case for case in cases.cases if case.name == "axes seq=7")
    assert case.inputs["padding"].any()
    assert not case.inputs["padding"].all(axis=-1).any()


def test_static_sources_and_training_ones_have_no_such_cases() -> None:
    loaded = load_source(f"{SOURCES}:refuses_one", keep_training_mode=True)
    fixed = [TensorSpec(name="x", dtype="float32", shape=(2, 6, 8))]
    assert size_cases(loaded, fixed, ("output",)) == SizeCases()
    left = size_cases(loaded, specs_of(loaded), ("output",)).left_out
    assert left == dict.fromkeys(("batch", "seq"), "a module in training mode does not give the same numbers twice")


def test_axes_that_are_bound_to_each_other_are_not_tried_one_by_one() -> None:
    loaded = load_source(f"{SOURCES}:like_axes")
    specs = specs_of(loaded)
    specs[1] = TensorSpec(name="key", dtype="float32", shape=("batch", "seq + 1", 8))
    cases = size_cases(loaded, specs, ("output",))
    assert cases.cases == []
    assert cases.left_out["seq"] == "axes are bound to each other (seq + 1)"


def test_the_records_name_their_sizes_and_are_no_tighter_than_the_usual_cases() -> None:
    loaded = load_source("mha", options=SMALL)
    cases = size_cases(loaded, specs_of(loaded), ("output",))
    loose = record_size_cases(loaded, cases, {"2x5": {"output": (1e-3, 2e-3)}}, "fp32")
    own = record_size_cases(loaded, cases, {"2x5": {"output": (0.0, 0.0)}}, "fp32")
    assert [record.sizes for record in loose.records] == list(cases.sizes.values())
    assert {record.yardsticks["output"].sensitivity for record in loose.records} == {1e-3}
    assert {record.yardsticks["output"].sensitivity_row for record in loose.records} == {2e-3}
    for record in own.records:
        assert 0.1 * UNIT_ROUNDOFFS["fp32"] < record.yardsticks["output"].sensitivity < 10 * UNIT_ROUNDOFFS["fp32"]
    assert len(own.blobs) == 2 * len(own.records)
