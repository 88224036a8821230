"""The float64 oracle: what a module computes when neither weights nor arithmetic are rounded."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from crosshead.export.artifact import SourceError
from crosshead.export.float64._double import WIDE, DoubleMode

_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # widest first


def module_outputs_float64(
    module: nn.Module, inputs: Mapping[str, NDArray[Any]], output_names: Sequence[str]
) -> dict[str, NDArray[np.generic]]:
    """Return what a module computes in float64 with its own weights, by output name.

    Module, inputs and torch's global state (default dtype, generators, attention backends) are as before afterwards.

    Args:
        module: weights of any float precision, on any device; the copy that is run is double and on the CPU.
        inputs: by name of `forward`'s arguments; float arrays in any precision, bfloat16 included.
        output_names: names for the outputs in the order in which `torch.export` flattens them (tensors of a tuple,
            list, dict or registered dataclass; None is left out).

    Raises:
        SourceError: the module cannot be copied, fails in double, or returns another number of outputs.
    """
    return Float64Module(module).run(inputs, output_names)


class Float64Module:
    """A copy of a module in double, made when it is first needed and good for many evaluations.

    `state` lists (name, tensor of the module, its double) for each float parameter, buffer and tensor kept as a plain
    attribute; names of the last kind are empty, complex tensors are seen as (…, 2). Writing into a double changes what
    the next evaluation computes, until `restore`.

    Attributes:
        parameter_names: the names in `state` that are parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        self._original = module
        self._names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        self.parameter_names = frozenset(name for name, _ in module.named_parameters())

    @cached_property
    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """(name, tensor) of the module's float state, in its own precision and without a copy."""
        _, pairs = _copy(self._original, lambda tensor: tensor)
        return [(self._names.get(id(tensor), ""), _real(tensor)) for tensor, _ in pairs if _is_real_or_complex(tensor)]

    @property
    def state(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """(name, tensor, its double) of the same; see the class."""
        return self._doubles[1]

    @cached_property
    def _doubles(self) -> tuple[nn.Module, list[tuple[str, torch.Tensor, torch.Tensor]]]:
        """The copy in double, which is never run itself, and its state."""
        template, pairs = _copy(self._original, _double)
        state = [
            (self._names.get(id(tensor), ""), _real(tensor), _real(wide))
            for tensor, wide in pairs
            if _is_real_or_complex(tensor)
        ]
        return template, state

    def run(self, inputs: Mapping[str, NDArray[Any]], output_names: Sequence[str]) -> dict[str, NDArray[np.generic]]:
        """Evaluate once; arguments, result and errors as in `module_outputs_float64`."""
        template, _ = self._doubles
        kept: dict[int, Any] = {id(parameter): parameter for parameter in template.parameters()}
        module = copy.deepcopy(template, kept)  # buffers and attributes anew, for forward may change them
        return self._evaluate(module, inputs, output_names, folded=False)

    def run_folded(
        self, inputs: Mapping[str, NDArray[Any]], output_names: Sequence[str]
    ) -> dict[str, NDArray[np.generic]]:
        """Evaluate as an exporter folds: what depends on no input in the module's own precision, the rest in double.

        A rotary table folded in float32 is off by the position times 2^-24, more than a rounding of its entries.
        """
        module, _ = _copy(self._original, _on_cpu)
        return self._evaluate(module, inputs, output_names, folded=True)

    def _evaluate(
        self, module: nn.Module, inputs: Mapping[str, NDArray[Any]], output_names: Sequence[str], *, folded: bool
    ) -> dict[str, NDArray[np.generic]]:
        tensors = {name: _to_tensor(np.asarray(array)) for name, array in inputs.items()}
        args, kwargs = _bind(module, tensors)
        try:
            default = torch.get_default_dtype() if folded else torch.float64
            with _oracle_state(default), DoubleMode(self._dtype(inputs), folded=folded):
                result = module(*args, **kwargs)
        except Exception as error:  # the user's forward may raise anything
            problem = " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:1]])
            raise SourceError(f"{type(module).__name__} fails in float64: {problem}") from error
        arrays = [_to_array(leaf) for leaf in _pytree.tree_leaves(result) if leaf is not None]
        if len(arrays) != len(output_names):
            raise SourceError(
                f"{type(module).__name__} returns {len(arrays)} outputs, and {len(output_names)} are named: "
                f"{', '.join(output_names)}"
            )
        return dict(zip(output_names, arrays, strict=True))

    def restore(self) -> None:
        """Set every weight back to the module's own, bit for bit."""
        with torch.no_grad():
            for _, tensor, wide in self.state:
                wide.copy_(tensor)

    def _dtype(self, inputs: Mapping[str, NDArray[Any]]) -> torch.dtype:
        """Return the precision that the module was written for: of its widest float parameter, else of its inputs."""
        used = {tensor.dtype for name, tensor in self.tensors if name in self.parameter_names}
        used = used or {getattr(torch, np.asarray(array).dtype.name, torch.float32) for array in inputs.values()}
        return next((dtype for dtype in _PRECISIONS if dtype in used), torch.float32)


_Pairs = list[tuple[torch.Tensor, torch.Tensor]]


def _copy(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> tuple[nn.Module, _Pairs]:
    """Copy a module, its tensors converted; also return (tensor, converted) for each.

    Raises:
        SourceError: something in the module cannot be copied, or is TorchScript.
    """
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise SourceError(
            f"{type(module).__name__} holds TorchScript, whose precision is compiled in; "
            "give the module that it was made from"
        )
    mode = _ConvertingCopy(convert)
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(convert(parameter), requires_grad=False)
        mode.pairs.append((parameter, memo[id(parameter)]))
    try:
        with mode:
            return copy.deepcopy(module, memo), mode.pairs
    except Exception as error:  # whatever the user's __deepcopy__ and __reduce__ raise
        raise SourceError(
            f"{type(module).__name__} cannot be copied to be evaluated in float64: {error}; "
            "keep locks, files and generators out of the module"
        ) from error


class _ConvertingCopy(TorchFunctionMode):
    """Let `copy.deepcopy` convert tensors on the way, also those that carry a gradient and would refuse."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._convert = convert
        self.pairs: _Pairs = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self._convert(tensor)
            self.pairs.append((tensor, memo[id(tensor)]))
        return memo[id(tensor)]


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().to(device="cpu", copy=True)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    dtype = WIDE.get(tensor.dtype, tensor.dtype)
    return (
        tensor.detach().resolve_conj().to(device="cpu", dtype=dtype, copy=True, memory_format=torch.contiguous_format)
    )


def _is_real_or_complex(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor  # (…) -> (…, 2), as ONNX has it


def _to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor of its own; float arrays in double, bfloat16 included."""
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float64))
    return torch.from_numpy(array.copy())


def _to_array(leaf: Any) -> NDArray[np.generic]:
    if not isinstance(leaf, torch.Tensor):
        raise SourceError(
            f"forward returns a {type(leaf).__name__}; expected tensors, in tuples, lists, dicts or dataclasses "
            "registered with torch.export.register_dataclass"
        )
    tensor = _real(leaf).resolve_neg()
    return tensor.to(WIDE.get(tensor.dtype, tensor.dtype)).numpy().copy()


def _bind(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Bind by name; arguments that come first in `forward` go by position, where hooks look for them."""
    parameters = inspect.signature(module.forward).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds and any(name not in parameters for name in tensors):
        return list(tensors.values()), {}  # *args, or names of the caller's own: the order is what counts
    args = []
    for name, parameter in parameters.items():
        if name not in tensors or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD):
            break
        args.append(tensors[name])
    given = list(parameters)[: len(args)]
    return args, {name: tensor for name, tensor in tensors.items() if name not in given}


@contextlib.contextmanager
def _oracle_state(default_dtype: torch.dtype) -> Iterator[None]:
    """Set torch's global state for the oracle and put it back, whatever happens."""
    default, fastpath = torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    try:
        torch.set_default_dtype(default_dtype)
        torch.backends.mha.set_fastpath_enabled(False)  # the encoder's fused path differs at padded positions
        math = nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)
        with torch.random.fork_rng(devices=[]), math, torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(default)
        torch.backends.mha.set_fastpath_enabled(fastpath)
