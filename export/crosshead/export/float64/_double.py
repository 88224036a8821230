"""A torch function mode under which code written for single precision computes in double.

`module.double()` alone is not that: code inside still calls `.float()` or `.to(torch.float32)`, makes tables with
`dtype=torch.float32`, and reads `x.dtype` to choose an epsilon. Under this mode

- a dtype below float64 that is handed to any torch function becomes float64 (complex64 becomes complex128);
- narrow tensors that come from elsewhere (a global table, a closure) are widened where they are read;
- a double tensor says that it has the dtype of the module as it was, so that `torch.finfo(x.dtype)` and
  `if x.dtype == torch.float16` choose what they would have chosen;
- constants that torch takes from the dtype of the data (`rms_norm` without eps, `nan_to_num`) stay those of that dtype.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_CASTS: dict[Any, Any] = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
    torch.Tensor.cfloat: torch.Tensor.cdouble,  # type: ignore[attr-defined]  # missing in the stubs
}
_TYPES = {"torch.FloatTensor", "torch.HalfTensor", "torch.BFloat16Tensor"}
_GET_DTYPE = torch.Tensor.dtype.__get__  # type: ignore[attr-defined]  # a descriptor, which the stubs show as its value
_GETTER = "__get__"


class DoubleMode(TorchFunctionMode):
    """Compute in double what is written for `dtype`, and let tensors say they are of `dtype`.

    Args:
        dtype: the precision that the code is written for.
        folded: leave alone what does not depend on a double tensor. Given double inputs and a module in its own
            precision, tables are then what an exporter folds: computed in that precision, and exact from there on.
    """

    def __init__(self, dtype: torch.dtype, *, folded: bool = False) -> None:
        super().__init__()
        self._folded = folded
        self._says = {
            torch.float64: dtype,
            torch.complex128: torch.complex128 if dtype == torch.float64 else torch.complex64,
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Redirect one call."""
        if func == _GET_DTYPE:
            real: torch.dtype = func(*args)
            return self._says.get(real, real)
        name = getattr(func, "__name__", "")
        if name == _GETTER:
            return func(*args, **(kwargs or {}))
        if self._folded and not any(_is_double(value) for value in (*args, *(kwargs or {}).values())):
            return func(*args, **(kwargs or {}))
        in_place = (name.endswith("_") and not name.startswith("__")) or name in _IN_PLACE
        positional = [arg if in_place and index == 0 else _widened(arg) for index, arg in enumerate(args)]
        named = {key: arg if key == "out" else _widened(arg) for key, arg in (kwargs or {}).items()}
        if func is torch.Tensor.type and len(positional) > 1 and str(_type_name(positional[1])) in _TYPES:
            positional[1] = torch.float64
        self._keep_constants(func, positional, named)
        return _CASTS.get(func, func)(*positional, **named)

    def _keep_constants(self, func: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> None:
        """Fill in what torch would take from the dtype of the data, and would now take from double."""
        dtype = self._says[torch.float64]
        if dtype == torch.float64:
            return
        if func is torch.nn.functional.rms_norm or func is torch.rms_norm:
            if named.get("eps") is None and (len(args) < 4 or args[3] is None):
                del args[3:]
                named["eps"] = torch.finfo(torch.float32).eps  # half types too: torch computes theirs in float32
        elif func in _NAN_TO_NUM:
            names = ("nan", "posinf", "neginf")
            named.update(zip(names, args[1:], strict=False))
            del args[1:]
            limits = torch.finfo(dtype)
            for key, limit in (("posinf", limits.max), ("neginf", limits.min)):
                if named.get(key) is None:
                    named[key] = limit


_NAN_TO_NUM = (torch.nan_to_num, torch.Tensor.nan_to_num, torch.nan_to_num_, torch.Tensor.nan_to_num_)
_IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__imatmul__"}


def _widened(value: Any) -> Any:
    """Return a dtype or tensor widened, also inside a list or tuple; anything else as it is."""
    if isinstance(value, torch.dtype):
        return WIDE.get(value, value)
    if isinstance(value, torch.Tensor):
        real: torch.dtype = _GET_DTYPE(value)
        return value.to(WIDE[real]) if real in WIDE else value
    if type(value) in (list, tuple):
        return type(value)(_widened(item) for item in value)
    return value


def _is_double(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return _GET_DTYPE(value) in (torch.float64, torch.complex128)
    return type(value) in (list, tuple) and any(_is_double(item) for item in value)


def _type_name(kind: Any) -> Any:
    return f"{kind.__module__}.{kind.__name__}" if isinstance(kind, type) else kind
