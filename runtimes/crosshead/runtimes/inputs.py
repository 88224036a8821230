"""Hold input arrays against what an artifact declares, before a backend sees them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, TensorSpec
from crosshead.runtimes.errors import InputError


def check_inputs(artifact: Artifact, inputs: Mapping[str, NDArray[np.generic]]) -> None:
    """Raise on the first name, rank, size or dtype that does not fit.

    Raises:
        InputError: expected and got are named.
    """
    specs = artifact.manifest.inputs
    expected = ", ".join(spec.name for spec in specs)
    for spec in specs:
        if spec.name not in inputs:
            raise InputError(
                f"input {spec.name!r} is missing; expected: {expected}; got: {', '.join(inputs) or 'none'}"
            )
    for name in inputs:
        if all(name != spec.name for spec in specs):
            raise InputError(f"there is no input {name!r}; expected: {expected}")
    sizes: dict[str, tuple[int, str]] = {}
    for spec in specs:
        _check_one(spec, inputs[spec.name], sizes)


def _check_one(spec: TensorSpec, array: NDArray[np.generic], sizes: dict[str, tuple[int, str]]) -> None:
    if array.dtype.name != spec.dtype:
        raise InputError(f"input {spec.name!r}: expected dtype {spec.dtype}, got {array.dtype.name}")
    wanted = f"({', '.join(map(str, spec.shape))})"
    if array.ndim != len(spec.shape):
        raise InputError(f"input {spec.name!r}: expected shape {wanted}, got {array.shape}")
    for axis, (want, got) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(want, int):
            if want != got:
                raise InputError(
                    f"input {spec.name!r}: expected shape {wanted}, got {array.shape}; axis {axis} is fixed"
                )
            continue
        size, where = sizes.setdefault(want, (got, spec.name))
        if size != got:
            raise InputError(
                f"input {spec.name!r}: axis {axis} ({want!r}) has size {got}, but it has size {size} in input {where!r}"
            )
