"""The stress set: which cases a source gets, what they hold, and which rows of them decide nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.faults.graph_edits import GRAPH_EDITS

from crosshead.export import LoadedSource, build, cases_for, export_source, load_source
from crosshead.export._stress_inputs import Structure
from crosshead.export._stress_module import module_stress
from crosshead.export.artifact import GraphVerdict, Precision, TensorSpec
from crosshead.export.stress import ILL_CONDITIONED, MOST_ELEMENTS, StressCase, StressSet, record_stress
from crosshead.model_def import BLOCKS

SOURCES = Path(__file__).parent / "sources" / "stressed.py"
SMALL: dict[str, dict[str, Any]] = {
    "attention": {"d_model": 16, "num_heads": 2},
    "encoder": {"d_model": 16, "num_heads": 2, "d_ff": 24},
    "feed-forward": {"d_model": 16, "d_ff": 24},
}
SIZES = ["one token", "length 13", "length 9", "length 33", "batch 1", "batch 5"]
NUMBERS = ["gain 40", "saturated logits at gain 12", "logits beyond fp16 at gain 600", "one large token"]
NUMBERS += ["small inputs", "denormals", "equal logits"]
PADDING = ["left padding", "right padding", "non-contiguous padding", "one key kept"]
JUNK = "large numbers at masked positions"


def specs_of(loaded: LoadedSource) -> list[TensorSpec]:
    return [
        TensorSpec(
            name=name,
            dtype=array.dtype.name,
            shape=tuple(loaded.dynamic.get(name, {}).get(axis, size) for axis, size in enumerate(array.shape)),
        )
        for name, array in loaded.inputs.items()
    ]


def made(
    name: str, outputs: tuple[str, ...] = ("output",), precision: Precision = "fp32", taken: Any = (), **options: Any
) -> StressSet:
    if name in BLOCKS:
        options = {**SMALL[BLOCKS[name].layer], **options}
        if name == "llama-gqa":
            options = {"num_kv_heads": 1, "head_dim": 8, **options}
    loaded = load_source(name if name in BLOCKS else f"{SOURCES}:{name}", options=options)
    return module_stress(loaded, specs_of(loaded), outputs, precision, growth=1.0, taken=taken)


def names(found: StressSet) -> list[str]:
    return [each.case.name for each in found.cases]


def case(found: StressSet, name: str) -> StressCase:
    return next(each for each in found.cases if each.case.name == name)


def rows(each: StressCase, reason: str) -> set[tuple[int, int]]:
    return {row for apart in each.apart if apart.reason == reason for row in apart.rows}


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_has_a_set_that_can_be_judged(block: str) -> None:
    options: dict[str, Any] = {"kv_seq": 13} if block == "whisper-cross" else {}
    outputs = ("output", "present_key", "present_value") if block == "mha-decode" else ("output",)
    found = made(block, outputs, **options)
    assert set(NUMBERS) <= set(names(found))
    assert set(SIZES) <= set(names(found))
    assert len(set(names(found))) == len(found.cases)
    for each in found.cases:
        assert each.case.reason
        assert "{" not in each.case.reason
        assert sum(array.size for array in each.case.inputs.values()) <= MOST_ELEMENTS
        assert all(size <= ILL_CONDITIONED for pair in each.sensitivities.values() for size in pair)
        assert set(each.sensitivities) == set(outputs)


def test_self_attention_without_masks() -> None:
    found = made("mha")
    assert names(found) == [*SIZES, *NUMBERS]
    assert found.left_out == {}
    assert all(each.apart == () for each in found.cases)
    assert case(found, "one token").case.inputs["query"].shape == (1, 1, 16)
    assert case(found, "batch 5").case.inputs["query"].shape == (5, 7, 16)
    usual = case(found, "gain 40").case.inputs["query"].astype(np.float32) / 40
    assert np.allclose(case(found, "one large token").case.inputs["query"][0], usual[0])
    assert np.abs(case(found, "denormals").case.inputs["query"][:, 1]).max() < np.finfo(np.float32).smallest_normal


def test_two_lengths_are_tried_either_way() -> None:
    found = made("cross-attention")
    shapes = {
        each.case.name: (each.case.inputs["query"].shape[1], each.case.inputs["key"].shape[1]) for each in found.cases
    }
    assert shapes["one key"] == (5, 1)
    assert shapes["fewer queries than keys"] == (3, 11)
    assert shapes["more queries than keys"] == (11, 3)


def test_a_past_of_none_of_one_and_of_many() -> None:
    found = made("mha-decode", ("output", "present_key", "present_value"))
    past = {each.case.name: each.case.inputs["past_key"].shape[2] for each in found.cases}
    assert [past[f"past {length}"] for length in (0, 1, 29)] == [0, 1, 29]
    assert case(found, "past 29").case.inputs["query"].shape[1] == 1


def test_padding_is_put_everywhere_and_told_apart() -> None:
    found = made("mha-padded")
    assert set(names(found)) >= {*PADDING, "sequence of padding", JUNK}
    for each in found.cases:
        mask = each.case.inputs["key_padding_mask"]
        padded = {(int(b), int(i)) for b, i in np.argwhere(mask)}
        assert rows(each, "padded") == padded
    hidden = {name: case(found, name).case.inputs["key_padding_mask"] for name in names(found)}
    assert hidden["left padding"][0].tolist() == [True, True, False, False, False, False, False]
    assert hidden["right padding"][0].tolist() == [False, False, False, False, False, True, True]
    assert hidden["sequence of padding"].tolist() == [[True] * 7, [False] * 7]
    junk = case(found, JUNK).case.inputs
    assert np.abs(junk["query"][junk["key_padding_mask"]]).min() > 0
    assert np.abs(junk["query"][junk["key_padding_mask"]]).std() > 20


def test_nan_that_the_module_lets_through_is_no_case() -> None:
    left_out = made("mha-padded").left_out
    assert set(left_out) == {"NaN at masked positions", "Inf at masked positions"}
    assert "itself" in left_out["NaN at masked positions"]


def test_nan_that_must_not_leak_is_a_case() -> None:
    found = made("cleared")
    nan = case(found, "NaN at masked positions")
    assert np.isnan(nan.case.inputs["key"]).any()
    assert np.isnan(nan.case.inputs["value"]).any()
    assert not np.isnan(nan.case.inputs["query"]).any()
    assert np.isfinite(nan.expected["output"]).all()
    assert "Inf at masked positions" in names(found)


def test_masks_of_queries_and_keys() -> None:
    found = made("mha-masked")
    assert set(names(found)) >= {*PADDING, "own position only", "fully masked row", JUNK}
    masked = case(found, "fully masked row")
    assert rows(masked, "fully masked") == {(0, 1), (1, 1)}
    mask = masked.case.inputs["attn_mask"]
    assert not mask[:, :, 1].any()
    assert mask.any(axis=-1).sum() == mask.shape[0] * (mask.shape[2] - 1)
    for each in found.cases:
        if each is not masked:
            assert each.case.inputs["attn_mask"].any(axis=-1).all(), each.case.name
            assert not rows(each, "fully masked")


def test_an_additive_mask_hides_by_infinity_and_by_the_lowest_number() -> None:
    found = made("mha-masked", mask="additive")
    lowest = np.finfo(np.float32).min
    assert (case(found, "left padding").case.inputs["attn_mask"] == -np.inf).any()
    assert (case(found, "lowest finite fill").case.inputs["attn_mask"] == lowest).any()
    row = case(found, "row of lowest finite fill")
    assert (row.case.inputs["attn_mask"][:, :, 1] == lowest).all()
    assert rows(row, "fully masked") == {(0, 1), (1, 1)}, "runtimes differ: 0, or the mean of the values"
    assert np.isfinite(case(found, "gain 40").case.inputs["attn_mask"]).any()


def test_a_causal_block_whose_masks_hide_every_earlier_key() -> None:
    found = made("mha-masked", is_causal=True)
    left = case(found, "left padding")
    assert {query for _, query in rows(left, "fully masked")} == {0, 1, 2}, "they see the padding alone"
    assert rows(case(found, "left padding"), "fully masked") == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}


def test_which_keys_a_query_sees() -> None:
    causal = Structure(known=True, is_causal=True).sees(2, 4, past=1)
    assert causal.tolist() == [[True, True, False, False], [True, True, True, False]]
    window = Structure(known=True, window=2).sees(3, 3, past=0)
    assert window.tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    assert Structure(known=True).sees(2, 3, past=0).all()
    unknown = Structure()
    assert unknown.sees(3, 3, past=0).tolist() == np.eye(3, dtype=bool).tolist(), "it may be causal, or a window"
    assert unknown.sees(2, 3, past=0).tolist() == [[True, False, False], [True, True, False]]


def test_zeros_and_ones_of_unknown_meaning() -> None:
    found = made("flags")
    assert set(PADDING) <= set(names(found))
    assert "sequence of padding" not in names(found), "it would hide all, or nothing"
    left = case(found, "left padding")
    assert left.case.inputs["attention_mask"].tolist()[0] == [0, 0, 1, 1, 1, 1]
    assert rows(left, "fully masked") == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}, "if it is causal as well"
    assert all(not rows(each, "padded") for each in found.cases)


def test_a_mask_with_a_leading_axis_of_its_own_is_broadcast() -> None:
    found = made("added")
    each = case(found, "broadcast over axis 0")
    assert each.case.inputs["attention_mask"].shape == (1, 6, 6)
    assert each.case.inputs["x"].shape == (2, 6, 8)


def test_heads_that_are_split_already_count_their_tokens_on_the_third_axis() -> None:
    found = made("core")
    few = case(found, "fewer queries than keys").case.inputs
    assert (few["query"].shape, few["key"].shape) == ((2, 4, 3, 8), (2, 2, 11, 8))
    large = case(made("core", precision="fp16"), "one large token")
    assert np.abs(large.case.inputs["query"][1, :, 3]).min() > 0.1
    assert np.abs(large.case.inputs["query"][1, :, 2]).max() < 10
    assert rows(large, "beyond fp16") == {(1, 3)}
    equal = case(found, "equal logits").case.inputs
    assert (equal["key"] == equal["key"][:, :, :1]).all()
    assert not (equal["value"] == equal["value"][:, :, :1]).all()


def test_token_ids_stay_in_their_range() -> None:
    found = made("ids")
    assert names(found) == SIZES
    assert max(int(each.case.inputs["ids"].max()) for each in found.cases) <= 11
    assert all(each.case.inputs["ids"].dtype == np.int64 for each in found.cases)


def test_only_sizes_that_the_axes_and_the_module_allow() -> None:
    found = made("fixed_batch")
    assert all(each.case.inputs["x"].shape[0] == 2 for each in found.cases)
    assert "one token" not in names(found), "the module refuses it"
    assert "batch 1" not in names(found)
    assert "length 13" in names(found)


def test_large_examples_are_cut_to_small_ones() -> None:
    found = made("large")
    assert names(found)
    assert max(each.case.inputs["input"].shape[1] for each in found.cases) == 33


def test_half_precision_gets_milder_numbers() -> None:
    found = made("mha", precision="bf16", d_model=64, num_heads=4)
    gain = next(name for name in names(found) if name.startswith("gain "))
    assert float(gain.split()[1]) < 40
    told = found.left_out
    assert all("rounding to bf16" in reason for reason in told.values())
    fp16 = made("mha", precision="fp16")
    assert not any("beyond fp16" in name for name in names(fp16))
    large = case(fp16, "one large token")
    assert rows(large, "beyond fp16") == {(1, 3)}
    assert np.abs(large.case.inputs["query"][1, 3]).max() > 500
    tiny = np.abs(case(fp16, "denormals").case.inputs["query"][:, 1]).max()
    assert 1e-6 < tiny < np.finfo(np.float16).smallest_normal


def test_names_that_are_taken_are_left_to_others() -> None:
    assert "gain 40 (stress)" in names(made("mha", taken=("gain 40",)))


def test_records_carry_the_rows_apart() -> None:
    found = made("mha-padded")
    files = record_stress(found, "fp32")
    record = next(each for each in files.records if each.name == "left padding")
    assert [apart.reason for apart in record.apart] == ["padded"]
    assert record.apart[0].shape == (2, 7)
    assert set(record.yardsticks) == {"output"}
    assert all(f"{digest}.npz" in files.blobs for each in files.records for digest in each.digests)


def test_a_set_is_the_same_each_time() -> None:
    first, second = made("mha-masked"), made("mha-masked")
    assert record_stress(first, "fp32").records == record_stress(second, "fp32").records


def test_a_mask_that_is_filled_with_a_number_is_found_by_the_stress_set_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crosshead.export.forms import lower

    def filled(*arguments: Any) -> ir.Model:
        return ir.from_proto(GRAPH_EDITS["mask-fill"].apply(ir.to_proto(lower(*arguments))))

    monkeypatch.setattr(build, "lower", filled)
    loaded = load_source("mha-padded", options={"d_model": 64, "num_heads": 4})
    cases = cases_for(loaded, batches=(2,), lengths=(9,))

    def verdict(*, stress: bool) -> GraphVerdict:
        (artifact,) = export_source(
            loaded, cases, forms=[("decomposed", 18)], out=tmp_path / str(stress), stress=stress
        )
        return artifact.manifest.graph

    assert verdict(stress=False).verdict == "pass", "exp(-30) drowns in everything else"
    found = verdict(stress=True)
    assert (found.verdict, found.by_stress) == ("fail", True)
    assert "case 'one key kept at gain 40'" in found.detail


def test_many_weights_leave_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crosshead.export.stress.MOST_WEIGHTS", 100)
    found = made("mha")
    assert found.cases == ()
    assert "100" in found.left_out["all"]
