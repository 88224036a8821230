"""Modules of torch, exported once each, in every form at every opset, against torch."""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import parser
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from crosshead.export.artifact import Form, FormError
from crosshead.export.forms import lower

Run = Callable[..., dict[str, np.ndarray]]
LOWEST: list[tuple[Form, int]] = [("standard", 23), ("decomposed", 17)]
LOWERINGS = [
    *(("standard", opset) for opset in (23, 24, 25)),
    *(("decomposed", opset) for opset in (17, 18, 20, 22, 23, 24, 25)),
]
Sizes = dict[str, int]
EXAMPLE: Sizes = {"batch": 2, "seq": 5, "kv": 7, "past": 3}
OTHERS: tuple[Sizes, ...] = ({"batch": 3, "seq": 9, "kv": 4, "past": 6}, {"batch": 1, "seq": 1, "kv": 2, "past": 0})


class Core(nn.Module):
    """The attention core alone, operands 4-D."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None = None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, m, **self.options)  # type: ignore[arg-type]  # options by name


class Decode(nn.Module):
    """A step with a cache: the joined keys and values are outputs as well."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pk: torch.Tensor, pv: torch.Tensor, m: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        keys, values = torch.cat([pk, k], 2), torch.cat([pv, v], 2)
        return F.scaled_dot_product_attention(q, keys, values, m), keys, values


class Block(nn.Module):
    """Projections around the core: self or cross attention, grouped heads, rotary positions, RMS norm in front."""

    def __init__(self, kv_heads: int = 4, *, rotary: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.kv_heads, self.rotary = kv_heads, rotary
        self.q, self.o = nn.Linear(32, 32), nn.Linear(32, 32)
        self.k, self.v = nn.Linear(32, 8 * kv_heads), nn.Linear(32, 8 * kv_heads)
        self.norm = nn.RMSNorm(32, eps=1e-6) if norm else nn.Identity()

    def forward(
        self, query: torch.Tensor, memory: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        query = self.norm(query)
        memory = query if memory is None else memory
        q = self.q(query).unflatten(-1, (4, 8)).transpose(1, 2)
        k = self.k(memory).unflatten(-1, (self.kv_heads, 8)).transpose(1, 2)
        v = self.v(memory).unflatten(-1, (self.kv_heads, 8)).transpose(1, 2)
        if self.rotary:
            q, k = self.turn(q), self.turn(k)
        y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.kv_heads != 4)
        output: torch.Tensor = self.o(y.transpose(1, 2).flatten(2))
        return output

    @staticmethod
    def turn(x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[2])[None, :, None] * (1 / (10000 ** (torch.arange(0, 4) / 4)))
        angles = torch.cat([angles, angles], -1)
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * angles.cos()[:, None] + half * angles.sin()[:, None]


class ByHand(nn.Module):
    """Attention written out: nothing for a lowering to find."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        output: torch.Tensor = (weights @ v).transpose(1, 2).flatten(2)
        return output


class Torch(nn.Module):
    """torch's own multi-head attention under key padding."""

    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(32, 4, batch_first=True), weights

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, weights = self.inner(x, x, x, key_padding_mask=padding, need_weights=self.weights)
        return (y, weights) if self.weights else (y,)


@dataclass(frozen=True)
class Module:
    """How a module is made and fed: axes of each input by name or size, and what a mask is made of."""

    make: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[str | int, ...]]
    mask: str = "bool"
    attention: int = 1
    threed: int = 0
    row_is_empty: bool = field(default=False)

    def draw(self, sizes: Sizes, seed: int = 0) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng(seed)
        made: dict[str, torch.Tensor] = {}
        for name, axes in self.inputs.items():
            shape = tuple(a if isinstance(a, int) else sum(sizes[part] for part in a.split("+")) for a in axes)
            if name not in ("m", "mask", "padding"):
                made[name] = torch.tensor(rng.standard_normal(shape).astype(np.float32))
                continue
            keep = rng.random(shape) > 0.4
            keep[..., 0] = True
            if self.row_is_empty:
                keep[..., shape[-2] // 2, :] = False
            if self.mask == "bool":
                made[name] = torch.tensor(~keep if name == "padding" else keep)
            else:
                made[name] = torch.tensor(np.where(keep, rng.standard_normal(shape), -np.inf).astype(np.float32))
        return made


Q, KV, GROUPED = ("batch", 4, "seq", 8), ("batch", 4, "kv", 8), ("batch", 2, "kv", 8)
CORE = {"q": Q, "k": KV, "v": KV}
X, MEMORY = ("batch", "seq", 32), ("batch", "kv", 32)
MODULES = {
    "core, causal": Module(lambda: Core(is_causal=True), CORE),
    "core, grouped, scale below zero": Module(
        lambda: Core(enable_gqa=True, scale=-0.3), {"q": Q, "k": GROUPED, "v": GROUPED}
    ),
    "core, boolean mask": Module(Core, {**CORE, "m": ("batch", 1, "seq", "kv")}, row_is_empty=True),
    "core, additive mask": Module(Core, {**CORE, "m": ("seq", "kv")}, mask="float", row_is_empty=True),
    "core, key mask": Module(Core, {**CORE, "m": ("batch", 1, 1, "kv")}, row_is_empty=False),
    "core, query mask": Module(Core, {**CORE, "m": ("seq", 1)}, row_is_empty=True),
    "decode": Module(
        Decode,
        {
            "q": Q,
            "k": ("batch", 4, "seq", 8),
            "v": ("batch", 4, "seq", 8),
            "pk": ("batch", 4, "past", 8),
            "pv": ("batch", 4, "past", 8),
            "m": ("seq", "past+seq"),
        },
    ),
    "self attention": Module(Block, {"query": X}, threed=1),
    "cross attention, grouped, key mask": Module(
        lambda: Block(2), {"query": X, "memory": MEMORY, "mask": ("batch", 1, 1, "kv")}, threed=1
    ),
    "rotary, grouped, RMS norm": Module(lambda: Block(2, rotary=True, norm=True), {"query": X}),
    "by hand": Module(ByHand, {"x": X}, attention=0),
    "torch's": Module(lambda: Torch(weights=False), {"x": X, "padding": ("batch", "seq")}, row_is_empty=True),
    "torch's, with weights": Module(lambda: Torch(weights=True), {"x": X, "padding": ("batch", "seq")}, attention=0),
    "torch's encoder layer": Module(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu"), {"src": X}
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _no_fast_path() -> Iterator[None]:
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(enabled)


@functools.cache
def exported(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, ir.Model]:
    torch.manual_seed(0)
    entry = MODULES[name]
    module = entry.make().eval().to(dtype)
    dynamic = {
        name: {axis: size for axis, size in enumerate(axes) if isinstance(size, str) and "+" not in size}
        for name, axes in entry.inputs.items()
    }
    for input_name, axes in entry.inputs.items():
        dynamic[input_name] |= {a: torch.export.Dim.AUTO for a, size in enumerate(axes) if "+" in str(size)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (),
            kwargs={
                key: value.to(dtype) if value.is_floating_point() else value
                for key, value in entry.draw(EXAMPLE).items()
            },
            dynamo=True,
            opset_version=23,
            dynamic_shapes=dynamic,
            verbose=False,
        )
    assert program is not None
    return module, program.model


def results(module: nn.Module, inputs: dict[str, torch.Tensor]) -> list[np.ndarray]:
    with torch.no_grad():
        outputs = module(**inputs)
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def count(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in ir.traversal.RecursiveGraphIterator(model.graph))


@pytest.mark.parametrize(("form", "opset"), LOWERINGS)
@pytest.mark.parametrize("name", MODULES)
def test_onnxruntime_gives_what_torch_gives(run_ort: Run, name: str, form: Form, opset: int) -> None:
    module, canonical = exported(name)
    assert count(canonical, "Attention") == MODULES[name].attention
    assert count(canonical, "RotaryEmbedding") == (2 if "rotary" in name else 0)
    model = lower(canonical, form, opset)
    assert model.opset_imports[""] == opset
    assert count(model, "Attention") == (MODULES[name].attention if form == "standard" else 0)
    for sizes in (EXAMPLE, *OTHERS):
        inputs = MODULES[name].draw(sizes, seed=1)
        got = run_ort(model, {key: value.numpy() for key, value in inputs.items()})
        for array, wanted in zip(got.values(), results(module, inputs), strict=True):
            assert array.shape == wanted.shape
            np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=5e-6, err_msg=str(sizes))


@pytest.mark.parametrize("name", ["core, boolean mask", "core, additive mask", "core, query mask", "decode"])
def test_decomposed_is_exact_in_float64(evaluate: Run, name: str) -> None:
    """Rows that keep no key among them. What the exporter writes around attention is not ours to make exact."""
    module, canonical = exported(name, torch.float64)
    inputs = {k: v.double() if v.is_floating_point() else v for k, v in MODULES[name].draw(OTHERS[0], seed=1).items()}
    got = evaluate(lower(canonical, "decomposed", 18), {key: value.numpy() for key, value in inputs.items()})
    for array, wanted in zip(got.values(), results(module, inputs), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", MODULES)
def test_the_canonical_graph_stays_and_the_signature_is_kept(name: str) -> None:
    _, canonical = exported(name)
    before = ir.to_proto(canonical).SerializeToString()
    weights = {key: value.const_value for key, value in canonical.graph.initializers.items()}
    for form, opset in LOWEST:
        first, second = lower(canonical, form, opset), lower(canonical, form, opset)
        assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()
        for given, made in (
            (canonical.graph.inputs, first.graph.inputs),
            (canonical.graph.outputs, first.graph.outputs),
        ):
            assert [(v.name, v.dtype, str(v.shape)) for v in given] == [(v.name, v.dtype, str(v.shape)) for v in made]
        shared = first.graph.initializers.keys() & weights.keys()
        assert all(first.graph.initializers[key].const_value is weights[key] for key in shared)
        parameters = {key for key in weights if not key.startswith(("val_", "mul"))}
        assert parameters <= shared
    assert ir.to_proto(canonical).SerializeToString() == before


@pytest.mark.parametrize("name", MODULES)
def test_the_standard_form_takes_the_3d_layout_where_it_is_proved(name: str) -> None:
    _, canonical = exported(name)
    model = lower(canonical, "standard", 23)
    nodes = [node for node in model.graph if node.op_type == "Attention"]
    packed = [node for node in nodes if "q_num_heads" in node.attributes]
    assert len(packed) == MODULES[name].threed
    if packed:
        assert count(model, "Transpose") == 0
        assert count(model, "Reshape") == 0
        assert packed[0].attributes["q_num_heads"].as_int() == 4


def test_ir_version_is_the_first_that_has_the_opset() -> None:
    _, canonical = exported("self attention")
    versions = {opset: lower(canonical, "decomposed", opset).ir_version for opset in (17, 19, 21, 23, 24, 25)}
    assert versions == {17: 8, 19: 9, 21: 10, 23: 11, 24: 12, 25: 13}


def test_weights_are_never_read() -> None:
    """So a model of many gigabytes is lowered in the time of its nodes."""

    def read() -> ir.Tensor[np.ndarray]:
        raise AssertionError("the weight was read")

    text = """<ir_version: 11, opset_import: ["" : 23]> g (float[B,4,L,8] q, float[8,8] w) => (float[B,4,L,8] y)
    { p = MatMul(q, w)  a = Attention(p, p, p)  y = Gelu(a) }"""
    canonical = ir.from_proto(parser.parse_model(text))
    weight = canonical.graph.inputs.pop()
    shape = ir.Shape([1 << 20, 1 << 20])
    weight.const_value = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=shape, name="w")
    canonical.graph.register_initializer(weight)
    for form, opset in LOWEST:
        assert lower(canonical, form, opset).graph.initializers["w"].const_value is weight.const_value


def test_functions_are_inlined(run_ort: Run) -> None:
    text = """<ir_version: 11, opset_import: ["" : 23, "local" : 1]>
    g (float[B,4,L,8] q) => (float[B,4,L,8] y) { y = local.self_attention(q) }
    <domain: "local", opset_import: ["" : 23]> self_attention (x) => (z) { z = Attention(x, x, x) }"""
    canonical = ir.from_proto(parser.parse_model(text))
    q = np.random.default_rng(0).standard_normal((2, 4, 5, 8)).astype(np.float32)
    x = torch.tensor(q)
    want = F.scaled_dot_product_attention(x, x, x).numpy()
    for form, opset in LOWEST:
        model = lower(canonical, form, opset)
        assert not model.functions
        np.testing.assert_allclose(run_ort(model, {"q": q})["y"], want, atol=2e-6)
    assert canonical.functions


def test_another_opset_than_the_canonical_one_is_refused() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    with pytest.raises(FormError, match="starts from a graph of opset 23, got one of opset 18"):
        lower(ir.from_proto(parser.parse_model(text)), "decomposed", 18)
    with pytest.raises(FormError, match="offered at opset 23 to 25, got opset 18"):
        lower(ir.from_proto(parser.parse_model(text)), "standard", 18)
