"""The float64 oracle of a module: code written for single precision must compute in double."""

import copy
import dataclasses
import threading
import warnings
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from crosshead.export.artifact import SourceError
from crosshead.export.error import relative_l2
from crosshead.export.float64 import Float64Module, module_outputs_float64

Arrays = dict[str, NDArray[Any]]
X = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
EPS, MOST = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).max)
TABLE = torch.linspace(0.1, 1, 8)


class Each(nn.Module):
    """Apply a function to x, so that a test is one line."""

    def __init__(self, function: Any, **state: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x) if self._buffers else self.function(x)


def oracle(function: Any, x: NDArray[Any] = X, **state: torch.Tensor) -> NDArray[np.generic]:
    return module_outputs_float64(Each(function, **state), {"x": x}, ["y"])["y"]


def wide(x: NDArray[Any] = X) -> NDArray[np.float64]:
    return x.astype(np.float64)


SINGLE_PRECISION: dict[str, tuple[Any, Any]] = {
    "float": (lambda x: (x.float() / 3).float(), lambda x: x / 3),
    "half": (lambda x: (x / 3).half() * 1.0, lambda x: x / 3),
    "bfloat16": (lambda x: (x / 3).bfloat16(), lambda x: x / 3),
    "to dtype": (lambda x: (x / 3).to(torch.float32), lambda x: x / 3),
    "to device and dtype": (lambda x: (x / 3).to("cpu", torch.float32), lambda x: x / 3),
    "to keyword": (lambda x: (x / 3).to(dtype=torch.float16), lambda x: x / 3),
    "to own dtype": (lambda x: (x / 3).to(x.dtype), lambda x: x / 3),
    "type": (lambda x: (x / 3).type(torch.float32), lambda x: x / 3),
    "type by name": (lambda x: (x / 3).type("torch.FloatTensor"), lambda x: x / 3),
    "type by class": (lambda x: (x / 3).type(torch.FloatTensor), lambda x: x / 3),
    "tensor": (lambda x: x * torch.tensor(0.1, dtype=torch.float32), lambda x: x * 0.1),
    "default dtype": (lambda x: x * torch.tensor(0.1), lambda x: x * 0.1),
    "full": (lambda x: x * torch.full((8,), 0.1, dtype=torch.float32), lambda x: x * 0.1),
    "arange": (lambda x: x * (torch.arange(8, dtype=torch.float32) / 3).cos(), lambda x: x * np.cos(np.arange(8) / 3)),
    "own arange": (lambda x: x * (torch.arange(8, dtype=x.dtype) / 3).cos(), lambda x: x * np.cos(np.arange(8) / 3)),
    "linspace": (lambda x: x * torch.linspace(0, 1, 8).exp(), lambda x: x * np.exp(np.linspace(0, 1, 8))),
    "softmax dtype": (lambda x: nn.functional.softmax(x, dim=-1, dtype=torch.float32), lambda x: _softmax(x)),
    "sum dtype": (lambda x: x.div(3).sum(-1, dtype=torch.float32), lambda x: (x / 3).sum(-1)),
    "eps of own dtype": (lambda x: x * torch.finfo(x.dtype).eps, lambda x: x * EPS),
    "lowest of own dtype": (lambda x: x.new_full((3, 8), torch.finfo(x.dtype).min), lambda x: x * 0 - MOST),
    "branch on dtype": (lambda x: x / 3 if x.dtype == torch.float32 else x * 0, lambda x: x / 3),
    "complex": (lambda x: _turned_by_torch(x), lambda x: _turned(x)),
    "complex64": (lambda x: torch.complex(x, x).to(torch.complex64).abs(), lambda x: np.sqrt(2) * np.abs(x)),
    "rms norm": (lambda x: nn.functional.rms_norm(x * 1e-4, (8,)), lambda x: _rms(x * 1e-4, EPS)),
    "nan to num": (lambda x: torch.nan_to_num(x / 0, nan=0.5), lambda x: np.sign(x) * MOST),
}  # fmt: skip  # one case a line


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def _rms(x: NDArray[np.float64], eps: float) -> NDArray[np.float64]:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps))


def _turned_by_torch(x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(3, 4, 2))
    turn: torch.Tensor = torch.polar(torch.ones(4), torch.arange(4.0))
    real: torch.Tensor = torch.view_as_real(pairs * turn)
    return real.reshape(3, 8)


def _turned(x: NDArray[np.float64]) -> NDArray[np.float64]:
    pairs = x.reshape(3, 4, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * np.arange(4))
    return np.stack([turned.real, turned.imag], -1).reshape(3, 8)


@pytest.mark.parametrize("name", SINGLE_PRECISION)
def test_code_for_single_precision_computes_in_double(name: str) -> None:
    function, expected = SINGLE_PRECISION[name]
    assert relative_l2(oracle(function), expected(wide())) < 1e-15


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_inputs_of_any_precision_are_widened(dtype: Any) -> None:
    x = X.astype(dtype)
    assert np.array_equal(oracle(lambda x: x / 3, x), wide(x) / 3)


def test_integers_and_booleans_stay() -> None:
    ids = np.array([[1, 2], [0, 3]])
    assert oracle(lambda x: x + 1, ids).dtype == np.int64
    assert oracle(lambda x: ~x, ids > 1).tolist() == [[True, False], [True, False]]


def test_half_module_reads_its_own_dtype_and_weights() -> None:
    module: nn.Module = nn.Linear(8, 4).bfloat16()
    seen: list[torch.dtype] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    got = module_outputs_float64(module, {"input": X.astype(ml_dtypes.bfloat16)}, ["y"])["y"]
    weight, bias = (parameter.detach().double().numpy() for parameter in module.parameters())
    assert relative_l2(got, wide(X.astype(ml_dtypes.bfloat16)) @ weight.T + bias) < 1e-15
    assert seen == [torch.bfloat16]


def test_state_of_every_kind_is_widened_and_shared_state_stays_shared() -> None:
    class Holder(nn.Module):
        turn: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))
            self.tied = self.weight
            self.register_buffer("turn", torch.polar(torch.ones(8), torch.arange(8.0)), persistent=False)
            self.tables = {"list": [torch.arange(8.0) / 3]}
            self.cached = self.weight * 2  # carries a gradient, which deepcopy refuses

        def forward(self, x: torch.Tensor) -> Any:
            one = self.weight is self.tied
            everything = (self.weight, self.turn.real, self.tables["list"][0], self.cached, TABLE)
            return x * torch.stack([part / 3 for part in everything]).sum(0) * one

    module = Holder()
    got = module_outputs_float64(module, {"x": X}, ["y"])["y"]
    parts = [module.weight, module.turn.real, module.tables["list"][0], module.cached, TABLE]
    assert relative_l2(got, wide() * np.sum([part.detach().double().numpy() / 3 for part in parts], axis=0)) < 1e-15
    assert all(part.dtype == torch.float32 for part in parts)


def test_rms_norm_module_keeps_the_eps_of_float32() -> None:
    got = module_outputs_float64(nn.RMSNorm(8), {"x": X * np.float32(1e-4)}, ["y"])["y"]
    assert relative_l2(got, _rms(wide(X * np.float32(1e-4)), EPS)) < 1e-15


def test_encoder_fast_path_is_off() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    src = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    padding = np.zeros((2, 5), dtype=np.bool_)
    padding[1, 3:] = True
    got = module_outputs_float64(encoder, {"src": src, "src_key_padding_mask": padding}, ["y"])["y"]
    slow = copy.deepcopy(encoder).double()
    want = slow(torch.from_numpy(src).double(), src_key_padding_mask=torch.from_numpy(padding))  # with gradients: slow
    assert got.shape == (2, 5, 8)
    assert relative_l2(got, want.detach().numpy()) < 1e-14


def test_encoder_fast_path_is_off_while_a_module_runs() -> None:
    seen: list[bool] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.backends.mha.get_fastpath_enabled())
        return x

    oracle(forward)
    assert seen == [False]
    assert torch.backends.mha.get_fastpath_enabled()


def test_fully_masked_row_of_scaled_dot_product_attention_is_zero() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    got = oracle(lambda x: nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))
    assert np.all(got[1] == 0)
    assert np.all(got[0] != 0)


def test_module_that_changes_inputs_and_buffers_is_run_on_copies() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        self.count.add_(1)
        x.mul_(2)
        self.kept = x
        return x + self.count + (0 if not hasattr(self, "seen") else 1000)

    class Changing(Each):
        def forward(self, x: torch.Tensor) -> Any:
            result = forward(self, x)
            self.seen = True
            return result

    module = Changing(forward, count=torch.zeros(1))
    x = X.copy()
    evaluator = Float64Module(module)
    first = evaluator.run({"x": x}, ["y"])["y"]
    second = evaluator.run({"x": x}, ["y"])["y"]
    assert np.array_equal(first, wide() * 2 + 1)
    assert np.array_equal(second, first)
    assert np.array_equal(x, X)
    assert dict(module.named_buffers())["count"].item() == 0
    assert not hasattr(module, "kept")


@dataclasses.dataclass
class Output:
    first: torch.Tensor
    second: torch.Tensor | None


torch.utils._pytree.register_dataclass(Output)


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda x: x, ["a"]),
        (lambda x: (x, x + 1), ["a", "b"]),
        (lambda x: [x, (x + 1, None, x + 2)], ["a", "b", "c"]),
        (lambda x: OrderedDict(z=x, a=x + 1), ["a", "b"]),
        (lambda x: Output(x, x + 1), ["a", "b"]),
        (lambda x: Output(x, None), ["a"]),
    ],
)
def test_outputs_are_bound_in_the_order_of_torch_export(result: Any, names: list[str]) -> None:
    got = module_outputs_float64(Each(result), {"x": X}, names)
    assert list(got) == names
    for number, name in enumerate(names):
        assert np.array_equal(got[name], wide() + number)


def test_complex_output_is_pairs_of_real_numbers() -> None:
    got = oracle(lambda x: torch.complex(x, -x).conj())
    assert np.array_equal(got, np.stack([wide(), wide()], -1))


def test_arguments_are_bound_by_name_or_where_they_must_by_position() -> None:
    class Named(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor | None = None, *, mask: torch.Tensor) -> torch.Tensor:
            return query * mask if key is None else query * key

    class Positional(nn.Module):
        def forward(self, first: torch.Tensor, /, *rest: torch.Tensor) -> torch.Tensor:
            return first - rest[0]

    two = np.array([2.0], np.float32)
    assert module_outputs_float64(Named(), {"mask": two, "query": X}, ["y"])["y"][0, 0] == wide()[0, 0] * 2
    assert module_outputs_float64(Positional(), {"a": X, "b": two}, ["y"])["y"][0, 0] == wide()[0, 0] - 2


def test_scalar_and_empty_inputs() -> None:
    assert oracle(lambda x: x.sum(), np.array(3, np.float32)).shape == ()
    assert oracle(lambda x: x * 2, np.zeros((0, 4), np.float32)).shape == (0, 4)


def _torch_state() -> tuple[Any, ...]:
    cuda: Any = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        torch.random.get_rng_state().tolist(),
    )


def test_torch_state_is_restored_also_after_an_error() -> None:
    def wreck(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        torch.set_default_dtype(torch.float16)
        if x.sum() > 1e9:
            raise ValueError("too large for this test\nand more lines")
        return x

    before = _torch_state()
    oracle(wreck)
    assert _torch_state() == before
    with pytest.raises(SourceError, match=r"^Each fails in float64: ValueError: too large for this test$"):
        oracle(wreck, np.full((2, 2), 1e9, np.float32))
    assert _torch_state() == before


def test_other_number_of_outputs_is_one_clear_line() -> None:
    with pytest.raises(SourceError, match="Each returns 2 outputs, and 1 are named: a"):
        module_outputs_float64(Each(lambda x: (x, x)), {"x": X}, ["a"])


def test_output_that_is_no_tensor_is_named() -> None:
    with pytest.raises(SourceError, match="forward returns a int; expected tensors"):
        module_outputs_float64(Each(lambda x: (x, 3)), {"x": X}, ["a", "b"])


def test_module_that_cannot_be_copied_is_named() -> None:
    module = Each(lambda x: x)
    module.lock = threading.Lock()  # type: ignore[assignment]  # anything can be put on a module
    with pytest.raises(SourceError, match=r"Each cannot be copied .* keep locks"):
        module_outputs_float64(module, {"x": X}, ["y"])


def test_folded_run_keeps_tables_in_the_modules_precision_and_data_in_double() -> None:
    module = Each(lambda x: x / 3 + torch.arange(8).float().add(0.1).cos())
    got = Float64Module(module).run_folded({"x": X}, ["y"])["y"]
    table = torch.arange(8).float().add(0.1).cos().numpy()
    assert relative_l2(got, wide() / 3 + wide(table)) < 1e-15
    weights = nn.Linear(8, 4)
    oracle_ = Float64Module(weights)
    assert relative_l2(oracle_.run_folded({"x": X}, ["y"])["y"], oracle_.run({"x": X}, ["y"])["y"]) < 1e-15


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)
        return output


def test_torchscript_is_refused_in_one_line() -> None:
    with warnings.catch_warnings():  # torch calls it deprecated
        warnings.simplefilter("ignore")
        jit: Any = torch.jit
        traced = jit.trace(Inner(), torch.from_numpy(X))
    with pytest.raises(SourceError, match="holds TorchScript"):
        module_outputs_float64(nn.Sequential(traced), {"input": X}, ["y"])


def test_weight_norm_checkpoints_and_autocast_compute_in_double() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

    module = Wrapped()
    slow = copy.deepcopy(module.inner).double()
    want = slow(torch.from_numpy(X).double()).detach().numpy()
    assert relative_l2(module_outputs_float64(module, {"x": X}, ["y"])["y"], want) < 1e-15
