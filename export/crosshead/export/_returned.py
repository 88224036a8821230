"""What a factory returned, read and checked: module, inputs, dynamic axes and roles."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from crosshead.export._tensors import to_numpy
from crosshead.export.artifact import Arrays, SourceError

ROLES = ("query", "key", "value", "attn_mask", "key_padding_mask", "past_key", "past_value", "position_ids")
"""What an input can be declared to be; in a `key_padding_mask`, true is padding."""

CONVENTIONAL = {
    **{role: role for role in ROLES},
    "mask": "attn_mask",
    "src_mask": "attn_mask",
    "padding": "key_padding_mask",
    "padding_mask": "key_padding_mask",
    "src_key_padding_mask": "key_padding_mask",
    "memory_key_padding_mask": "key_padding_mask",
}
"""Names that speak for a role where none is declared. `attention_mask` is not among them: both meanings are in use."""

RETURNS = "(module, inputs), (module, inputs, dynamic) or (module, inputs, dynamic, roles)"


@dataclass(frozen=True)
class Returned:
    """A factory's result.

    Attributes:
        module: as it came, in whatever mode.
        inputs: arrays by argument name, in the order of forward's arguments; copies that share no memory.
        dynamic: by input and axis, the name of the axis.
        roles: as declared; empty when none were.
        aliases: pairs of inputs that were one and the same memory.
    """

    module: nn.Module
    inputs: Arrays
    dynamic: dict[str, dict[int, str]]
    roles: dict[str, str]
    aliases: list[tuple[str, str]] = field(default_factory=list)


def read_returned(name: str, value: object) -> Returned:
    """Take apart what the factory `name` returned.

    Raises:
        SourceError: something else than a module came, no inputs came, or they do not fit the module's forward.
    """
    parts = value if isinstance(value, tuple) else (value,)
    module, *rest = parts or (None,)
    if not isinstance(module, nn.Module):
        raise SourceError(f"{name} returned {_kind(value)}; expected an nn.Module, {RETURNS}")
    if not rest or rest[0] is None:
        raise SourceError(f"{name} returned a module without inputs; return (module, inputs), inputs a dict by name")
    if len(parts) > 4:
        raise SourceError(f"{name} returned {len(parts)} values; expected {RETURNS}")
    given, dynamic, roles = [*rest, None, None][:3]
    tensors = _by_name(name, module, given)
    inputs = {key: _array(name, key, tensor) for key, tensor in tensors.items()}
    return Returned(
        module, inputs, _read_dynamic(name, inputs, dynamic), _read_roles(name, inputs, roles), _aliases(tensors)
    )


def guess_roles(inputs: Mapping[str, object]) -> dict[str, str]:
    """Return the role of each input whose name is a conventional one."""
    return {name: CONVENTIONAL[name] for name in inputs if name in CONVENTIONAL}


def _by_name(name: str, module: nn.Module, given: object) -> dict[str, Any]:
    """Return the inputs by argument name, in forward's order, without those that are None."""
    signature = inspect.signature(module.forward)
    parameters = {
        key: parameter
        for key, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes = ", ".join(parameters) or "nothing by name"
    if isinstance(given, Mapping):
        inputs = dict(given)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) > len(parameters):
            raise SourceError(f"{name} returned {len(given)} inputs, but forward takes {len(parameters)}: {takes}")
        inputs = dict(zip(parameters, given, strict=False))  # fewer inputs than parameters leave the rest to defaults
    elif isinstance(given, torch.Tensor) and parameters:
        inputs = {next(iter(parameters)): given}
    else:
        raise SourceError(f"{name} returned inputs as {_kind(given)}; expected a dict by argument name, or a tuple")
    for key in inputs:
        if key not in parameters:
            raise SourceError(f"{name}: forward has no argument {key!r}; it takes: {takes}")
        if parameters[key].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise SourceError(f"{name}: argument {key!r} of forward is positional-only; inputs are bound by name")
    missing = [
        key for key, parameter in parameters.items() if parameter.default is parameter.empty and inputs.get(key) is None
    ]
    if missing:
        got = ", ".join(key for key in inputs if inputs[key] is not None) or "none"
        raise SourceError(f"{name}: forward needs {', '.join(missing)} as well; inputs returned: {got}")
    if all(value is None for value in inputs.values()):
        raise SourceError(f"{name} returned no input tensors; an exported graph needs one at least")
    return {key: inputs[key] for key in parameters if inputs.get(key) is not None}


def _array(name: str, key: str, value: object) -> NDArray[np.generic]:
    if isinstance(value, np.ndarray):
        value = np.array(value)
        if value.dtype.kind not in "biufV" or value.dtype.names is not None:
            raise SourceError(f"{name}: input {key!r} has dtype {value.dtype}; expected numbers or booleans")
        return value
    if not isinstance(value, torch.Tensor):
        raise SourceError(
            f"{name}: input {key!r} is {_kind(value)}; expected a tensor (bind other arguments in the factory: "
            "wrap the module in one whose forward takes tensors alone)"
        )
    if value.is_complex():
        raise SourceError(f"{name}: input {key!r} is complex, which ONNX runtimes do not take; pass real numbers")
    try:
        return to_numpy(value)
    except (TypeError, RuntimeError) as error:
        raise SourceError(f"{name}: input {key!r} ({value.dtype}, {value.layout}) has no NumPy counterpart") from error


def _aliases(tensors: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of inputs that start at the same memory."""
    first: dict[int, str] = {}
    pairs = []
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        owner = first.setdefault(value.data_ptr(), name)
        if owner != name:
            pairs.append((owner, name))
    return pairs


def _read_dynamic(name: str, inputs: Arrays, dynamic: object) -> dict[str, dict[int, str]]:
    expected = "expected {input: {axis: symbol}}"
    if dynamic is None:
        return {}
    if not isinstance(dynamic, Mapping):
        raise SourceError(f"{name} returned dynamic axes as {_kind(dynamic)}; {expected}")
    found: dict[str, dict[int, str]] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for key, axes in dynamic.items():
        if key not in inputs:
            raise SourceError(f"{name}: dynamic axes for {key!r}, which is no input; inputs: {', '.join(inputs)}")
        if axes is not None and not isinstance(axes, Mapping):
            raise SourceError(f"{name}: dynamic axes of {key!r} are {_kind(axes)}; {expected}")
        for axis, symbol in (axes or {}).items():
            shape = inputs[key].shape
            if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
                raise SourceError(f"{name}: input {key!r} has no axis {axis!r}; its shape is {shape}")
            if not isinstance(symbol, str) or not symbol.isidentifier():
                raise SourceError(f"{name}: axis {axis} of {key!r} is named {symbol!r}; expected a name such as 'seq'")
            size, where = sizes.setdefault(symbol, (shape[axis], key))
            if size != shape[axis]:
                raise SourceError(
                    f"{name}: axis {symbol!r} is {size} in {where!r} and {shape[axis]} in {key!r}; "
                    "give axes of different sizes different names"
                )
            found.setdefault(key, {})[axis % len(shape)] = symbol
    return found


def _read_roles(name: str, inputs: Arrays, roles: object) -> dict[str, str]:
    if roles is None:
        return {}
    if not isinstance(roles, Mapping):
        raise SourceError(f"{name} returned roles as {_kind(roles)}; expected {{input: role}}")
    for key, role in roles.items():
        if key not in inputs:
            raise SourceError(f"{name}: a role for {key!r}, which is no input; inputs: {', '.join(inputs)}")
        if role not in ROLES:
            close = difflib.get_close_matches(str(role), ROLES, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SourceError(f"{name}: input {key!r} has role {role!r}; expected one of {', '.join(ROLES)}{hint}")
    return {str(key): str(role) for key, role in roles.items()}


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
