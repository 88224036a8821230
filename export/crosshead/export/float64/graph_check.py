"""Is the exported graph the module's function? Asked in float64, where no rounding can excuse an answer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import FormError, GraphResult, GraphVerdict
from crosshead.export.error import relative_l2
from crosshead.export.float64._evaluator import Watch, describe
from crosshead.export.float64._graph import Float64Graph
from crosshead.export.float64._ops import RANDOM_OPS
from crosshead.export.float64.literals import Literals

if TYPE_CHECKING:
    from torch import nn

    from crosshead.export.float64.oracle import Float64Module
    from crosshead.export.float64.parameters import ParameterCheck

EXACT = 1e-10  # relative L2 below which a graph is right whatever its literals: float64 itself leaves about 1e-15
LITERAL_FACTOR = 4.0  # healthy graphs stayed under 1.5 literal sensitivities
WEAK = 1e-6  # literal sensitivity above which passing says little
MOST_CASES = 8

_Arrays = Mapping[str, NDArray[Any]]


def check_graph(
    model: onnx.ModelProto,
    module: "nn.Module",
    cases: Mapping[str, _Arrays],
    expected: Mapping[str, _Arrays],
    *,
    stress: Collection[str] = (),
    watches: Mapping[str, Watch] = {},
) -> GraphVerdict:
    """Hold a graph against the module it was exported from (docs/method.md, "Is the graph right?").

    *fail*: an output is off by more than max(1e-10, 4 L), where L is the literal sensitivity of that output and case,
    or how far tables folded in the module's own precision move it, where that is more; an integer or boolean output
    differs at all; a weight stands in the graph with other bits; or the graph works on some cases and breaks on others.
    *weak*: none of that, but L is over 1e-6, or a parameter was folded into another
    constant so that its bits cannot be compared, or the graph has no float64 evaluation. *not-asked*: there are no
    cases, or the graph draws random numbers.

    Faults of the arithmetic (scale, mask, bias, axis, order of heads) show in the outputs of these cases only as far as
    the cases exercise them; a size baked into the graph needs a case of another size.

    Args:
        model: the exported graph with its data loaded.
        module: what it was exported from; not changed.
        cases: inputs by case name; only the first `MOST_CASES` are evaluated, and the detail says so.
        expected: the oracle's outputs by case name (`module_outputs_float64`).
        stress: names of those that are evaluated beside these, however many they are. They can fail a graph; how exact
            it is, and how far its literals blur that, is told of the others.
        watches: by case name, what is shown every node of the graph with its values, if the case is evaluated.

    Raises:
        SourceError: the module cannot be copied, or fails in double.
    """
    from crosshead.export.float64.oracle import Float64Module
    from crosshead.export.float64.parameters import check_parameters, exact_forms, to_numpy

    try:
        graph = Float64Graph.of(model)
        graph.prepare()
    except FormError as error:
        return GraphVerdict(verdict="weak", detail=str(error))
    oracle = Float64Module(module)
    names = [name for name in cases if name in expected and name not in stress]
    taken = names[:MOST_CASES]
    hard = [name for name in cases if name in expected and name in stress]
    expected = {name: _in_order(expected[name], graph.output_names) for name in (*taken, *hard)}
    watched = (cases[taken[0]], expected[taken[0]]) if taken else (None, {})
    weights = check_parameters(oracle, graph.native, *watched)
    literals = Literals.of(graph, exact_forms(to_numpy(tensor) for _, tensor in oracle.tensors))
    random = next((node for node in graph.model.graph.node if _is_random(node, graph)), None)
    found, stressed = _Findings(), _Findings()
    if random is None:
        found = _compare(graph, literals, oracle, taken, cases, expected, watches)
        stressed = _compare(graph, literals, oracle, hard, cases, expected)
    notes = found.notes[:1]
    notes += [f"{len(taken)} of {len(names)} cases were evaluated"] if len(taken) < len(names) else []
    weak = [*found.broken, *_weaknesses(found, weights)]
    verdict: GraphResult = "pass"
    usual = [*weights.changed[:3], *found.failures[:3]]
    if usual or stressed.failures:
        verdict = "fail"
        notes = [*usual, *stressed.failures[:3], *notes]
    elif random is not None:
        verdict, notes = "not-asked", [f"{describe(random)} draws random numbers", *weak]
    elif not taken:
        verdict, notes = "not-asked", ["there was no case to evaluate the graph on", *weak]
    elif weak:
        verdict, notes = "weak", [*weak, *notes]
    return GraphVerdict(
        verdict=verdict,
        rel_l2=max(found.errors, default=None),
        literal_sensitivity=max(found.sensitivities, default=None),
        parameters_equal=weights.equal,
        detail="; ".join(notes),
        by_stress=bool(stressed.failures) and not usual,
    )


@dataclass
class _Findings:
    """What the comparison of outputs found, over all cases."""

    errors: list[float] = field(default_factory=list)
    sensitivities: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    folding: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _compare(
    graph: Float64Graph,
    literals: Literals,
    oracle: "Float64Module",
    taken: Sequence[str],
    cases: Mapping[str, _Arrays],
    expected: Mapping[str, _Arrays],
    watches: Mapping[str, Watch] = {},
) -> _Findings:
    found = _Findings()
    for case in taken:
        try:
            outputs = graph.run(cases[case], watch=watches.get(case))
        except FormError as error:
            found.broken.append(f"case {case!r}: {error}")
            continue
        errors = {}
        for name, want in expected[case].items():
            problem = _mismatch(outputs.get(name), want)
            if problem:
                found.failures.append(f"output {name!r} of case {case!r} {problem}")
            elif want.dtype.kind == "f":
                errors[name] = relative_l2(outputs[name], want)
        found.errors += errors.values()
        if found.sensitivities and max(errors.values(), default=0.0) <= EXACT:
            continue  # right without a look at the literals, whose sensitivity is known from another case
        moves = literals.sensitivity(cases[case], outputs)
        found.sensitivities += [moves[name] for name in errors]
        over = [name for name, size in errors.items() if not size <= _limit(moves[name])]
        folding = _folding(oracle, cases[case], expected[case]) if over else {}
        for name in over:
            where, limit = f"output {name!r} of case {case!r} is off by {errors[name]:.1e}", _limit(moves[name])
            if errors[name] <= _limit(folding.get(name, 0.0)):
                found.folding.append(folding[name])
                found.notes.append(f"{where} (limit {limit:.1e}): that much comes from tables folded in the graph")
            else:
                found.failures.append(f"{where} (limit {limit:.1e})")
    if found.errors and found.broken:  # the graph can be evaluated, only not at every size
        found.failures += found.broken
        found.broken = []
    return found


def _in_order(arrays: _Arrays, names: Sequence[str]) -> _Arrays:
    """Return arrays in the order of the graph's outputs, which is that of the module's; a file keeps another."""
    places = {name: place for place, name in enumerate(names)}
    return {name: arrays[name] for name in sorted(arrays, key=lambda name: places.get(name, len(places)))}


def _limit(moved: float) -> float:
    return max(EXACT, LITERAL_FACTOR * moved)


def _folding(oracle: "Float64Module", inputs: _Arrays, expected: _Arrays) -> dict[str, float]:
    """Return how far each float output moves when what depends on no input is computed in the module's own precision.

    An exporter that knows the sizes folds a whole rotary table in float32, and its error then grows with the position,
    far beyond the rounding of the table's entries. Without a float input nothing tells tables from data.
    """
    if not any(np.asarray(array).dtype.kind in "fV" for array in inputs.values()):
        return {}
    folded = oracle.run_folded(inputs, list(expected))
    return {name: relative_l2(folded[name], want) for name, want in expected.items() if want.dtype.kind == "f"}


def _mismatch(got: NDArray[Any] | None, want: NDArray[Any]) -> str:
    """Return what differs before any rounding comes into it; empty when nothing does."""
    if got is None:
        return "is not in the graph"
    if got.shape != want.shape:
        return f"has shape {got.shape} in the graph and {want.shape} in the module"
    if want.dtype.kind == "f" and got.dtype.kind == "f":
        return ""
    if want.dtype.kind == "f" or got.dtype.kind == "f":
        return f"is {got.dtype.name} in the graph and {want.dtype.name} in the module"
    count = int(np.count_nonzero(got != want))
    return f"differs in {count} of {want.size} elements, and is {want.dtype.name}" if count else ""


def _weaknesses(found: _Findings, weights: "ParameterCheck") -> list[str]:
    weak = []
    if weights.absent:
        weak.append(f"{', '.join(weights.absent[:3])} stands in no constant of the graph, so its bits are not compared")
    if max((*found.sensitivities, *found.folding), default=0.0) > WEAK:
        weak.append("the graph's own float literals move the output by more than 1e-6, so passing says little")
    return weak


def _is_random(node: onnx.NodeProto, graph: Float64Graph) -> bool:
    if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
        return bool(np.any(graph.constants.get(node.input[2], np.array(True))))
    return node.op_type in RANDOM_OPS
