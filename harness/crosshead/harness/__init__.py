"""What is done with artifacts and backends: plan, compare, measure; the command line. Imports no torch.

    from crosshead.harness import Plan, run

    finished = run(Plan(source="mha", time_budget_s=5.0))
    print(finished.record.verdict, finished.folder)

Names are loaded when they are first used, so that `crosshead --help` answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.harness.conformity import Conformed, ConformPlan, conform
    from crosshead.harness.errors import ComparisonError, HarnessError, RequestError
    from crosshead.harness.judge import Tolerance, Tolerances
    from crosshead.harness.pipeline import Finished, bench, compare, export, run
    from crosshead.harness.plan import Plan

_HOMES = {
    "ComparisonError": "errors",
    "ConformPlan": "conformity",
    "Conformed": "conformity",
    "Finished": "pipeline",
    "HarnessError": "errors",
    "Plan": "plan",
    "RequestError": "errors",
    "Tolerance": "judge",
    "Tolerances": "judge",
    "bench": "pipeline",
    "compare": "pipeline",
    "conform": "conformity",
    "export": "pipeline",
    "run": "pipeline",
}

__all__ = [
    "ComparisonError",
    "ConformPlan",
    "Conformed",
    "Finished",
    "HarnessError",
    "Plan",
    "RequestError",
    "Tolerance",
    "Tolerances",
    "bench",
    "compare",
    "conform",
    "export",
    "run",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
