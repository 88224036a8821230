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
    from crosshead.harness.load_plan import LoadPlan, Objective, read_objective
    from crosshead.harness.load_run import LoadFinished, load
    from crosshead.harness.load_schedule import poisson_arrivals
    from crosshead.harness.pipeline import Finished, bench, compare, export, run
    from crosshead.harness.plan import Plan

_HOMES = {
    "ComparisonError": "errors",
    "ConformPlan": "conformity",
    "Conformed": "conformity",
    "Finished": "pipeline",
    "HarnessError": "errors",
    "LoadFinished": "load_run",
    "LoadPlan": "load_plan",
    "Objective": "load_plan",
    "Plan": "plan",
    "RequestError": "errors",
    "Tolerance": "judge",
    "Tolerances": "judge",
    "bench": "pipeline",
    "compare": "pipeline",
    "conform": "conformity",
    "export": "pipeline",
    "load": "load_run",
    "poisson_arrivals": "load_schedule",
    "read_objective": "load_plan",
    "run": "pipeline",
}

__all__ = [
    "ComparisonError",
    "ConformPlan",
    "Conformed",
    "Finished",
    "HarnessError",
    "LoadFinished",
    "LoadPlan",
    "Objective",
    "Plan",
    "RequestError",
    "Tolerance",
    "Tolerances",
    "bench",
    "compare",
    "conform",
    "export",
    "load",
    "poisson_arrivals",
    "read_objective",
    "run",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
