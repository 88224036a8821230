"""The stages of an examination, in their order: a stage is a function from a `Subject` to its `Findings`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from crosshead.harness.examine import Stage
from crosshead.harness.laws import ask_laws
from crosshead.harness.noise import measure_noise

STAGES: Final[Mapping[str, Stage]] = MappingProxyType({"laws": ask_laws, "noise": measure_noise})
"""By the phase that its time counts for."""
