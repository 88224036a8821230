"""A small attention block as a module and as graphs; a fault is planted by replacing a piece of a graph's text."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

WIDTH, HEADS, HEAD_DIM = 6, 2, 3
Arrays = dict[str, NDArray[Any]]
GraphBuilder = Callable[..., onnx.ModelProto]

_PROJECTIONS = """
    query_product = MatMul (x, query_weight)
    query_flat = Add (query_product, query_bias)
    key_product = MatMul (x, key_weight)
    key_flat = Add (key_product, key_bias)
    value_product = MatMul (x, value_weight)
    value_flat = Add (value_product, value_bias)
"""
_OUTPUT = """
    product = MatMul (merged, out_weight)
    output = Add (product, out_bias)
"""
DECOMPOSED = f"""
<ir_version: 8, opset_import: ["" : 18]>
attention (float[batch, length, 6] x, bool[length, length] mask) => (float[batch, length, 6] output) {{
    {_PROJECTIONS}
    query_split = Reshape (query_flat, split)
    query = Transpose <perm = [0, 2, 1, 3]> (query_split)
    key_split = Reshape (key_flat, split)
    key = Transpose <perm = [0, 2, 3, 1]> (key_split)
    value_split = Reshape (value_flat, split)
    value = Transpose <perm = [0, 2, 1, 3]> (value_split)
    raw = MatMul (query, key)
    scores = Mul (raw, scale)
    masked = Where (mask, scores, fill)
    weights = Softmax <axis = -1> (masked)
    context = MatMul (weights, value)
    turned = Transpose <perm = [0, 2, 1, 3]> (context)
    merged = Reshape (turned, merge)
    {_OUTPUT}
}}
"""
STANDARD = f"""
<ir_version: 10, opset_import: ["" : 23]>
attention (float[batch, length, 6] x, bool[length, length] mask) => (float[batch, length, 6] output) {{
    {_PROJECTIONS}
    merged = Attention <q_num_heads = 2, kv_num_heads = 2> (query_flat, key_flat, value_flat, mask)
    {_OUTPUT}
}}
"""


class Attention(nn.Module):
    """Self-attention over x (batch, length, 6) with a boolean mask (length, length), true to attend."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)  # (B, L, 6) -> (B, 2, L, 3)
            for project in (self.query, self.key, self.value)
        )
        context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output: torch.Tensor = self.out(context.transpose(1, 2).flatten(-2))  # (B, 2, L, 3) -> (B, L, 6)
        return output


@pytest.fixture
def attention() -> Attention:
    torch.manual_seed(0)
    return Attention().eval()


@pytest.fixture
def case() -> Arrays:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(2, 5, WIDTH)).astype(np.float32), "mask": np.tri(5, dtype=np.bool_)}


@pytest.fixture
def decomposed_text() -> str:
    return DECOMPOSED


@pytest.fixture
def standard_text() -> str:
    return STANDARD


@pytest.fixture
def build() -> GraphBuilder:
    """Return a function: graph text, the module whose weights it takes, constants to add or replace -> a model."""

    def builder(text: str, module: nn.Module | None = None, constants: Mapping[str, Any] = {}) -> onnx.ModelProto:
        model = onnx.parser.parse_model(text)
        values: dict[str, Any] = {
            "split": np.array([0, 0, HEADS, HEAD_DIM]),
            "merge": np.array([0, 0, WIDTH]),
            "scale": np.float32(1 / np.sqrt(HEAD_DIM)),
            "fill": np.float32(-np.inf),
        }
        for name, tensor in module.named_parameters() if module is not None else ():
            values[name.replace(".", "_")] = tensor.detach().numpy().T  # weights are (out, in), MatMul takes (in, out)
        values |= constants
        used = {name for node in model.graph.node for name in node.input}
        for name, array in values.items():
            if name in used:
                model.graph.initializer.append(
                    numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)
                )
        onnx.checker.check_model(model, full_check=True)
        return model

    return builder


@pytest.fixture
def decomposed(attention: Attention, build: GraphBuilder) -> onnx.ModelProto:
    return build(DECOMPOSED, attention)


@pytest.fixture
def standard(attention: Attention, build: GraphBuilder) -> onnx.ModelProto:
    return build(STANDARD, attention)
