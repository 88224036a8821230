"""`crosshead conform`: the ONNX standard's own attention cases on every backend that executes graphs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.harness.conformity.conforming import Conformed, conform
    from crosshead.harness.conformity.features import read_features
    from crosshead.harness.conformity.known import KNOWN, KnownDeviation, known_deviations
    from crosshead.harness.conformity.request import ConformPlan

_HOMES = {
    "KNOWN": "known",
    "ConformPlan": "request",
    "Conformed": "conforming",
    "KnownDeviation": "known",
    "conform": "conforming",
    "known_deviations": "known",
    "read_features": "features",
}

__all__ = [
    "KNOWN",
    "ConformPlan",
    "Conformed",
    "KnownDeviation",
    "conform",
    "known_deviations",
    "read_features",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
