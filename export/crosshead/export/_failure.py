"""Say in one line why an exporter refused a module, and what to try."""

import re
from collections.abc import Mapping

import torch
from torch import nn

from crosshead.export.artifact import CaptureError

_FIXED = re.compile(r"inferred a static shape of (\d+) for dimension inputs\['(\w+)'\]\.shape\[(\d+)\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NOISE = re.compile(r"^(Found the following conflicts.*|The following call raised.*|)$")
_LONGEST = 300


def innermost(error: BaseException) -> BaseException:
    """Return the exception at the bottom of the chain of causes."""
    seen = {id(error)}
    while True:
        below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if below is None or id(below) in seen:
            return error
        seen.add(id(below))
        error = below


def capture_error(
    name: str, error: BaseException, module: nn.Module, dynamic: Mapping[str, Mapping[int, str]]
) -> CaptureError:
    """Return the error to raise: the innermost cause of the exporter's, in one line, with what to try."""
    cause = innermost(error)
    text = _COLOUR.sub("", str(cause))
    fixed = _FIXED.findall(text)
    if fixed:
        return CaptureError(_baked(name, fixed, module, dynamic))
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line.strip())]
    said = " ".join(lines[:2]) if lines else "(no message)"
    if len(said) > _LONGEST:
        said = said[: _LONGEST - 1].rstrip() + "…"
    return CaptureError(f"{name} cannot be exported: {type(cause).__name__}: {said}; {_advice(cause, text)}")


def fixed_error(
    name: str, fixed: Mapping[str, int], module: nn.Module, dynamic: Mapping[str, Mapping[int, str]]
) -> CaptureError:
    """Return the error to raise where the module, not the exporter, takes an axis at one size alone.

    Args:
        name: of the source.
        fixed: that size, by the name of the axis.
        module: looked into for what has it.
        dynamic: as the source declares.
    """
    places = [
        (str(fixed[symbol]), key, str(axis))
        for key, axes in dynamic.items()
        for axis, symbol in axes.items()
        if symbol in fixed
    ]
    return CaptureError(_baked(name, places, module, dynamic))


def _baked(
    name: str, fixed: list[tuple[str, str, str]], module: nn.Module, dynamic: Mapping[str, Mapping[int, str]]
) -> str:
    parts = []
    for size, input_name, axis in fixed:
        symbol = dynamic.get(input_name, {}).get(int(axis), "unnamed")
        kept = _tensors_of_size(module, int(size))
        source = f" ({', '.join(kept)} kept on the module has that size)" if kept else ""
        parts.append(f"axis {axis} ({symbol!r}) of input {input_name!r} is fixed at {size} by the module{source}")
    return (
        f"{name} cannot be exported (baked-dimension): {'; '.join(parts)}; "
        "compute it from the input's shape, or leave the axis out of the dynamic axes"
    )


def _tensors_of_size(module: nn.Module, size: int) -> list[str]:
    """Return the names of tensors that hang on the module, other than parameters, with an axis of this size."""
    found = []
    for prefix, part in module.named_modules():
        held = {**vars(part), **dict(part.named_buffers(recurse=False))}
        for key, value in held.items():
            if isinstance(value, torch.Tensor) and size in value.shape:
                found.append(f"{prefix}.{key}" if prefix else key)
    return found[:3]


def _advice(cause: BaseException, text: str) -> str:
    kind = type(cause).__name__
    if "DataDependent" in kind or "data-dependent" in text:
        return "the module branches on values of its inputs: use torch.where, or move the branch out of forward"
    if "No ONNX function found" in text or kind == "DispatchError":
        return "this operator has no ONNX counterpart: write that step with other operators"
    if "not a known type" in text:
        return "return a tensor, a tuple or a dict of tensors"
    return "the module runs by itself; try fewer dynamic axes, or other example sizes"
