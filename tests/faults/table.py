"""The table of the fault bench: what is planted, and what is healthy."""

from pathlib import Path
from typing import Any, Final

from tests.faults.bench import Kind, Subject, small
from tests.faults.graph_edits import GRAPH_EDITS
from tests.faults.sources import write_softcap

from crosshead.export.artifact import Form, Precision
from crosshead.model_def import BLOCKS
from crosshead.runtimes._faults import FAULTS

SOURCES: Final = Path(__file__).parent / "sources.py"


def _fields(block: str, options: dict[str, Any]) -> dict[str, Any]:
    return small(BLOCKS[block].layer, options) if block in BLOCKS else options


def _fake(fault: str, source: str, suffix: str = "", **fields: Any) -> Subject:
    """A fault of the fake backend; its label is that of the fault, and what sets this subject apart."""
    known = FAULTS[fault]
    fields["options"] = _fields(source, fields.get("options", {}))
    return Subject(f"{fault} {suffix}".strip(), source, known.kind, fault=fault, sentence=known.sentence, **fields)


def _edited(name: str) -> list[Subject]:
    edit = GRAPH_EDITS[name]
    return [
        Subject(
            f"{name} {form}",
            edit.block,
            "graph",
            options=_fields(edit.block, dict(edit.options)),
            forms=(form,),
            backends=("ort-cpu",),
            edit=edit,
            seq=edit.seq,
            sentence=edit.sentence,
        )
        for form in edit.forms
    ]


def _module(factory: str, kind: Kind, sentence: str, **fields: Any) -> Subject:
    """A module of `sources.py` that no backend can answer well."""
    label = factory.replace("_", "-")
    return Subject(label, f"{SOURCES}:{factory}", kind, sentence=sentence, **{"backends": ("ort-cpu",), **fields})


_DECOMPOSED: Final[dict[str, Any]] = {"forms": ("decomposed",)}
_CAUSAL_CROSS: Final = {"is_causal": True, "kv_seq": 13}

KERNEL_FAULTS: Final = (
    _fake("softmax-axis", "mha", "standard"),
    _fake("softmax-axis", "mha", "decomposed", **_DECOMPOSED),
    _fake("softmax-no-max", "mha", "standard"),
    _fake("softmax-no-max", "mha-causal", "decomposed", **_DECOMPOSED),
    _fake("softmax-swallows-nan", f"{SOURCES}:nan_query", "decomposed", **_DECOMPOSED),
    _fake("norm-eps", "encoder-layer"),
    _fake("norm-no-bias", "encoder-layer-prenorm"),
    _fake("gelu-swapped", "feed-forward", "standard", options={"activation": "gelu"}),
    _fake("gelu-swapped", "feed-forward", "decomposed", options={"activation": "gelu"}, **_DECOMPOSED),
    _fake("matmul-row", "mha"),
    _fake("matmul-row", "feed-forward", "fp16", precision="fp16"),
    _fake("matmul-last-k", "encoder-layer"),
    _fake("matmul-last-k", "mha", "bf16", precision="bf16"),
    _fake("mask-inverted", "mha-padded", "standard"),
    _fake("mask-inverted", "mha-masked", "decomposed", **_DECOMPOSED),
    _fake("causal-lower-right", "cross-attention", "standard", options=_CAUSAL_CROSS),
    _fake("causal-lower-right", "cross-attention", "decomposed", options=_CAUSAL_CROSS, **_DECOMPOSED),
    _fake("scale-squared", "mha", "standard"),
    _fake("scale-squared", "mha", "decomposed", **_DECOMPOSED),
    _fake("heads-swapped", "mha", "standard"),
    _fake("heads-swapped", "gqa", "decomposed", **_DECOMPOSED),
    _fake("kv-heads-tiled", "gqa", "standard"),
    _fake("kv-heads-tiled", "gqa", "decomposed", **_DECOMPOSED),
    _fake("softcap-after-mask", "softcap.onnx", write=write_softcap),
    _fake("past-ignored", "mha-decode", **_DECOMPOSED),
    _fake("batch-crosstalk", "mha", "standard"),
    _fake("batch-crosstalk", "mha-causal", "decomposed", **_DECOMPOSED),
    _fake("padding-leak", "mha-padded", "standard"),
    _fake("padding-leak", "encoder-layer-padded", "decomposed", **_DECOMPOSED),
    _fake("transposed", "mha", seq=64),
    _fake("where-swapped", "mha-masked", **_DECOMPOSED),
    _fake("rotary-pairs", f"{SOURCES}:rotated"),
    _fake("stale-output", "feed-forward"),
)

MATH_MODES: Final = (
    _fake("tf32", "mha", "standard"),
    _fake("tf32", "gqa", "decomposed", **_DECOMPOSED),
    _fake("tf32", "encoder-layer", "layer"),
    _fake("bf16-products", "mha"),
    _fake("bf16-products", "feed-forward", "decomposed", **_DECOMPOSED),
    _fake("fp16-products", "mha-causal"),
    _fake("fp16-accumulation", "mha"),
    _fake("fp16-accumulation", "feed-forward", "fp16", precision="fp16"),
)

NONDETERMINISM: Final = (
    _fake("dropout", "mha"),
    _fake("atomics", "encoder-layer"),
    _module("dropping", "nondeterminism", "the module itself drops one in ten elements", keep_training_mode=True),
)

DATA: Final = (
    _module("beyond_fp16", "data", "hidden values pass 65504 in fp16", precision="fp16", backends=("onnx-reference",)),
    _module("nan_weight", "data", "a weight is NaN, and so is all that the module gives"),
    _module("nan_key", "data", "a key is NaN, and every query sees it"),
    _module(
        "coin_toss",
        "data",
        "logits are so large that bfloat16 decides which key wins",
        precision="bf16",
        backends=("onnx-reference",),
    ),
)

GRAPH_FAULTS: Final = tuple(subject for name in GRAPH_EDITS for subject in _edited(name))

PLANTED: Final = (*GRAPH_FAULTS, *KERNEL_FAULTS, *MATH_MODES, *NONDETERMINISM, *DATA)
"""Every planted fault: at each form of the graph that shows it."""


def planted(name: str) -> Subject:
    """Return a planted fault by its name."""
    (found,) = (subject for subject in PLANTED if subject.name == name)
    return found


def _healthy(block: str, precision: Precision, forms: tuple[Form, ...], backends: tuple[str, ...]) -> Subject:
    return Subject(
        f"{block} {precision} {'+'.join(forms)}",
        block,
        options=_fields(block, {"num_kv_heads": 2} if block == "llama-gqa" else {}),
        forms=forms,
        precision=precision,
        backends=backends,
    )


_BOTH: Final[tuple[Form, ...]] = ("standard", "decomposed")
_RUNS: Final[dict[Precision, tuple[str, ...]]] = {
    "fp32": ("torch-eager", "onnx-reference", "ort-cpu"),
    "fp16": ("torch-eager", "onnx-reference", "ort-cpu"),
    "bf16": ("torch-eager", "onnx-reference"),  # ONNX Runtime has no bfloat16 kernels on the CPU
}
HEALTHY: Final = tuple(
    _healthy(block, precision, _BOTH, backends) for block in BLOCKS for precision, backends in _RUNS.items()
)
"""Every block at every precision on the backends that take it, in both forms."""

REDUCED_NAMES: Final = (
    "graph: scale-dropped standard",
    "graph: scores-through-fp16 decomposed",
    "graph: mask-fill decomposed",
    "graph: softcap-after-mask decomposed",
    "graph: kv-tiled standard",
    "graph: stale-cache decomposed",
    "graph: weight-last-place standard",
    "graph: int8-outlier standard",
    "graph: residual-twice decomposed",
    "kernel: softmax-no-max standard",
    "kernel: softmax-swallows-nan decomposed",
    "kernel: gelu-swapped decomposed",
    "kernel: matmul-last-k bf16",
    "kernel: batch-crosstalk standard",
    "kernel: padding-leak standard",
    "kernel: softcap-after-mask",
    "kernel: stale-output",
    "math-mode: tf32 standard",
    "math-mode: bf16-products decomposed",
    "math-mode: fp16-accumulation fp16",
    "nondeterminism: dropout",
    "nondeterminism: atomics",
    "data: beyond-fp16",
    "data: nan-weight",
)
"""Names of those planted that the usual tests examine: every kind, and the families of each."""

REDUCED: Final = tuple(subject for subject in PLANTED if subject.name in REDUCED_NAMES)

HEALTHY_REDUCED: Final = (
    _healthy("mha-padded", "fp32", ("standard",), _RUNS["fp32"]),
    _healthy("encoder-layer", "fp16", ("decomposed",), _RUNS["fp16"]),
    _healthy("gqa", "bf16", ("standard",), _RUNS["bf16"]),
    _healthy("mha-decode", "fp32", ("decomposed",), ("onnx-reference", "ort-cpu")),
)
"""A healthy graph of every precision."""
