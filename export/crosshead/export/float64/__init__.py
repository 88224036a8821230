"""The float64 side of export: the oracle of a module, the evaluator of a graph, and what follows from holding both.

Nothing is imported before it is asked for. `evaluate_float64`, `widen`, `narrowing_casts` and `graph_sensitivity` work
without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crosshead.export.float64._graph import Float64Graph
    from crosshead.export.float64.evaluate import evaluate_float64
    from crosshead.export.float64.graph_check import check_graph
    from crosshead.export.float64.oracle import Float64Module, module_outputs_float64
    from crosshead.export.float64.overflow import Overflow, first_overflow
    from crosshead.export.float64.sensitivity import graph_sensitivity, module_sensitivity
    from crosshead.export.float64.widening import narrowing_casts, widen

__all__ = [
    "Float64Graph",
    "Float64Module",
    "Overflow",
    "check_graph",
    "evaluate_float64",
    "first_overflow",
    "graph_sensitivity",
    "module_outputs_float64",
    "module_sensitivity",
    "narrowing_casts",
    "widen",
]

_HOMES = {
    "Float64Graph": "_graph",
    "Float64Module": "oracle",
    "Overflow": "overflow",
    "check_graph": "graph_check",
    "evaluate_float64": "evaluate",
    "first_overflow": "overflow",
    "graph_sensitivity": "sensitivity",
    "module_outputs_float64": "oracle",
    "module_sensitivity": "sensitivity",
    "narrowing_casts": "widening",
    "widen": "widening",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
