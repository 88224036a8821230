"""What the tests of forms share: running a graph, and attention by its formula in float64."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

Array = npt.NDArray[np.generic]
Run = Callable[[ir.Model, Mapping[str, Array]], dict[str, Array]]


def _ort_cpu(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _evaluate(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        outputs = ReferenceEvaluator(ir.to_proto(model)).run(None, dict(inputs))
    return dict(zip((value.name or "" for value in model.graph.outputs), outputs, strict=True))


def attention_by_formula(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    past_key: Array | None = None,
    past_value: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]:
    """Attention of 4-D operands: the output, and the weights by mode (raw, capped, masked, probabilities)."""
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        key, value = np.concatenate([past_key, key], 2), np.concatenate([past_value, value], 2)
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    group = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
    k, v = k[:, group], v[:, group]
    scores = np.einsum("bhld,bhtd->bhlt", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    capped = softcap * np.tanh(scores / softcap) if softcap else scores
    masked, kept = capped, np.ones(scores.shape, bool)
    if mask is not None and mask.dtype == np.bool_:
        kept = kept & mask.astype(bool)
    elif mask is not None:
        masked = masked + np.asarray(mask, np.float64)
        kept = kept & ~np.isneginf(np.asarray(mask, np.float64))
    if is_causal:
        places = np.arange(scores.shape[2])[:, None] + past
        kept = kept & (np.arange(scores.shape[3]) <= places)
    masked = np.where(kept, masked, -np.inf)
    probabilities = np.zeros_like(masked)
    for index in np.ndindex(masked.shape[:3]):
        if kept[index].any():
            raised = np.exp(masked[index] - masked[index].max())
            probabilities[index] = raised / raised.sum()
    return np.einsum("bhlt,bhtd->bhld", probabilities, v), [scores, capped, masked, probabilities]


@pytest.fixture(scope="session")
def run_ort() -> Run:
    """Run a model on ONNX Runtime's CPU provider: outputs by name."""
    return _ort_cpu


@pytest.fixture(scope="session")
def evaluate() -> Run:
    """Run a model on onnx's reference evaluator: outputs by name."""
    return _evaluate


@pytest.fixture(scope="session")
def by_formula() -> Callable[..., tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]]:
    """Attention by its formula, in float64 NumPy, independent of every runtime."""
    return attention_by_formula
