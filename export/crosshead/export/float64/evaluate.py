"""Evaluate a graph without its rounding."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.float64._evaluator import Watch
from crosshead.export.float64._graph import Float64Graph


def evaluate_float64(
    model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]], watch: Watch | None = None
) -> dict[str, NDArray[np.generic]]:
    """Return what the graph computes in float64, by output name.

    The graph is widened (`widen`) and evaluated by `onnx.reference` with our definitions of the operators that it
    computes in float32 or wrongly. ONNX Runtime is not used: its standard Attention has fp32 accuracy on float64 data.

    Args:
        model: any ONNX model with its data loaded; it is not changed.
        inputs: by graph input name; float inputs of any precision are widened, the rest is taken as it is. Names that
            the graph does not have are left aside.
        watch: shown each node with what went in and came out, function bodies opened.

    Raises:
        FormError: an input is missing, or the graph holds something that has no float64 evaluation; the message names
            the input or the node.
    """
    return Float64Graph.of(model).run(inputs, watch=watch)
