import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tests.model_def.strategies import distance, outputs_of, weights_of

from crosshead.model_def import blocks, reference
from crosshead.model_def.block import Block
from crosshead.model_def.blocks import BLOCKS
from crosshead.model_def.errors import ConfigError

SMALL: dict[str, dict[str, object]] = {
    name: {"d_model": 32, "d_ff": 48} if block.layer == "feed-forward" else {"d_model": 32}
    for name, block in BLOCKS.items()
}
for _name in ("bert-base", "vit-b", "whisper-cross"):
    SMALL[_name] |= {"num_heads": 4}
SMALL["llama-gqa"] |= {"num_heads": 8, "num_kv_heads": 2}
SMALL["whisper-cross"] |= {"kv_seq": 9}
every_block = pytest.mark.parametrize("name", BLOCKS)


def test_the_names_are_these() -> None:
    assert set(BLOCKS) == {
        "mha",
        "mha-masked",
        "mha-causal",
        "mha-padded",
        "mha-decode",
        "cross-attention",
        "gqa",
        "mqa",
        "encoder-layer",
        "encoder-layer-prenorm",
        "encoder-layer-padded",
        "feed-forward",
        "bert-base",
        "vit-b",
        "llama-gqa",
        "whisper-cross",
    }
    assert next(iter(BLOCKS)) == "mha"
    assert all(name == block.name and block.summary for name, block in BLOCKS.items())


@every_block
def test_the_factory_has_the_name_that_the_block_gives(name: str) -> None:
    module, _, attribute = BLOCKS[name].factory.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    torch.manual_seed(3)
    built, inputs, dynamic, roles = factory(**SMALL[name])
    assert not any(part.training for part in built.modules())
    assert tuple(inputs) == BLOCKS[name].takes == tuple(dynamic) == tuple(roles)
    assert all(isinstance(tensor, torch.Tensor) for tensor in inputs.values())
    torch.manual_seed(3)
    again, same_inputs, _, _ = factory(**SMALL[name])
    for one, other in zip(built.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(inputs[each], same_inputs[each]) for each in inputs)


def test_every_factory_is_a_block() -> None:
    named = {block.factory.partition(":")[2] for block in BLOCKS.values()}
    assert named == {
        name for name, value in vars(blocks).items() if callable(value) and name.islower() and name[0] != "_"
    } - {"attention_fields"}


@every_block
def test_example_sizes_are_no_1_and_equal_only_where_one_symbol_names_them(name: str) -> None:
    _, inputs, dynamic, _ = BLOCKS[name].example(**SMALL[name])
    sizes: dict[str, set[int]] = {}
    for each, axes in dynamic.items():
        for axis, symbol in axes.items():
            sizes.setdefault(symbol, set()).add(inputs[each].shape[axis])
    assert all(len(found) == 1 for found in sizes.values())
    values = [found.pop() for found in sizes.values()]
    assert 1 not in values
    assert len(set(values)) == len(values)


@every_block
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (3, 6)])
def test_drawn_inputs_fit_and_the_output_equals_the_reference(name: str, batch: int, seq: int) -> None:
    block = BLOCKS[name]
    torch.manual_seed(0)
    module = block.build(**SMALL[name]).double()
    arrays = block.inputs(batch, seq, 5, **SMALL[name])
    assert tuple(arrays) == block.takes
    for each in arrays.values():
        assert each.dtype in (np.float32, np.bool_)
        assert each.shape[0] == batch
    again = block.inputs(batch, seq, 5, **SMALL[name])
    assert all(np.array_equal(arrays[each], again[each]) for each in arrays)
    wide = {each: array.astype(np.float64) if array.dtype == np.float32 else array for each, array in arrays.items()}
    got = outputs_of(module, {each: torch.from_numpy(array) for each, array in wide.items()})
    config: Any = module.config
    want = reference.evaluate(config, weights_of(module), wide)
    for one, other in zip(got, want, strict=True):
        assert distance(one, other) < 1e-10


def test_masks_are_drawn_to_mean_something() -> None:
    padding = BLOCKS["mha-padded"].inputs(4, 16, 0)["key_padding_mask"]
    assert padding[0].any()
    assert not padding[:, 0].any()
    assert (np.diff(padding.astype(int), axis=1) >= 0).all()  # padding stands at the right
    mask = BLOCKS["mha-masked"].inputs(4, 16, 0)["attn_mask"]
    assert mask.dtype == np.bool_
    assert mask[:, :, np.arange(16), np.arange(16)].all()
    assert 0.6 < mask.mean() < 0.9
    bias = BLOCKS["mha-masked"].inputs(4, 16, 0, mask="additive")["attn_mask"]
    assert bias.shape == (4, 1, 16, 16)
    assert bias.dtype == np.float32


def test_tokens_are_drawn_from_the_named_sample() -> None:
    normal, large = (BLOCKS["mha"].inputs(1, 4, 9, sample=kind)["query"] for kind in ("normal", "large"))
    np.testing.assert_allclose(large, 40 * normal, rtol=1e-6)
    _, example, _, _ = BLOCKS["mha"].example(sample="zeros")
    assert not example["query"].any()
    with pytest.raises(ConfigError, match=r"^sample: expected one of normal, "):
        BLOCKS["mha"].inputs(1, 4, 9, sample="gauss")


def test_a_decoding_step_counts_the_past_in_its_length() -> None:
    block = BLOCKS["mha-decode"]
    shapes = {name: array.shape for name, array in block.inputs(2, 128, 0).items()}
    assert shapes == {"query": (2, 1, 512), "past_key": (2, 8, 127, 64), "past_value": (2, 8, 127, 64)}
    assert block.inputs(1, 1, 0)["past_key"].shape == (1, 8, 0, 64)
    assert block.inputs(1, 10, 0, new_tokens=4)["query"].shape == (1, 4, 512)
    with pytest.raises(ConfigError, match=r"^seq: expected at least new_tokens=4, got 3$"):
        block.inputs(1, 3, 0, new_tokens=4)


def test_a_cross_attention_has_a_length_of_its_own_for_the_keys() -> None:
    assert BLOCKS["cross-attention"].inputs(1, 5, 0)["key"].shape == (1, 5, 512)
    assert BLOCKS["cross-attention"].inputs(1, 5, 0, kv_seq=9, kv_dim=64)["key"].shape == (1, 9, 64)
    assert BLOCKS["whisper-cross"].inputs(1, 5, 0)["key"].shape == (1, 1500, 768)


@every_block
def test_every_field_can_be_set_to_its_default(name: str) -> None:
    block = BLOCKS[name]
    fields = block.fields() | SMALL[name]
    torch.manual_seed(0)
    want = block.build(**SMALL[name])
    torch.manual_seed(0)
    got = block.build(**fields)
    assert (type(got), got.config) == (type(want), want.config)
    block.inputs(1, 2, 0, **fields)


def test_fields_of_a_preset_are_its_own() -> None:
    fields = BLOCKS["llama-gqa"].fields()
    assert (fields["num_kv_heads"], fields["rotary_base"], fields["bias"]) == (8, 500_000.0, False)
    assert BLOCKS["llama-gqa"].fields() is not BLOCKS["llama-gqa"].fields()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mha", {"num_head": 4}, "mha has no field 'num_head'; did you mean 'num_heads'?"),
        (
            "feed-forward",
            {"window": 4},
            "feed-forward has no field 'window'; it has activation, bias, d_ff, d_model, sample",
        ),
        (
            "encoder-layer",
            {"kv_dim": 4},
            "encoder-layer has no field 'kv_dim'; it has activation, bias, d_ff, d_model, head_dim, implementation, "
            "is_causal, norm_first, num_heads, num_kv_heads, qk_norm, rotary_base, rotary_dim, sample, "
            "scale, softcap, window",
        ),
        (
            "mha",
            {"num_heads": 7},
            "num_heads must divide d_model when head_dim is not given: got d_model=512, num_heads=7",
        ),
        ("mha", {"implementation": "flash"}, "implementation: expected one of sdpa, explicit, got 'flash'"),
        ("mha", {"rotary_dim": 4}, "rotary_dim: expected with rotary_base, got rotary_dim=4 alone"),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BLOCKS[name].build(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mha-masked", {"mask": "none"}, "mask: expected one of boolean, additive, got 'none'"),
        ("mha-decode", {"new_tokens": 0}, "new_tokens: expected a whole number of at least 1, got 0"),
        ("cross-attention", {"kv_seq": "9"}, "kv_seq: expected a whole number of at least 1, got '9'"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BLOCKS[name].inputs(2, 5, 0, **options)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match="batch: expected a whole number of at least 1, got 0"):
        BLOCKS["mha"].inputs(0, 5, 0)


def flops(block: Block, batch: int, seq: int, **options: object) -> float:
    shapes = {name: array.shape for name, array in block.inputs(batch, seq, 0, **options).items()}
    return block.flops(shapes, **options)


def test_flops_follow_the_formula() -> None:
    width, batch, seq = 512, 8, 128
    projections, core = 2 * batch * 4 * seq * width**2, 4 * batch * 8 * seq**2 * 64
    hidden = 4 * batch * seq * width * 2048
    assert flops(BLOCKS["mha"], batch, seq) == projections + core
    assert flops(BLOCKS["mha-causal"], batch, seq) == projections + core * (seq + 1) / (2 * seq)
    windowed = core * (9 * seq - 2 * (4 + 3 + 2 + 1)) / seq**2  # the first and last four see fewer than nine
    assert flops(BLOCKS["mha"], batch, seq, window=5) == projections + windowed
    assert flops(BLOCKS["gqa"], batch, seq) == 2 * batch * seq * width * (2 * width + 2 * 128) + core
    assert flops(BLOCKS["feed-forward"], batch, seq) == hidden
    assert flops(BLOCKS["encoder-layer"], batch, seq) == projections + core + hidden
    crossed = 2 * batch * (2 * seq * width**2 + 2 * 50 * 64 * width) + 4 * batch * width * seq * 50
    assert flops(BLOCKS["cross-attention"], batch, seq, kv_seq=50, kv_dim=64) == crossed
    step = 2 * batch * 4 * width**2 + 4 * batch * width * seq  # one token at the end sees the whole cache
    assert flops(BLOCKS["mha-decode"], batch, seq) == step


def test_importing_the_table_needs_no_torch() -> None:
    code = (
        "import sys, crosshead.model_def.blocks as b; b.BLOCKS['mha'].inputs(1, 2, 0); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
