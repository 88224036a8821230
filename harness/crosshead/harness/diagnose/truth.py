"""What a graph is held against when the graph itself is in doubt: the module in float64, or another graph."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, Artifact, Precision
from crosshead.harness.diagnose.cutting import CutGraph
from crosshead.harness.diagnose.values import oracle_values

if TYPE_CHECKING:
    from crosshead.export import LoadedSource
    from crosshead.export.float64 import Float64Module

Floats = Mapping[str, NDArray[Any]]


class Truth(Protocol):
    """The right function.

    Attributes:
        name: what a sentence calls it: `the module`.
    """

    name: str

    def outputs(self, inputs: Arrays) -> Floats:
        """Return its outputs in float64. Raises ExportError where it does not take these inputs."""

    def values(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Return every value that it computes on the way, weights and inputs among them."""


class ModuleTruth:
    """The module that a graph was exported from."""

    name = "the module"

    def __init__(self, loaded: "LoadedSource", artifact: Artifact) -> None:
        """Take a module in the precision that it was exported in."""
        self._loaded = loaded
        self._precision: Precision | None = artifact.manifest.source.cast
        self._names = [spec.name for spec in artifact.manifest.outputs]

    @cached_property
    def _oracle(self) -> "Float64Module":
        from crosshead.export.float64 import Float64Module
        from crosshead.export.precision import cast_source

        loaded = self._loaded
        if self._precision is not None:
            loaded = cast_source(loaded, (), self._precision).loaded
        return Float64Module(loaded.module)

    def outputs(self, inputs: Arrays) -> Floats:
        """Evaluate the module in float64. Raises SourceError where it refuses these inputs."""
        from crosshead.export._quiet import printing_to_stderr

        with printing_to_stderr():
            return self._oracle.run(inputs, self._names)

    def values(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Return every tensor that the module makes."""
        from crosshead.harness.diagnose._trace import module_values

        return module_values(self._oracle, inputs, self._names)[1]


class GraphTruth:
    """Another graph, which a graph is compared with."""

    def __init__(self, artifact: Artifact) -> None:
        """Take the graph of an artifact."""
        self.name = artifact.manifest.source.name
        self._graph = CutGraph.of(onnx.load(artifact.model_path))

    def outputs(self, inputs: Arrays) -> Floats:
        """Evaluate the graph in float64. Raises FormError where that cannot be done."""
        from crosshead.export.float64 import Float64Graph

        return Float64Graph.of(self._graph.model).run(inputs)

    def values(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Return every value of the graph, its constants among them."""
        values = list(oracle_values(self._graph, inputs).values())
        tensors = (each for each in self._graph.constants.values() if isinstance(each, onnx.TensorProto))
        values += [np.asarray(onnx.numpy_helper.to_array(tensor)) for tensor in tensors]
        return values
