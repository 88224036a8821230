"""What the `fake` backend can get wrong on purpose: faults of kernels, math modes and nondeterminism, as data.

Everything that looks for faults and names their cause is tried on them. The operators themselves stand in
`_faulty_ops`, which imports onnx; this file imports nothing.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from crosshead.runtimes.errors import BackendError

FaultKind = Literal["kernel", "math-mode", "nondeterminism"]


@dataclass(frozen=True)
class Fault:
    """One thing done wrong, at every node of the operators named.

    Attributes:
        name: what `fake.fault` calls it.
        kind: what the cause of its errors is: a kernel that computes something else, products formed in a coarser
            format, or numbers that differ from call to call.
        ops: operators of the standard domain that show it; `Attention` stands for what it does inside.
        sentence: what is wrong.
    """

    name: str
    kind: FaultKind
    ops: tuple[str, ...]
    sentence: str


_PRODUCTS: Final = ("MatMul", "Gemm", "Attention")

_ALL: Final = (
    Fault("softmax-axis", "kernel", ("Softmax", "Attention"), "softmax runs over the axis before the one asked for"),
    Fault("softmax-no-max", "kernel", ("Softmax", "Attention"), "softmax takes exp(x) without subtracting the largest"),
    Fault("softmax-swallows-nan", "kernel", ("Softmax", "Attention"), "softmax answers 0 where it should answer NaN"),
    Fault("norm-eps", "kernel", ("LayerNormalization", "RMSNormalization"), "norms add 1e-3 where 1e-5 is asked for"),
    Fault("norm-no-bias", "kernel", ("LayerNormalization",), "layer norm leaves out its bias"),
    Fault("gelu-swapped", "kernel", ("Gelu", "Erf"), "gelu computes its tanh approximation for erf, erf for tanh"),
    Fault("matmul-row", "kernel", ("MatMul", "Gemm"), "one row of every product repeats the row before it"),
    Fault("matmul-last-k", "kernel", _PRODUCTS, "products leave out the last term of every sum"),
    Fault("mask-inverted", "kernel", ("Where", "Attention"), "masks keep what they should drop"),
    Fault(
        "causal-lower-right",
        "kernel",
        ("LessOrEqual", "Attention"),
        "the causal frontier ends at the last query and key instead of starting at the first",
    ),
    Fault("scale-squared", "kernel", ("Div", "Attention"), "scores are scaled twice"),
    Fault("heads-swapped", "kernel", ("MatMul", "Attention"), "the first two heads change places"),
    Fault("kv-heads-tiled", "kernel", ("Expand", "Attention"), "grouped key/value heads are tiled, not repeated"),
    Fault("softcap-after-mask", "kernel", ("Attention",), "scores are capped after the mask, so nothing is masked out"),
    Fault("past-ignored", "kernel", ("Concat", "Attention"), "the cached keys and values are read as zeros"),
    Fault("batch-crosstalk", "kernel", ("MatMul", "Attention"), "the first of a batch attends to the last one's keys"),
    Fault("padding-leak", "kernel", ("Where", "Attention"), "masked scores are -30 instead of -inf"),
    Fault("transposed", "kernel", ("MatMul",), "a product with a weight comes out transposed where rows equal columns"),
    Fault("where-swapped", "kernel", ("Where",), "Where takes its branches the other way round"),
    Fault("rotary-pairs", "kernel", ("RotaryEmbedding",), "rotary rotates pairs for halves, and halves for pairs"),
    Fault("stale-output", "kernel", ("MatMul", "Gemm"), "a product of the same shape gives the previous call's values"),
    Fault("tf32", "math-mode", _PRODUCTS, "factors are rounded to 10 bits of mantissa, summed in float32"),
    Fault("bf16-products", "math-mode", _PRODUCTS, "factors are rounded to bfloat16, summed in float32"),
    Fault("fp16-products", "math-mode", _PRODUCTS, "factors are rounded to float16, summed in float32"),
    Fault("fp16-accumulation", "math-mode", _PRODUCTS, "factors are rounded to float16, and so is every sum of two"),
    Fault("dropout", "nondeterminism", ("MatMul",), "one in ten elements of a product is dropped, others each call"),
    Fault("atomics", "nondeterminism", ("MatMul",), "products add eight rounded parts in another order each call"),
)

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _ALL})
"""Every fault by name."""


def find_fault(name: str) -> Fault:
    """Return a fault by name.

    Raises:
        BackendError: there is none of this name; the message lists those that there are.
    """
    if name not in FAULTS:
        close = difflib.get_close_matches(name, FAULTS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BackendError(f"the fake backend has no fault {name!r}{hint}; it has: {', '.join(FAULTS)}")
    return FAULTS[name]
