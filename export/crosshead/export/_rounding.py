"""What the check in float64 cannot see of a graph in its own precision: casts that round, values beyond the range."""

import itertools
from collections.abc import Mapping

import onnx

from crosshead.export.artifact import Arrays, ArtifactNotice, FormError, Precision
from crosshead.export.float64 import first_overflow, narrowing_casts
from crosshead.export.float64.graph_check import MOST_CASES
from crosshead.export.float64.overflow import LARGEST

_TOLD = 3


def rounding_findings(
    name: str, model: onnx.ModelProto, cases: Mapping[str, Arrays], precision: Precision
) -> list[ArtifactNotice]:
    """Look at a graph with its data loaded.

    Args:
        name: of the source.
        model: the graph.
        cases: inputs by case name; none where the graph is not to be evaluated.
        precision: of the graph.
    """
    return [*_narrowing(f"{name} in {precision}", model), *(_beyond_range(model, cases) if precision == "fp16" else [])]


def _narrowing(where: str, model: onnx.ModelProto) -> list[ArtifactNotice]:
    casts = narrowing_casts(model)
    if not casts:
        return []
    more = f", and {len(casts) - _TOLD} more" if len(casts) > _TOLD else ""
    message = f"{'; '.join(casts[:_TOLD])}{more}: these roundings are the module's own, and vanish in float64"
    return [ArtifactNotice(code="narrowing-cast", message=message, where=where)]


def _beyond_range(model: onnx.ModelProto, cases: Mapping[str, Arrays]) -> list[ArtifactNotice]:
    taken = dict(itertools.islice(cases.items(), MOST_CASES))
    try:
        found = first_overflow(model, taken)
    except FormError:
        return []  # no float64 evaluation, as the graph's verdict says
    if found is None:
        return []
    message = (
        f"a value reaches {found.largest:.3g} in case {found.case}, and fp16 ends at {LARGEST:.6g}: a backend that "
        "keeps it in fp16 gets Inf or NaN; export in bf16 or fp32, or scale it down"
    )
    return [ArtifactNotice(code="fp16-overflow", message=message, where=found.node)]
