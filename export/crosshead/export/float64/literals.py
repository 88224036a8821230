"""How far the float constants that an exporter wrote move the output: what separates rounding from a wrong graph.

Exporters write 1/sqrt(head_dim), rotary tables and the factors of GELU as float32, so a right graph differs from its
module by 1e-9 to 4e-8 in float64. L, the literal sensitivity, is the largest move of an output over a few draws in
which these constants alone move by their own unit roundoff; a right graph stays under 1.5 L.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto

from crosshead.export.error import relative_l2
from crosshead.export.float64._bits import BitIndex
from crosshead.export.float64._graph import Float64Graph, scale_constants, widen_array
from crosshead.export.float64._split import subgraphs
from crosshead.export.float64.sensitivity import random_signs

DRAWS = 4
_SEED = 20200
# Bits of the significand, by dtype. Half of them are enough for what is exact on purpose: 0.5, 1/8, a small fraction.
_SIGNIFICAND = {"float32": 24, "float16": 11, "bfloat16": 8}


@dataclass(frozen=True)
class Literals:
    """The rounded float constants of a graph that are no weights.

    Attributes:
        graph: the widened graph.
        moves: by constant, the largest move of each element, zero where it is exact.
        attributes: True when nodes carry rounded float attributes as well.
    """

    graph: Float64Graph
    moves: Mapping[str, NDArray[np.float64]]
    attributes: bool

    @staticmethod
    def of(graph: Float64Graph, state: Iterable[NDArray[Any]]) -> "Literals":
        """Find the literals of a graph.

        Args:
            graph: the widened graph.
            state: the module's parameters, buffers and other tensors, in their own dtype; a constant that holds one of
                them, or a part, in any order of axes, is a weight and no literal. Neither are whole numbers, short
                binary fractions (0.5, 0.125), infinities, and the scales of Resize.
        """
        weights = BitIndex(state)
        fixed = scale_constants(graph.model)
        moves = {}
        for name, array in graph.native.items():
            bits = _SIGNIFICAND.get(array.dtype.name)
            if bits is None or name in fixed:
                continue
            missing = weights.missing(array)  # first, for a large weight is found without a look at its elements
            rounded = missing & _is_rounded(array, bits) if missing.any() else missing
            if rounded.any():
                moves[name] = np.where(rounded, widen_array(array) * 2.0**-bits, 0.0)
        return Literals(graph, moves, any(True for _ in _float_attributes(graph.model.graph)))

    def sensitivity(self, inputs: Mapping[str, NDArray[Any]], base: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return L by float output: the largest relative L2 move over the draws.

        Args:
            inputs: by graph input name.
            base: the graph's own outputs for them, in float64.

        Raises:
            FormError: as `Float64Graph.run`.
        """
        largest = {name: 0.0 for name, array in base.items() if array.dtype.kind == "f"}
        for number in range(DRAWS if largest and (self.moves or self.attributes) else 0):
            rng = np.random.default_rng((_SEED, number))
            nudged = {
                name: self.graph.constants[name] + move * random_signs(move.shape, rng)
                for name, move in self.moves.items()
            }
            moved = self._drawn(number).run(inputs, nudged)
            for name, size in largest.items():
                largest[name] = max(size, relative_l2(moved[name], base[name]))
        return largest

    def _drawn(self, number: int) -> Float64Graph:
        return self._graphs[number] if self.attributes else self.graph

    @cached_property
    def _graphs(self) -> list[Float64Graph]:
        """The graph once for each draw, float attributes moved to a neighbour, for they hold float32 and no more."""
        graphs = []
        for number in range(DRAWS):
            rng = np.random.default_rng((_SEED, number, 1))
            model = copy.deepcopy(self.graph.model)
            for attribute in _float_attributes(model.graph):
                ends = np.where(rng.integers(0, 2, size=max(1, len(attribute.floats))), np.inf, -np.inf)
                if attribute.type == AttributeProto.FLOAT:
                    attribute.f = float(np.nextafter(np.float32(attribute.f), np.float32(ends[0])))
                else:
                    values = np.array(attribute.floats, dtype=np.float32)
                    del attribute.floats[:]
                    attribute.floats.extend(np.nextafter(values, ends.astype(np.float32)).tolist())
            graphs.append(self.graph.with_nodes(model))
        return graphs


def _is_rounded(array: NDArray[Any], bits: int) -> NDArray[np.bool_]:
    """Return which elements need more than half the significand, and so look like rounded real numbers."""
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float64)
        significand, _ = np.frexp(wide)
        short = significand * 2.0 ** (bits // 2)
        rounded: NDArray[np.bool_] = np.isfinite(wide) & (wide != np.rint(wide)) & (short != np.rint(short))
    return rounded


def _float_attributes(graph: onnx.GraphProto) -> Iterator[AttributeProto]:
    """Yield the float attributes that hold a rounded number."""
    for node in graph.node:
        for attribute in node.attribute:
            values = {AttributeProto.FLOAT: [attribute.f], AttributeProto.FLOATS: attribute.floats}.get(
                attribute.type, []
            )
            if np.any(_is_rounded(np.array(values, dtype=np.float32), _SIGNIFICAND["float32"])):
                yield attribute
        for inner in subgraphs(node):
            yield from _float_attributes(inner)
