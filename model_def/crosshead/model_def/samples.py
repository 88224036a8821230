"""Sample inputs by name and seed. NumPy only, float32.

The names say what the numbers are for; a block's example inputs are `normal`, which few faults survive together with
`large` (a softmax far from uniform) and `small`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from crosshead.model_def.errors import ConfigError

_Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def _heavy_tailed(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return generator.standard_t(3, shape)


def _denormal(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return generator.uniform(-1.0, 1.0, shape) * float(np.finfo(np.float32).smallest_normal)


_KINDS: Final[Mapping[str, tuple[str, _Draw]]] = MappingProxyType(
    {
        "normal": ("standard normal, as after a LayerNorm", lambda g, s: g.standard_normal(s)),
        "uniform": ("uniform in [-1, 1)", lambda g, s: g.uniform(-1.0, 1.0, s)),
        "small": ("normal times 1e-3: scores near 0, weights near uniform", lambda g, s: 1e-3 * g.standard_normal(s)),
        "large": ("normal times 40: softmax saturates", lambda g, s: 40.0 * g.standard_normal(s)),
        "heavy-tailed": ("Student's t with 3 degrees of freedom: a few features far out", _heavy_tailed),
        "denormal": ("below the smallest normal float32", _denormal),
        "zeros": ("all 0: every score equal", lambda _, s: np.zeros(s)),
        "ones": ("all 1: every token equal", lambda _, s: np.ones(s)),
    }
)

SAMPLES: Final[Mapping[str, str]] = MappingProxyType({name: summary for name, (summary, _) in _KINDS.items()})
"""Name and one-line description of each kind of sample."""


def sample(kind: str, shape: Sequence[int], seed: int | Sequence[int]) -> NDArray[np.float32]:
    """Draw an array.

    Args:
        kind: a name in `SAMPLES`.
        shape: of the result.
        seed: of the generator; several whole numbers name a stream of its own.

    Returns:
        float32 of the given shape; the same for the same arguments.

    Raises:
        ConfigError: an unknown kind.
    """
    if kind not in _KINDS:
        raise ConfigError(f"sample: expected one of {', '.join(_KINDS)}, got {kind!r}")
    _, draw = _KINDS[kind]
    return draw(np.random.default_rng(seed), tuple(shape)).astype(np.float32)
