"""Every block through the dynamo exporter with named axes, and its graph in ONNX Runtime at sizes of its own."""

import functools
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from tests.model_def.strategies import outputs_of
from tests.model_def.test_blocks import SMALL
from torch import Tensor, nn

from crosshead.model_def.blocks import BLOCKS

SIZES = [(2, 7), (1, 1), (3, 12), (1, 2), (5, 1)]

Exported = tuple[nn.Module, onnxruntime.InferenceSession, Counter[str]]

# Everything that a field can switch on and that no named block has, a few at a time.
OPTIONS: list[tuple[str, dict[str, object]]] = [
    ("mha", {"window": 3, "is_causal": True, "qk_norm": "layer", "scale": -0.5}),
    ("mha", {"softcap": 2.0, "qk_norm": "rms", "scale": 0.6, "num_kv_heads": 2}),
    ("mha", {"rotary_base": 100.0, "rotary_dim": 2, "window": 2, "scale": 0.3, "bias": False}),
    ("mha-decode", {"rotary_base": 10_000.0, "num_kv_heads": 2, "window": 4, "qk_norm": "rms", "new_tokens": 1}),
    ("mha-decode", {"implementation": "explicit", "num_kv_heads": 4, "softcap": 3.0}),
    ("mha-masked", {"mask": "additive"}),
    ("mha-masked", {"mask": "additive", "implementation": "explicit"}),
    ("mha-masked", {"implementation": "explicit"}),
    ("mha-padded", {"implementation": "explicit"}),
    ("gqa", {"implementation": "explicit", "is_causal": True}),
    ("cross-attention", {"kv_dim": 24, "kv_seq": 5, "is_causal": True, "scale": 0.0}),
    ("encoder-layer-padded", {"activation": "gelu", "norm_first": True, "is_causal": True, "rotary_base": 10_000.0}),
]


def export(
    module: nn.Module, inputs: Mapping[str, Tensor], dynamic: Any
) -> tuple[onnxruntime.InferenceSession, Counter[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter deprecates its own internals as it goes
        program = torch.onnx.export(
            module, kwargs=dict(inputs), dynamo=True, opset_version=23, dynamic_shapes=dynamic, verbose=False
        )
    assert program is not None
    data = program.model_proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session, Counter(node.op_type for node in program.model.graph)


@functools.cache
def exported(name: str, options: tuple[tuple[str, object], ...]) -> Exported:
    """A named block, exported once for all tests that ask for it."""
    torch.manual_seed(0)
    module, inputs, dynamic, _ = BLOCKS[name].example(**SMALL[name], **dict(options))
    return module, *export(module, inputs, dynamic)


def check(session: onnxruntime.InferenceSession, module: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    want = outputs_of(module, {name: torch.from_numpy(array) for name, array in arrays.items()})
    got = session.run(None, dict(arrays))
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        if one.size:
            assert np.linalg.norm(one - other.numpy()) <= 3e-6 * np.linalg.norm(other.numpy())


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in BLOCKS), *OPTIONS],
    ids=[*BLOCKS, *(f"{name}-{'-'.join(options)}" for name, options in OPTIONS)],
)
def test_the_exported_graph_is_right_at_other_sizes(name: str, options: dict[str, object]) -> None:
    block, fields = BLOCKS[name], SMALL[name] | options
    module, session, ops = exported(name, tuple(options.items()))
    got_axes = {each.name: each.shape for each in session.get_inputs()}
    for each, axes in block.dynamic.items():
        assert all(got_axes[each][axis] == symbol for axis, symbol in axes.items())
    written_out = fields.get("implementation") == "explicit" or "softcap" in fields or block.layer == "feed-forward"
    assert ops["Attention"] == (0 if written_out else 1)
    for batch, seq in SIZES:
        check(session, module, block.inputs(batch, seq, 1, **fields))


@pytest.mark.parametrize("implementation", ["sdpa", "explicit"])
@pytest.mark.parametrize("kind", ["boolean", "additive", "padding"])
def test_a_fully_masked_row_is_the_output_bias_in_the_graph_too(implementation: str, kind: str) -> None:
    name = "mha-padded" if kind == "padding" else "mha-masked"
    options: dict[str, object] = {"mask": "additive"} if kind == "additive" else {}
    if implementation == "explicit":
        options["implementation"] = implementation
    module, session, _ = exported(name, tuple(options.items()))
    arrays = BLOCKS[name].inputs(2, 5, 1, **SMALL[name], **options)
    if kind == "padding":
        arrays["key_padding_mask"][1] = True
    else:
        arrays["attn_mask"][1] = False if kind == "boolean" else -np.inf
    check(session, module, arrays)
    bias = module.state_dict()["output_projection.bias"].numpy()
    np.testing.assert_array_equal(session.run(None, arrays)[0][1], np.broadcast_to(bias, (5, 32)))


class WithWeights(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor, key_padding_mask: Tensor) -> Any:
        return self.attention(query, key_padding_mask=key_padding_mask, need_weights=True)


def test_weights_on_request_are_exported_too() -> None:
    torch.manual_seed(0)
    block, fields = BLOCKS["mha-padded"], {"d_model": 32, "num_heads": 4}
    module, inputs, dynamic, _ = block.example(**fields)
    asked = WithWeights(module).eval()
    session, _ = export(asked, inputs, dynamic)
    arrays = block.inputs(3, 4, 1, **fields)
    check(session, asked, arrays)
    np.testing.assert_allclose(session.run(None, arrays)[1].sum(-1), np.ones((3, 4, 4)), rtol=1e-6)


def test_a_mask_broadcast_over_queries_is_written_out_for_the_runtime() -> None:
    class Broadcast(nn.Module):
        def __init__(self, attention: nn.Module) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, query: Tensor, attn_mask: Tensor) -> Any:
            return self.attention(query, attn_mask=attn_mask)

    torch.manual_seed(0)
    module = Broadcast(BLOCKS["mha"].build(d_model=32, num_heads=4)).eval()
    inputs = {"query": torch.randn(2, 7, 32), "attn_mask": torch.rand(2, 1, 1, 7) < 0.7}
    session, _ = export(module, inputs, {"query": {0: "batch", 1: "seq"}, "attn_mask": {0: "batch", 3: "seq"}})
    generator = np.random.default_rng(0)
    query = generator.standard_normal((3, 5, 32)).astype(np.float32)
    check(session, module, {"query": query, "attn_mask": generator.random((3, 1, 1, 5)) < 0.6})
