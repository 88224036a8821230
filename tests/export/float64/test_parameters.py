"""Weights are found in the graph bit for bit, however an exporter laid them out, and changed ones are named."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from crosshead.export.float64 import Float64Module, module_outputs_float64
from crosshead.export.float64._bits import BitIndex
from crosshead.export.float64.parameters import ParameterCheck, check_parameters

Array = NDArray[Any]


class Projections(nn.Module):
    """Three projections, a gain that multiplies, a parameter that nothing reads, a bias that softmax cancels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(4, 6) for _ in range(3))
        self.gain = nn.Parameter(torch.rand(6))
        self.idle = nn.Parameter(torch.rand(5))
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).mT * self.temperature
        output: torch.Tensor = scores.softmax(-1) @ self.value(x) * self.gain
        return output


MODULE = Projections()
WEIGHTS: dict[str, Array] = {name: tensor.detach().numpy() for name, tensor in MODULE.named_parameters()}
USED = {name: array for name, array in WEIGHTS.items() if name != "idle"}
CASE = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}


def check(
    constants: dict[str, Array], module: nn.Module = MODULE, case: dict[str, Array] | None = CASE
) -> ParameterCheck:
    expected = module_outputs_float64(module, case, ["y"]) if case is not None else {}
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    oracle = Float64Module(module)
    found = check_parameters(oracle, constants, case, expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(torch.equal(wide, tensor.double()) for _, tensor, wide in oracle.state)
    return found


def rest(*names: str) -> dict[str, Array]:
    return {name: array for name, array in USED.items() if name not in names}


PROJECTIONS = ("query.weight", "key.weight", "value.weight")
BIASES = ("query.bias", "key.bias", "value.bias")
LAYOUTS = {
    "as they are": USED,
    "transposed": {name: array.T for name, array in USED.items()},
    "packed": {**rest(*PROJECTIONS), "packed": np.concatenate([USED[name] for name in PROJECTIONS])},
    "packed and transposed": {
        **rest(*PROJECTIONS),
        "packed": np.concatenate([USED[name].T for name in PROJECTIONS], 1),
    },
    "biases packed": {**rest(*BIASES), "packed": np.concatenate([USED[name] for name in BIASES])},
    "split into heads": {
        **rest("query.weight"),
        **{f"head{number}": USED["query.weight"][number : number + 2] for number in (0, 2, 4)},
    },
    "split over inputs": {**rest("query.weight"), "a": USED["query.weight"][:, :1], "b": USED["query.weight"][:, 1:].T},
    "bias split": {**rest("query.bias"), "a": USED["query.bias"][:4], "b": USED["query.bias"][4:]},
    "heads on an axis": {**rest("query.weight"), "heads": USED["query.weight"].reshape(3, 2, 4).transpose(0, 2, 1)},
    "as a convolution": {**rest("query.weight"), "conv": USED["query.weight"][:, :, np.newaxis]},
    "repeated for broadcast": {**rest("gain"), "gain": np.tile(USED["gain"], (3, 1))},
    "with the idle one": WEIGHTS,
    "without the cancelled bias of the key": rest("key.bias"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_found(layout: str) -> None:
    found = check(dict(LAYOUTS[layout]))
    assert found == ParameterCheck((), ())
    assert found.equal


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "cancelled" not in name])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_one_element_changed_in_its_last_place_is_found_in_every_layout(layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    constants = {name: array.copy() for name, array in LAYOUTS[layout].items() if name != "idle"}
    name = sorted(constants)[rng.integers(len(constants))]
    place = tuple(rng.integers(0, constants[name].shape)) if constants[name].ndim else ()
    constants[name][place] = np.nextafter(constants[name][place], np.float32(rng.choice([-9, 9])))
    if layout == "repeated for broadcast" and name == "gain":
        return  # the other copies still hold the weight
    found = check(constants)
    assert len(found.changed) == 1
    assert not found.equal


def test_the_sentence_names_weight_place_and_values() -> None:
    changed = USED["value.weight"].T.copy()
    changed[2, 5] = 9
    (sentence,) = check({**rest("value.weight"), "w": changed}).changed
    value = f"{USED['value.weight'][5, 2]:.9g}"
    assert sentence == (
        f"value.weight differs from the graph's in 1 of 24 elements, first at [5, 2]: {value} in the module, "
        "9 in the graph"
    )


def test_without_a_case_a_change_is_found_and_an_absence_is_not() -> None:
    assert check(rest("gain"), case=None).equal
    changed = np.nextafter(USED["gain"], np.float32(9))
    assert not check({**rest("gain"), "gain": changed}, case=None).equal


def test_a_folded_weight_is_absent_and_not_changed() -> None:
    found = check({**rest("gain"), "folded": 1 + USED["gain"]})
    assert found == ParameterCheck((), ("gain",))
    assert not found.equal


def test_a_scaled_part_of_a_packed_matrix_is_absent_and_not_changed() -> None:
    parts = [USED["query.weight"] * np.float32(0.3), USED["key.weight"], USED["value.weight"]]
    assert check({**rest(*PROJECTIONS), "packed": np.concatenate(parts)}) == ParameterCheck((), ("query.weight",))


def test_a_lost_weight_is_absent_and_a_lost_bias_of_zeros_is_nothing() -> None:
    assert check(rest("value.weight")).absent == ("value.weight",)
    module = nn.Linear(4, 4)
    nn.init.zeros_(module.bias)
    case = {"input": CASE["x"]}
    assert check({"w": module.weight.detach().numpy()}, module, case).equal


def test_a_table_of_which_a_slice_is_read_is_found() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.rand(10, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table[:3]

    module = Positions()
    table = module.table.detach().numpy()
    assert check({"slice": table[:3]}, module).equal
    assert not check({"slice": np.nextafter(table[:3], np.float32(9))}, module).equal
    swapped = table.copy()
    swapped[7, 1] += 1  # a row that this case does not read
    assert not check({"table": swapped}, module).equal


def test_a_half_weight_may_be_cast_up() -> None:
    module = nn.Linear(4, 4, bias=False).bfloat16()
    weight = module.weight.detach().float().numpy()
    assert check({"w": weight}, module, {"input": CASE["x"]}).equal
    weight = weight.copy()
    weight[0, 0] = np.nextafter(weight[0, 0], np.float32(9))
    assert not check({"w": weight}, module, {"input": CASE["x"]}).equal


def test_buffers_are_told_when_changed_and_not_when_absent() -> None:
    class Normal(nn.Module):
        table: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.rand(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table.exp()

    module = Normal()
    assert check({"folded": module.table.exp().numpy()}, module).equal
    changed = module.table.numpy().copy()
    changed[1, 1] = np.nextafter(changed[1, 1], np.float32(9))
    assert check({"table": changed}, module).changed[0].startswith("table differs from the graph's in 1 of 12")


def test_bits_not_values_are_compared() -> None:
    index = BitIndex([np.array([0.0, 1.0], np.float32)])
    assert index.has(np.array([0.0, 1.0], np.float32))
    assert not index.has(np.array([-0.0, 1.0], np.float32))
    assert not index.has(np.array([0.0, 1.0], np.float64))
    nan = np.array([np.nan, 2.0], np.float32)
    assert BitIndex([nan]).has(nan.copy())


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 1, 1)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 0.3, np.float32)
    assert not BitIndex([array]).missing(array).any()
    assert BitIndex([np.array([0.4, 0.5], np.float32)]).missing(array).all() or array.size == 0
    assert BitIndex([]).missing(array).shape == shape


def test_arrays_of_more_than_four_axes_are_compared_in_two_orders() -> None:
    array = np.random.default_rng(0).normal(size=(2, 3, 2, 3, 2)).astype(np.float32)
    assert BitIndex([array.T]).has(array)
