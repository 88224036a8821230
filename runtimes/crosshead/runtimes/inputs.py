"""Hold input arrays against what an artifact declares, before a backend sees them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, input_fault
from crosshead.runtimes.errors import InputError


def check_inputs(artifact: Artifact, inputs: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise on the first name, rank, size or dtype that does not fit.

    Raises:
        InputError: expected and got are named.
    """
    fault = input_fault(artifact.manifest.inputs, inputs)
    if fault:
        raise InputError(fault)
