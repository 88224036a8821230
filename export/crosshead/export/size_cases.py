"""Small cases at other sizes of the dynamic axes, 1 among them, by which a run proves that no size is baked in.

An exporter that took an example's size for a constant gives a graph that is right on the example and on nothing else,
or, where a size of 1 is broadcast, one that runs and is wrong. Only other sizes show it; they are run in a worker, by
the harness.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export._findings import blocks_where_true
from crosshead.export._quiet import printing_to_stderr
from crosshead.export._records import CaseFiles, Sensitivities, check_fit, record_cases
from crosshead.export.artifact import Arrays, ArtifactNotice, Precision, SourceError, TensorSpec
from crosshead.export.case import Case, draw_like, is_mask, keeps_nothing
from crosshead.export.float64 import module_sensitivity
from crosshead.export.float64.oracle import Float64Module
from crosshead.export.source import LoadedSource

MOST_ELEMENTS: Final = 1 << 18
"""Elements of a case's inputs, and by estimate of its outputs: 1 MB and 2 MB at most, so that cases stay cheap."""

MOST_WEIGHTS: Final = 1 << 26
"""Elements of weights up to which each of these cases has a sensitivity of its own; a draw moves every weight."""

_BLOCK_AXES: Final = frozenset({"batch", "seq", "kv_seq", "past"})

Sizes = dict[str, int]


@dataclass
class SizeCases:
    """What was found to try.

    Attributes:
        cases: in the order of the axes; for each, size 1 and another one, then all axes together.
        sizes: by case name, the size of each axis that the case tries.
        expected: by case name, the float64 oracle's outputs.
        left_out: by axis, why sizes that should be tried are not among the cases.
        notices: where the module itself refuses a size.
        fixed: axes that the module takes at the example's size alone, or at 0 or 1 beside it; with that size.
    """

    cases: list[Case] = field(default_factory=list)
    sizes: dict[str, Sizes] = field(default_factory=dict)
    expected: dict[str, Arrays] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notices: list[ArtifactNotice] = field(default_factory=list)
    fixed: Sizes = field(default_factory=dict)


def size_cases(
    loaded: LoadedSource, specs: Sequence[TensorSpec], output_names: Sequence[str], *, growth: float = 1.0
) -> SizeCases:
    """Make cases at other sizes of each dynamic axis, and evaluate the module on them in float64.

    Each axis is tried at 1 (a past also at 0) and at one more size that neither the example nor any other axis has:
    the next prime above the example's, or, where the module refuses that, twice the example's, or a smaller prime.
    The other axes keep the example's sizes unless the case would be too large. A size that the module itself refuses
    is a finding about the module, and no case.

    Args:
        loaded: the source.
        specs: inputs of the graph, whose axes may be bound more tightly than the source declares.
        output_names: as for `module_outputs_float64`.
        growth: elements of the outputs for each element of the inputs, at sizes already seen.

    Raises:
        SourceError: the module cannot be copied.
    """
    return _Search(loaded, specs, output_names, growth).found()


def not_tried(specs: Sequence[TensorSpec], reason: str) -> SizeCases:
    """Return no case at all, with one reason for every dynamic axis."""
    names = (name for spec in specs for name in spec.shape if isinstance(name, str))
    return SizeCases(left_out=dict.fromkeys(names, reason))


def record_size_cases(
    loaded: LoadedSource,
    found: SizeCases,
    usual: Mapping[str, Sensitivities],
    precision: Precision,
    *,
    rounded: Sequence[Case] | None = None,
) -> CaseFiles:
    """Pack the cases for an artifact.

    The sensitivity of an output is the largest of its sensitivities in the usual cases and, unless the weights are
    very many, of one draw on the very case: enough to tell a wrong size from rounding, and cheap.

    Args:
        loaded: the source.
        found: the cases.
        usual: sensitivities of the artifact's usual cases, by case name.
        precision: of the graph.
        rounded: the same cases in the graph's precision, where that is not the source's.
    """
    weights = sum(tensor.numel() for tensor in (*loaded.module.parameters(), *loaded.module.buffers()))
    sensitivities: dict[str, Sensitivities] = {}
    for case in found.cases:
        own: Sensitivities = {}
        if weights <= MOST_WEIGHTS:
            with printing_to_stderr():
                own = module_sensitivity(loaded.module, case.inputs, found.expected[case.name], precision, draws=1)
        known = [each for each in (*usual.values(), own) if each]
        sensitivities[case.name] = {
            name: (max(each[name][0] for each in known), max(each[name][1] for each in known))
            for name in dict.fromkeys(name for each in known for name in each)
        }
    files = record_cases(found.cases if rounded is None else rounded, found.expected, sensitivities, precision)
    records = tuple(msgspec.structs.replace(record, sizes=found.sizes[record.name]) for record in files.records)
    return CaseFiles(records, files.blobs)


class _Search:
    """One search under way."""

    def __init__(
        self, loaded: LoadedSource, specs: Sequence[TensorSpec], output_names: Sequence[str], growth: float
    ) -> None:
        self._loaded, self._specs, self._output_names = loaded, specs, output_names
        self._growth = max(growth, 1.0)
        self._example: Sizes = {}
        self._past: set[str | int] = set()
        for spec in specs:
            for axis, name in enumerate(spec.shape):
                if isinstance(name, str):
                    self._example.setdefault(name, loaded.inputs[spec.name].shape[axis])
                    if loaded.roles.get(spec.name) in ("past_key", "past_value"):
                        self._past.add(name)
        for spec in specs:
            if loaded.roles.get(spec.name) not in ("past_key", "past_value"):
                self._past -= set(spec.shape)
        self._taken = {size for array in loaded.inputs.values() for size in array.shape}
        self._oracle = Float64Module(loaded.module)
        self._found = SizeCases()

    def found(self) -> SizeCases:
        names = list(self._example)
        if not names:
            return self._found
        reason = self._unasked()
        if reason:
            self._found.left_out = dict.fromkeys(names, reason)
            return self._found
        others: Sizes = {}
        for name in names:
            other = self._try_axis(name)
            if other is not None:
                others[name] = other
        if 1 < len(names) == len(others):
            self._try(others)
        return self._found

    def _unasked(self) -> str:
        if self._loaded.source.training:
            return "a module in training mode does not give the same numbers twice"
        bound = [name for name in self._example if not name.isidentifier()]
        return f"axes are bound to each other ({', '.join(bound)})" if bound else ""

    def _try_axis(self, name: str) -> int | None:
        """Try an axis at its sizes; return the one beside 0 and 1 that the module took."""
        refused: dict[int, str] = {}
        zero = self._try({name: 0}) if name in self._past else ""
        one = self._try({name: 1})
        refused |= {size: said for size, said in ((0, zero), (1, one)) if said}
        taken = None
        for size in self._others(name):
            said = self._try({name: size})
            if not said:
                taken = size
                self._taken.add(size)
                break
            refused[size] = said
        self._say(name, refused, one=bool(one), other=taken is None)
        return taken

    def _say(self, name: str, refused: Mapping[int, str], *, one: bool, other: bool) -> None:
        if not refused:
            return
        told = "; ".join(f"{name}={size}: {said}" for size, said in refused.items())
        self._found.left_out[name] = told
        if other and _TOO_LARGE not in refused.values():
            self._found.fixed[name] = self._example[name]
        large = all(said == _TOO_LARGE for said in refused.values())
        if not (one or other):
            return  # another size was taken in the place of this one
        code, message = "size-refused", f"the module itself refuses {told}; the axis is declared dynamic"
        if large:
            message = f"axis {name!r} was not tried at {', '.join(map(str, refused))}: {_TOO_LARGE}"
            code = "size-not-tried"
        elif one and other:
            code, message = (
                "baked-dimension",
                f"the module itself takes no other size of axis {name!r} than the example's {self._example[name]} "
                f"({told}); compute what depends on it from the input's shape, or leave it out of the dynamic axes",
            )
        self._found.notices.append(ArtifactNotice(code=code, message=message, where=self._loaded.source.name))

    def _others(self, name: str) -> list[int]:
        size = self._example[name]
        above = next(n for n in _primes(max(size, 1) + 1) if n not in self._taken)
        below = [n for n in _primes(2, size) if n not in self._taken]
        return [above, *(n for n in (2 * size,) if n > 1 and n not in self._taken | {above}), *below[-1:]]

    def _try(self, changed: Sizes) -> str:
        """Add a case; return why it could not be, in the module's words, or nothing."""
        sizes = self._fitting(changed)
        if sizes is None:
            return _TOO_LARGE
        tried = {name: size for name, size in sizes.items() if name in changed or size != self._example[name]}
        told = ",".join(f"{name}={size}" for name, size in tried.items())
        try:
            inputs = self._draw(sizes)
            expected, inputs = self._evaluate(inputs)
        except SourceError as error:
            return str(error).rpartition(" fails in float64: ")[2]
        case = Case(f"axes {told}", f"another size of {', '.join(changed)}", self._loaded.source.seed, inputs)
        check_fit(self._specs, case)
        self._found.cases.append(case)
        self._found.sizes[case.name] = tried
        self._found.expected[case.name] = expected
        return ""

    def _fitting(self, changed: Sizes) -> Sizes | None:
        """Return the sizes of a case, other axes cut as far as it takes for the case to be small; None if it cannot."""
        sizes = self._example | changed
        cut: set[str] = set(changed)
        while self._elements(sizes) * self._growth > MOST_ELEMENTS:
            rest = [name for name in sizes if name not in cut and sizes[name] > 2]
            if not rest:
                return None
            name = max(rest, key=sizes.__getitem__)
            cut.add(name)
            smaller = [n for n in _primes(2, sizes[name]) if n not in self._taken]
            sizes[name] = smaller[0] if smaller else 2
        return sizes

    def _elements(self, sizes: Sizes) -> int:
        return sum(int(np.prod(_shape(spec, sizes), dtype=np.int64)) for spec in self._specs)

    def _draw(self, sizes: Sizes) -> Arrays:
        block, options = self._loaded.block, dict(self._loaded.source.options)
        if block is None or not set(sizes) <= _BLOCK_AXES:
            drawn = draw_like(self._loaded, {spec.name: _shape(spec, sizes) for spec in self._specs})
            return {name: self._keeping(name, array) for name, array in drawn.items()}
        length = sizes["seq"]
        if "past" in sizes:
            options["new_tokens"], length = length, sizes["past"] + length
        if "kv_seq" in sizes:
            options["kv_seq"] = sizes["kv_seq"]
        return block.inputs(sizes["batch"], length, self._loaded.source.seed, **options)

    def _keeping(self, name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Let each row of a stretched mask keep something, as the example's do: runtimes differ where none does."""
        example, role = self._loaded.inputs[name], self._loaded.roles.get(name)
        blocked = blocks_where_true(self._loaded)
        if array is example or not is_mask(example) or keeps_nothing(example, role, true_is_blocked=blocked):
            return array
        if not keeps_nothing(array, role, true_is_blocked=blocked):
            return array
        if array.dtype.kind == "b":
            off = role == "key_padding_mask" or blocked
            rows = (array == off).all(axis=-1, keepdims=True)
            return np.where(rows, not off, array)
        rows = np.isneginf(array.astype(np.float32)).all(axis=-1, keepdims=True)
        return np.where(rows, np.zeros((), array.dtype), array)

    def _evaluate(self, inputs: Arrays) -> tuple[Arrays, Arrays]:
        """Return the oracle's outputs, and the inputs: whole numbers at the example's lowest where others are refused.

        Positions and lengths drawn in the example's range may lie outside a shorter axis.
        """
        lowest = {
            name: np.full_like(array, self._loaded.inputs[name].min())
            for name, array in inputs.items()
            if array.dtype.kind in "iu" and self._loaded.inputs[name].size
        }
        with printing_to_stderr():
            try:
                return self._oracle.run(inputs, self._output_names), inputs
            except SourceError:
                if not lowest:
                    raise
                return self._oracle.run(inputs | lowest, self._output_names), inputs | lowest


_TOO_LARGE: Final = f"a case of this size has more than {MOST_ELEMENTS} elements"


def _shape(spec: TensorSpec, sizes: Sizes) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes[size] for size in spec.shape)


def _primes(start: int, stop: int | None = None) -> Iterator[int]:
    """Primes from `start`, below `stop`: multiples of nothing, so that no reshape takes such a size by luck."""
    for number in itertools.count(max(start, 2)) if stop is None else range(max(start, 2), stop):
        if all(number % each for each in range(2, math.isqrt(number) + 1)):
            yield number
