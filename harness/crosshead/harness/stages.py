"""The stages of an examination, in their order: a stage is a function from a `Subject` to its `Findings`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from crosshead.harness.examine import Stage

STAGES: Final[Mapping[str, Stage]] = MappingProxyType({})
"""By the phase that its time counts for."""
