"""A source in another precision: its module as `module.half()` leaves it, and its inputs rounded likewise."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crosshead.export._records import floating_dtype
from crosshead.export.artifact import Arrays, ArtifactNotice, Precision, SourceError, cast_module
from crosshead.export.case import Case
from crosshead.export.source import LoadedSource

DTYPES: Final[Mapping[Precision, np.dtype[Any]]] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
"""What each precision holds its numbers in."""


@dataclass(frozen=True)
class CastSource:
    """A source and its cases, rounded to one precision.

    Attributes:
        loaded: the module, a copy, and the example inputs; the very source given where it has that precision already.
        cases: the same cases with rounded inputs.
        notices: what did not survive the rounding.
    """

    loaded: LoadedSource
    cases: tuple[Case, ...]
    notices: tuple[ArtifactNotice, ...] = ()


def cast_source(loaded: LoadedSource, cases: Sequence[Case], precision: Precision) -> CastSource:
    """Cast a source and its cases; what was given stays as it is.

    Parameters and buffers are cast as by `.half()` and its like, and every float input with them. The numbers that a
    mask blocks by become the lowest finite number where they are beyond the range, as `torch.finfo(dtype).min` would
    have it; anything else beyond the range becomes infinite, and is told.

    Raises:
        SourceError: the module cannot be copied, or cast.
    """
    dtype = DTYPES[precision]
    name = loaded.source.name
    state = _floats(loaded.module)
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in state.values()}
    dtypes |= {array.dtype.name for array in loaded.inputs.values() if floating_dtype(array.dtype)}
    if dtypes <= {dtype.name}:
        return CastSource(loaded, tuple(cases))
    module = _cast_copy(name, loaded.module, precision)
    notices = _notices(name, _lost_weights(state, _floats(module)), precision)
    rounded = cast_cases(cases, precision, loaded.roles)
    for case, cast in zip(cases, rounded, strict=True):
        notices += _notices(f"{name} {case.name}", _lost_inputs(case.inputs, cast.inputs), precision)
    source = msgspec.structs.replace(loaded.source, cast=precision)
    inputs = cast_inputs(loaded.inputs, dtype, loaded.roles)
    return CastSource(replace(loaded, module=module, inputs=inputs, source=source), tuple(rounded), tuple(notices))


def cast_cases(cases: Sequence[Case], precision: Precision, roles: Mapping[str, str]) -> list[Case]:
    """Return the cases with their inputs rounded (`cast_inputs`)."""
    return [replace(case, inputs=cast_inputs(case.inputs, DTYPES[precision], roles)) for case in cases]


def cast_inputs(inputs: Arrays, dtype: np.dtype[Any], roles: Mapping[str, str]) -> Arrays:
    """Round float inputs to a dtype, the fills of masks to its lowest number; the rest stays.

    Args:
        inputs: by name, any dtype.
        dtype: float32, float16 or bfloat16.
        roles: by input, as the source declares them.
    """
    return {
        name: _rounded(array, dtype, roles.get(name)) if floating_dtype(array.dtype) else array
        for name, array in inputs.items()
    }


def _rounded(array: NDArray[Any], dtype: np.dtype[Any], role: str | None) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded: NDArray[Any] = array.astype(dtype)
    below = np.isneginf(rounded) & np.isfinite(array)
    if not below.any():
        return rounded
    lowest = float(_finfo(array.dtype).min)
    is_mask = role == "attn_mask" or not (array > 0).any() or bool((array == lowest).any())
    return np.where(below, _finfo(dtype).min, rounded).astype(dtype) if is_mask else rounded


def _finfo(dtype: np.dtype[Any]) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # NumPy's fields, and bfloat16 as well


def _cast_copy(name: str, module: nn.Module, precision: Precision) -> nn.Module:
    """Return a copy in which tied tensors are tied as before."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    for part in module.modules():  # tensors that carry a gradient refuse to be copied by themselves
        for tensor in (*part.buffers(recurse=False), *vars(part).values()):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone()
    try:
        return cast_module(copy.deepcopy(module, memo), precision)
    except Exception as error:  # whatever the user's __deepcopy__, __reduce__ and _apply raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(
            f"{name} cannot be copied and cast to {precision}: {said}; keep locks, files and generators out of the "
            "module, or let the factory cast it"
        ) from error


def _floats(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that a cast concerns, by name."""
    state = dict([*module.named_parameters(), *module.named_buffers()])
    return {name: tensor.detach() for name, tensor in state.items() if tensor.is_floating_point()}


def _lost_weights(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest finite magnitude of each tensor that became infinite somewhere."""
    return {
        name: float(before[name][torch.isfinite(before[name])].abs().max())
        for name, tensor in after.items()
        if torch.isinf(tensor).sum() > torch.isinf(before[name]).sum()
    }


def _lost_inputs(before: Arrays, after: Arrays) -> dict[str, float]:
    """Return the largest finite magnitude of each input that became infinite somewhere."""
    found = {}
    for name, array in after.items():
        if floating_dtype(array.dtype):
            wide = before[name].astype(np.float64)
            finite = np.isfinite(wide)
            if np.isinf(array[finite].astype(np.float64)).any():
                found[name] = float(np.abs(wide[finite]).max())
    return found


def _notices(where: str, lost: Mapping[str, float], precision: Precision) -> list[ArtifactNotice]:
    largest = float(_finfo(DTYPES[precision]).max)
    return [
        ArtifactNotice(
            code="fp16-overflow",
            message=f"{name} holds {size:.3g}, and {precision} ends at {largest:.6g}: it became infinite",
            where=f"{name} of {where}",
        )
        for name, size in lost.items()
    ]
