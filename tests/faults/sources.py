"""What the blocks do not offer and a planted fault needs: modules by their factories, and graphs written by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

Dynamic = dict[str, dict[int, str]]
Example = tuple[nn.Module, dict[str, Tensor], Dynamic, dict[str, str]]


class _Rotated(nn.Module):
    """Linear, then rotary positions by the op of ONNX, which turns halves."""

    cos: Tensor
    sin: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 64)
        angles = torch.arange(128)[:, None] * 10000.0 ** (-torch.arange(8) / 8)  # (positions, D/2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (4, 16)).transpose(1, 2)  # (B, L, H*D) -> (B, H, L, D)
        cos, sin = (table[: x.shape[1]].expand(x.shape[0], -1, -1) for table in (self.cos, self.sin))  # (B, L, D/2)
        turned: Tensor = torch.onnx.ops.rotary_embedding(heads, cos, sin)
        return turned.transpose(1, 2).flatten(2)  # (B, H, L, D) -> (B, L, H*D)


def rotated() -> Example:
    x = torch.randn(2, 9, 64)
    return _Rotated().eval(), {"x": x}, {"x": {0: "batch", 1: "seq"}}, {}


def nan_query() -> Example:
    """Cross-attention of which one query is NaN: its row is, and no other."""
    from crosshead.model_def import BLOCKS

    module, inputs, dynamic, roles = BLOCKS["cross-attention"].example(d_model=64, num_heads=4)
    inputs["query"][1, 3] = torch.nan
    return module, inputs, dynamic, roles


def beyond_fp16() -> Example:
    """A feed-forward layer whose hidden values pass 65504, though inputs, weights and outputs do not."""
    from crosshead.model_def import BLOCKS

    module, inputs, dynamic, roles = BLOCKS["feed-forward"].example(d_model=64, d_ff=96)
    with torch.no_grad():
        module.expand.weight.mul_(2e5)  # type: ignore[union-attr, operator]  # a linear layer
        module.contract.weight.mul_(1e-3)  # type: ignore[union-attr, operator]  # likewise
    return module, inputs, dynamic, roles


def nan_weight() -> Example:
    """Attention of which one weight is NaN: what it gives is NaN throughout."""
    from crosshead.model_def import BLOCKS

    module, inputs, dynamic, roles = BLOCKS["mha"].example(d_model=64, num_heads=4)
    with torch.no_grad():
        next(parameter for parameter in module.parameters() if parameter.ndim == 2)[3] = torch.nan
    return module, inputs, dynamic, roles


def nan_key() -> Example:
    """Cross-attention of which one key of each sequence is NaN: every query sees it."""
    from crosshead.model_def import BLOCKS

    module, inputs, dynamic, roles = BLOCKS["cross-attention"].example(d_model=64, num_heads=4)
    inputs["key"][:, 2] = torch.nan
    return module, inputs, dynamic, roles


def coin_toss() -> Example:
    """Attention with tokens so large that one rounding of a logit changes which key wins."""
    from crosshead.model_def import BLOCKS

    module, inputs, dynamic, roles = BLOCKS["mha"].example(d_model=64, num_heads=4)
    inputs["query"].mul_(100.0)
    return module, inputs, dynamic, roles


def dropping() -> Example:
    """Two linear layers with dropout between them, in training mode."""
    module = nn.Sequential(nn.Linear(64, 96), nn.Dropout(0.1), nn.Linear(96, 64))
    return module.train(), {"input": torch.randn(2, 9, 64)}, {"input": {0: "batch", 1: "seq"}}, {}


def write_softcap(folder: Path) -> tuple[Path, Path]:
    """Write a graph of one Attention op with a softcap and a causal mask, and inputs at 40 times the usual size.

    Returns:
        The `.onnx` and the `.npz`.
    """
    draw, weights = np.random.default_rng(0), {}
    for name in ("query", "key", "value"):
        weights[name] = (draw.standard_normal((64, 64)) / 8).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", f"{name}_weight"], [name]) for name in weights]
    options: dict[str, Any] = {"is_causal": 1, "softcap": 30.0, "q_num_heads": 4, "kv_num_heads": 4}
    nodes.append(helper.make_node("Attention", [*weights], ["output"], **options))
    sides = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", "seq", 64]) for n in ("x", "output")]
    constants = [numpy_helper.from_array(array, f"{name}_weight") for name, array in weights.items()]
    graph = helper.make_graph(nodes, "softcap", sides[:1], sides[1:], constants)
    path, inputs = folder / "softcap.onnx", folder / "inputs.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
    np.savez(inputs, x=40 * draw.standard_normal((2, 9, 64)).astype(np.float32))
    return path, inputs
