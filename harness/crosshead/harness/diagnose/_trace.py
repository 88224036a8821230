"""Every tensor that a module computes in float64. Imports torch: only where a source is at hand."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from crosshead.export.float64 import Float64Module

_MOST_BYTES: Final = 1 << 30


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate how it is subclassed
    """Keep a copy of what each operator returns, up to a gigabyte of it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.values: list[NDArray[Any]] = []
        self._held = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.keep(leaf)
        return result

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep a tensor as an array, unless it is a view on nothing or too much is held."""
        if tensor.layout != torch.strided or tensor.is_complex() or tensor.device.type != "cpu":
            return
        size = tensor.numel() * tensor.element_size()
        if self._held + size <= _MOST_BYTES:
            self._held += size
            self.values.append(torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).numpy())


def module_values(
    oracle: Float64Module, inputs: Mapping[str, NDArray[Any]], output_names: list[str]
) -> tuple[dict[str, NDArray[np.generic]], list[NDArray[Any]]]:
    """Return the module's float64 outputs, and every value on the way there, its weights and inputs among them.

    Raises:
        SourceError: the module fails in double.
    """
    with _Recorder() as recorder:
        outputs = oracle.run(inputs, output_names)
    values = recorder.values
    values += [wide.detach().numpy().copy() for _, _, wide in oracle.state]
    values += [np.asarray(array) for array in inputs.values()]
    return outputs, values
