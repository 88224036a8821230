"""Why something fails: the ladder, the culprit node, the smallest input, and a bundle that shows it elsewhere.

Nothing is imported before it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosshead.harness.diagnose.verb import Diagnosed, diagnose

__all__ = ["Diagnosed", "diagnose"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.verb"), name)
