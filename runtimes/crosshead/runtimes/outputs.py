"""Hold what a backend gave against what can be compared, before it leaves the worker."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from crosshead.runtimes.errors import BackendError

_NUMBERS: Final = "biufc"
"""NumPy's kinds of booleans, whole numbers and floating numbers, complex ones included."""


def check_outputs(outputs: Mapping[str, Any]) -> None:
    """Raise on the first output that holds no numbers: text, a sequence, or a format that NumPy has no name for.

    Raises:
        BackendError: the output and what it holds are named.
    """
    for name, output in outputs.items():
        if not isinstance(output, np.ndarray | np.generic):
            raise BackendError(f"output {name!r}: expected an array, got {type(output).__name__}; leave it out")
        if output.dtype.kind not in _NUMBERS and output.dtype.name != "bfloat16":
            raise BackendError(
                f"output {name!r}: expected booleans, whole or floating numbers, got {output.dtype.name}; "
                "cast it in the graph, or take it off"
            )
