"""The stress set of a module: its oracle, and what its own parts tell of its structure."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from crosshead.export._findings import blocks_where_true
from crosshead.export._quiet import printing_to_stderr
from crosshead.export._stress_inputs import Structure
from crosshead.export.artifact import Arrays, Precision, TensorSpec
from crosshead.export.float64.oracle import Float64Module
from crosshead.export.float64.sensitivity import Sensitivity, module_sensitivities
from crosshead.export.source import LoadedSource
from crosshead.export.stress import StressSet, stress_set


@dataclass
class ModuleOracle:
    """A module in float64."""

    loaded: LoadedSource
    output_names: Sequence[str]
    precision: Precision

    def __post_init__(self) -> None:
        """Copy the module once for all evaluations."""
        self._double = Float64Module(self.loaded.module)
        self.weights = sum(array.numel() for _, array in self._double.tensors)

    def run(self, inputs: Arrays) -> Arrays:
        """Evaluate; raises SourceError."""
        with _quiet_and_small():
            return self._double.run(inputs, self.output_names)

    def sensitivities(
        self, cases: Sequence[tuple[Arrays, Arrays]], draws: int, judged: Sequence[Mapping[str, Any]]
    ) -> list[Sensitivity]:
        """Move weights and inputs by one unit roundoff."""
        with _quiet_and_small():
            return module_sensitivities(self.loaded.module, cases, self.precision, draws=draws, judged=judged)


@contextmanager
def _quiet_and_small() -> Iterator[None]:
    """Evaluate on one thread: the cases are tiny, and on a busy machine threads wait for each other at every step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with printing_to_stderr(), np.errstate(all="ignore"):
            yield
    finally:
        torch.set_num_threads(threads)


def module_stress(
    loaded: LoadedSource,
    specs: Sequence[TensorSpec],
    output_names: Sequence[str],
    precision: Precision,
    *,
    growth: float,
    taken: Sequence[str],
) -> StressSet:
    """Make the stress set of a module.

    Args:
        loaded: the source.
        specs: inputs of the graph, in the source's own dtypes.
        output_names: as for `module_outputs_float64`.
        precision: of the graph.
        growth: as for `stress_set`.
        taken: as for `stress_set`.
    """
    return stress_set(
        specs,
        loaded.inputs,
        loaded.roles,
        ModuleOracle(loaded, output_names, precision),
        precision,
        seed=loaded.source.seed,
        structure=_structure(loaded),
        blocks_where_true=blocks_where_true(loaded),
        growth=growth,
        taken=taken,
    )


def _structure(loaded: LoadedSource) -> Structure:
    """Read off a built-in block which keys its queries see; nobody knows it of another module."""
    if loaded.block is None:
        return Structure()
    from crosshead.model_def.attention import MultiHeadAttention

    configs = [part.config for part in loaded.module.modules() if isinstance(part, MultiHeadAttention)]
    if not configs:
        return Structure(known=True)
    return Structure(known=True, is_causal=configs[0].is_causal, window=configs[0].window)
