"""Between torch tensors and NumPy arrays, bfloat16 included."""

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray


def to_numpy(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a copy of a tensor as an array on the host; bfloat16 through ml_dtypes.

    Raises:
        TypeError: a dtype or layout that NumPy has no counterpart for.
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return plain.numpy().copy()


def to_tensor(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a copy of an array as a tensor on the host.

    Raises:
        TypeError: a dtype that torch has no counterpart for.
    """
    plain = np.array(array, order="C")  # keeps 0-d arrays 0-d, which ascontiguousarray does not
    if plain.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(plain)
