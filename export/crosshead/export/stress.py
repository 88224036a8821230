"""The stress set: small inputs that find the faults which a random normal batch does not show, with what must come out.

A random batch is far from where attention goes wrong: its softmax is nearly uniform, its masks keep most of every row,
its lengths are the example's. Each case here is named and says why it is there; only sizes that the dynamic axes allow
are used, and what does not apply to a source is left out (docs/method.md, "The stress set").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import msgspec
import numpy as np

from crosshead.export._records import CaseFiles, Sensitivities, check_fit, record_cases
from crosshead.export._stress_drafts import Draft, Drafts
from crosshead.export._stress_inputs import Inputs, Structure, recognise
from crosshead.export.apart import apart_rows, counted
from crosshead.export.artifact import Apart, Arrays, Precision, SourceError, TensorSpec
from crosshead.export.case import Case

MOST_ELEMENTS: Final = 1 << 17
"""Elements of a case's inputs, and by estimate of its outputs."""

MOST_WEIGHTS: Final = 1 << 26
"""Elements of weights from which on the set is left out: each case is several evaluations in float64."""

ILL_CONDITIONED: Final = 0.03
"""A case that one rounding moves by more than this leaves too few digits to judge, and is made milder."""

_DRAWS, _FEW_DRAWS, _FEW_WEIGHTS = 8, 2, 1 << 22
"""Draws for a sensitivity, of which each moves every weight: 8 up to so many of them, else 2."""

_HALF_RANGE: Final = 3e4
"""Outputs of fp16 stay below this, so that no sum on the way to them is beyond 65504."""


class Oracle(Protocol):
    """What a source computes in float64."""

    weights: int
    """Elements of its weights."""

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs by name. Raises SourceError or FormError where the source refuses the inputs."""

    def sensitivities(
        self,
        cases: Sequence[tuple[Arrays, Arrays]],
        draws: int,
        judged: Sequence[Mapping[str, Any]],
    ) -> Sequence[Sensitivities]:
        """Return how far the judged part of each output moves when inputs and weights are rounded."""


@dataclass(frozen=True)
class StressCase:
    """One case.

    Attributes:
        case: name, reason and inputs.
        expected: the oracle's outputs.
        apart: rows that decide nothing.
        sensitivities: by floating output, of the rows that count.
    """

    case: Case
    expected: Arrays
    apart: tuple[Apart, ...]
    sensitivities: Sensitivities = field(default_factory=dict)


@dataclass(frozen=True)
class StressSet:
    """What applies to a source, and why the rest that would have does not.

    Attributes:
        cases: in the order of sizes, numbers, masks.
        left_out: by name, why a case is not there.
    """

    cases: tuple[StressCase, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> list[Case]:
        """The cases alone."""
        return [each.case for each in self.cases]


def stress_set(
    specs: Sequence[TensorSpec],
    examples: Arrays,
    roles: Mapping[str, str],
    oracle: Oracle,
    precision: Precision,
    *,
    seed: int = 0,
    structure: Structure = Structure(),  # noqa: B008  # frozen
    blocks_where_true: bool = False,
    growth: float = 1.0,
    taken: Sequence[str] = (),
) -> StressSet:
    """Make the stress set of a source, and evaluate it in float64.

    Args:
        specs: the inputs of the graph, in the source's own dtypes.
        examples: arrays that the source takes, by input name.
        roles: by input name; inputs without one are recognised by dtype, shape, values and name.
        oracle: evaluates the source.
        precision: of the graph.
        seed: of what is drawn.
        structure: which keys a query sees whatever the masks say, where that is known.
        blocks_where_true: of a boolean attn_mask, as in `nn.MultiheadAttention`.
        growth: elements of the outputs for each element of the inputs.
        taken: names of other cases.
    """
    if oracle.weights > MOST_WEIGHTS:
        return StressSet(left_out={"all": f"the weights have more than {MOST_WEIGHTS} elements"})
    recognised = recognise(specs, examples, roles, blocks_where_true=blocks_where_true)
    inputs = Inputs(tuple(recognised), structure, seed)
    example = {
        axis: size
        for spec in specs
        for axis, size in zip(spec.shape, examples[spec.name].shape, strict=True)
        if isinstance(axis, str)
    }
    return _Making(inputs, specs, oracle, precision, max(growth, 1.0), set(taken)).made(
        list(Drafts(inputs, example, precision).all())
    )


def record_stress(made: StressSet, precision: Precision, rounded: Sequence[Case] | None = None) -> CaseFiles:
    """Pack a stress set for an artifact.

    Args:
        made: the set.
        precision: of the graph.
        rounded: its cases in the graph's precision, where that is not the source's.
    """
    expected = {each.case.name: each.expected for each in made.cases}
    sensitivities = {each.case.name: each.sensitivities for each in made.cases}
    files = record_cases(made.inputs if rounded is None else rounded, expected, sensitivities, precision)
    pairs = zip(files.records, made.cases, strict=True)
    return CaseFiles(tuple(msgspec.structs.replace(record, apart=each.apart) for record, each in pairs), files.blobs)


class _Making:
    """One set under way."""

    def __init__(
        self,
        inputs: Inputs,
        specs: Sequence[TensorSpec],
        oracle: Oracle,
        precision: Precision,
        growth: float,
        taken: set[str],
    ) -> None:
        self._inputs, self._specs, self._oracle = inputs, specs, oracle
        self._precision: Precision = precision
        self._growth = growth
        self._taken = taken
        self._left_out: dict[str, str] = {}

    def made(self, drafts: Sequence[Draft]) -> StressSet:
        """Evaluate all drafts, those with several factors at the first that leaves digits to judge."""
        evaluated = [made for draft in drafts if (made := self._settled(draft))]
        draws = _DRAWS if self._oracle.weights <= _FEW_WEIGHTS else _FEW_DRAWS
        cases = []
        for made, moves in zip(evaluated, self._moves(evaluated, draws), strict=True):
            if self._is_clear(made, moves):
                cases.append(replace(made, sensitivities=dict(moves)))
        return StressSet(tuple(cases), self._left_out)

    def _settled(self, draft: Draft) -> StressCase | None:
        """Evaluate a draft; one with several factors at the first at which one draw of rounding moves it little."""
        made = None
        for factor in draft.factors:
            made = self._evaluated(draft, factor)
            if made is None or len(draft.factors) == 1:
                return made
            if _largest(self._moves([made], 1)[0]) <= ILL_CONDITIONED / 2:  # more draws find more
                return made
        return made

    def _is_clear(self, made: StressCase, moves: Sensitivities) -> bool:
        worst = _largest(moves)
        if worst > ILL_CONDITIONED:
            self._left_out[made.case.name] = f"one rounding to {self._precision} moves its outputs by {worst:.1g}"
        return worst <= ILL_CONDITIONED

    def _evaluated(self, draft: Draft, factor: float) -> StressCase | None:
        """Return a draft with the oracle's outputs; None where it does not apply."""
        name = self._name(draft.name(factor))
        size = sum(int(np.prod(each.shape(draft.sizes), dtype=np.int64)) for each in self._inputs.all)
        if size * self._growth > MOST_ELEMENTS:
            return None
        try:
            arrays, more = draft.build(factor)
            case = Case(name, draft.reason.format(factor=f"{factor:g}"), self._inputs.seed, arrays)
            check_fit(self._specs, case)
            expected = self._oracle.run(arrays)
        except (SourceError, ValueError):
            return None  # a size or number that the source itself does not take
        own = self._inputs.apart(arrays)
        apart = (*more, *own)
        fault = self._fault(expected, apart)
        if fault:
            self._left_out[name] = fault
            return None
        return StressCase(case, expected, apart)

    def _name(self, name: str) -> str:
        return f"{name} (stress)" if name in self._taken else name

    def _fault(self, expected: Arrays, apart: Sequence[Apart]) -> str:
        """Say why nothing can be judged by these outputs; empty where something can."""
        floats = [array for array in expected.values() if array.dtype.kind == "f"]
        floats = [counted(array, apart_rows(array.shape, apart)) for array in floats]
        if any(not np.isfinite(array).all() for array in floats):
            return "the source itself gives NaN or Inf in rows that count"
        if floats and not any(array.any() for array in floats):
            return "no output is left that is not 0"
        if self._precision == "fp16" and any(float(np.abs(array).max(initial=0.0)) > _HALF_RANGE for array in floats):
            return "its outputs come near 65504, where fp16 ends"
        return ""

    def _moves(self, made: Sequence[StressCase], draws: int) -> Sequence[Sensitivities]:
        judged = [
            {
                name: partial(counted, rows=rows)
                for name, array in each.expected.items()
                if (rows := apart_rows(array.shape, each.apart)) is not None
            }
            for each in made
        ]
        return self._oracle.sensitivities([(each.case.inputs, each.expected) for each in made], draws, judged)


def _largest(moves: Sensitivities) -> float:
    return max((size for pair in moves.values() for size in pair), default=0.0)
