"""`onnx-reference`: the reference evaluator of the onnx package. A second opinion, not the truth, and very slow.

Sums of half-precision numbers are taken in float32, see `_reference_half`. `onnx` is imported here only, when it is
used.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from crosshead.export.artifact import Artifact
from crosshead.runtimes._reference_half import widen_sums
from crosshead.runtimes.base import (
    Array,
    Available,
    Capabilities,
    Deviation,
    Outputs,
    Runtime,
    Session,
    Settings,
    Step,
    Unavailable,
)
from crosshead.runtimes.errors import BackendError, UnsupportedError

DEVIATIONS = (
    Deviation(
        op="ai.onnx::Attention",
        when="a mask of shape (query, 1) or (…, query, 1)",
        effect="the mask is padded along the keys instead of being broadcast: wrong values, in silence",
        seen_in="onnx 1.23.2",
        report="onnxruntime#12149",
    ),
    Deviation(
        op="ai.onnx::Attention",
        when="qk_matmul_output_mode 0 together with softcap",
        effect="the fourth output holds capped scores; the standard (and ONNX Runtime) gives them as multiplied",
        seen_in="onnx 1.23.2",
        report="onnxruntime#26813",
    ),
)


class OnnxReference(Runtime):
    """The backend. It runs on one thread of Python and NumPy, so of the settings it knows none."""

    name: ClassVar[str] = "onnx-reference"
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="graph",
        precisions=("fp32", "fp16", "bf16"),
        opsets=(1, 28),  # 28 is the highest of onnx 1.23
        timed_in_all=False,
        deviations=DEVIATIONS,
    )
    distributions: ClassVar[tuple[str, ...]] = ("numpy", "onnx")

    def probe(self) -> Available | Unavailable:
        """The onnx package is a dependency of crosshead."""
        return Available(version=importlib.metadata.version("onnx"), detail="reference evaluator, not timed by default")

    def import_library(self) -> None:
        """Import the evaluator."""
        import onnx.reference  # noqa: F401  # the import is the point

    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> Session:  # noqa: ARG002  # see the class
        return open_reference(artifact)


def open_reference(artifact: Artifact, new_ops: Sequence[type] = ()) -> Session:
    """Load an artifact's graph into the reference evaluator.

    Args:
        artifact: what to load.
        new_ops: operators (`onnx.reference.op_run.OpRun`) to use before the evaluator's own.

    Raises:
        UnsupportedError: the evaluator lacks an operator.
        BackendError: it refuses the graph.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # ships no type information
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(str(artifact.model_path), new_ops=list(new_ops))
    except NotImplementedError as error:
        raise UnsupportedError(f"the reference evaluator does not take this graph: {error}") from error
    except DecodeError as error:
        raise BackendError(f"{artifact.model_path.name} is truncated or no ONNX file; export again") from error
    except Exception as error:
        raise BackendError(f"the reference evaluator refused the graph: {type(error).__name__}: {error}") from error
    widen_sums(evaluator)
    return _ReferenceSession(artifact, evaluator)


class _ReferenceSession(Session):
    def __init__(self, artifact: Artifact, evaluator: Any) -> None:
        super().__init__(artifact)
        self._evaluator = evaluator
        self._names = [spec.name for spec in artifact.manifest.outputs]

    def _run(self, inputs: Mapping[str, Array]) -> Outputs:
        try:
            with np.errstate(all="ignore"):  # exp and divisions of masked rows are part of the standard's definitions
                outputs = self._evaluator.run(self._names, dict(inputs))
        except NotImplementedError as error:
            raise UnsupportedError(f"the reference evaluator lacks an operator: {error}") from error
        except ValueError as error:
            if "zero-size array to reduction operation maximum" not in str(error):
                raise _failed(error) from error
            raise UnsupportedError(
                "the reference evaluator takes no softmax over an axis of length 0, as in Attention without keys; "
                "the form `decomposed` does"
            ) from error
        except Exception as error:
            raise _failed(error) from error
        return dict(zip(self._names, map(np.asarray, outputs), strict=True))

    def _bind(self, inputs: Mapping[str, Array]) -> Step:
        feeds = dict(inputs)
        return lambda: self._run(feeds)


def _failed(error: Exception) -> BackendError:
    return BackendError(f"the reference evaluator failed: {type(error).__name__}: {error}")
