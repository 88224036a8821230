"""Sums of half-precision numbers in the reference evaluator: in float32 and rounded once, as every kernel does it.

The evaluator leaves them to NumPy. NumPy adds bfloat16 numbers one after another, each sum rounded to bfloat16, so the
error of a softmax over 128 keys is 1 % and that of a layer norm over 512 numbers 4 % (onnx 1.23.2, NumPy 2.4). The
norms are also computed in the type of the data, where the standard (`stash_type` 1) says float32: squares of fp16
numbers beyond 256 are infinite. Matrix products need nothing, for NumPy itself has them in float32.

What is widened stands here as data; a test holds that it is still needed.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

SUMS: Final = frozenset(
    {
        "Attention",
        "InstanceNormalization",
        "LogSoftmax",
        "LpNormalization",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceSum",
        "ReduceSumSquare",
        "Softmax",
    }
)
"""Operators of the standard domain that add up many bfloat16 numbers."""

NORMS: Final = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators that the standard computes in float32, whatever half type the data has."""


def widen_sums(evaluator: Any) -> None:
    """Let the nodes of an `onnx.reference.ReferenceEvaluator` compute as above; those of subgraphs stay as they are."""
    for node in evaluator.rt_nodes_:
        proto = node.onnx_node
        if proto.domain in ("", "ai.onnx") and proto.op_type in SUMS | NORMS:
            half = ("bfloat16", "float16") if proto.op_type in NORMS else ("bfloat16",)
            node.run = _in_float32(node.run, half)


def _in_float32(run: Callable[..., Any], half: tuple[str, ...]) -> Callable[..., Any]:
    def widened(*args: Any, **options: Any) -> tuple[Any, ...]:
        given = next((x.dtype for x in args if isinstance(x, np.ndarray) and x.dtype.name in half), None)
        if given is None:
            return tuple(run(*args, **options))
        wide = [x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == given else x for x in args]
        outputs = run(*wide, **options)
        return tuple(x.astype(given) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x for x in outputs)

    return widened
