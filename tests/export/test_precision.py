from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from crosshead.export import Case, LoadedSource, SourceError, load_source
from crosshead.export.artifact import Precision, Source, cast_module
from crosshead.export.precision import DTYPES, CastSource, cast_source

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"
LOWEST = float(np.finfo(np.float32).min)
LARGEST = {"fp16": 65504.0, "bf16": torch.finfo(torch.bfloat16).max}


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.tensor([1.0, 1 / 3, 2.0]))
        self.register_buffer("count", torch.tensor([4, 5]))
        self.plain = self.first.weight * 2  # carries a gradient, and refuses to be copied by itself
        self.turns = torch.polar(torch.ones(2), torch.ones(2))


def loaded(module: nn.Module, inputs: dict[str, Any] | None = None, **roles: str) -> LoadedSource:
    source = Source(kind="factory", name="m")
    return LoadedSource(module, {"x": np.ones(3, np.float32)} if inputs is None else inputs, {}, roles, source, None)


def cast(source: LoadedSource, precision: Precision = "fp16") -> CastSource:
    return cast_source(source, [Case("c", "", 0, source.inputs)], precision)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_copy_is_cast_and_the_module_stays(precision: Precision, dtype: torch.dtype) -> None:
    original = Mixed()
    source = loaded(original)
    found = cast(source, precision)
    module: Any = found.loaded.module
    assert module.first.weight.dtype == module.table.dtype == dtype
    assert module.second.weight is module.first.weight
    assert module.count.dtype == torch.int64
    assert module.plain.dtype == torch.float32  # as `.half()` leaves it
    assert torch.equal(module.table, torch.tensor([1.0, 1 / 3, 2.0]).to(dtype))
    assert {tensor.dtype for tensor in original.state_dict().values()} == {torch.float32, torch.int64}
    assert found.loaded.inputs["x"].dtype == found.cases[0].inputs["x"].dtype == DTYPES[precision]
    assert source.inputs["x"].dtype == np.float32
    assert (source.source.cast, found.loaded.source.cast) == (None, precision)
    assert found.notices == ()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_has_the_precision_stays_as_it_is(precision: Precision) -> None:
    source = load_source(f"{TROUBLES}:bfloat16_core") if precision == "bf16" else loaded(Mixed())
    assert cast(source, precision).loaded is source


def test_a_bfloat16_module_can_be_cast_as_well() -> None:
    found = cast(load_source(f"{TROUBLES}:bfloat16_core"), "fp32")
    assert found.loaded.inputs["query"].dtype == np.float32
    assert found.loaded.source.cast == "fp32"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("mask", "role"),
    [
        ([0.0, LOWEST], None),
        ([3.0, LOWEST], None),  # a relative position beside a fill
        ([0.0, LOWEST / 2, -np.inf], "attn_mask"),
        ([3.0, LOWEST / 1.0000001], "attn_mask"),
    ],
)
def test_masks_stay_finite(precision: Precision, mask: list[float], role: str | None) -> None:
    array = np.array(mask, np.float32)
    found = cast(loaded(Mixed(), {"x": array}, **({} if role is None else {"x": role})), precision)
    got = found.cases[0].inputs["x"].astype(np.float64)
    assert np.array_equal(np.isinf(got), np.isinf(array))
    assert got[0] == mask[0]
    assert got[1] <= LARGEST[precision] / -2.01
    assert found.notices == ()


def test_what_is_beyond_the_range_is_told() -> None:
    module = nn.Linear(2, 2, bias=False)
    module.weight.data[0, 1] = -7e4
    found = cast(loaded(module, {"x": np.array([1.0, 1e6, np.inf], np.float32)}))
    assert [(notice.code, notice.where, notice.message) for notice in found.notices] == [
        ("fp16-overflow", "weight of m", "weight holds 7e+04, and fp16 ends at 65504: it became infinite"),
        ("fp16-overflow", "x of m c", "x holds 1e+06, and fp16 ends at 65504: it became infinite"),
    ]
    assert cast(loaded(module), "bf16").notices == ()


def test_a_module_that_cannot_be_copied_says_so() -> None:
    class Locked(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot pickle '_thread.lock' object")

    with pytest.raises(SourceError, match=r"^m cannot be copied and cast to fp16: cannot pickle"):
        cast(loaded(Locked(3, 3)))


def test_a_module_that_casts_its_own_way_is_followed() -> None:
    class Stubborn(nn.Linear):
        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            return self

    assert cast_module(Stubborn(2, 2), "fp16").weight.dtype == torch.float32
    assert cast(loaded(Stubborn(3, 3))).loaded.source.cast == "fp16"
