"""onnx.reference in float64: our definitions first, results dropped after their last use, errors that name a node."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from crosshead.export.artifact import FormError
from crosshead.export.float64._ops import FLOAT64_OPS, deviation
from crosshead.export.float64._split import subgraphs


def describe(node: onnx.NodeProto) -> str:
    """Name a node for a message: `Softmax node 'attention/softmax'`."""
    name = node.name or next(iter(node.output), "")
    domain = f"{node.domain}::" if node.domain not in ("", "ai.onnx") else ""
    return f"{domain}{node.op_type} node {name!r}"


Watch = Callable[[onnx.NodeProto, Sequence[Any], Sequence[Any]], None]

_REFERENCE_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")

_NONE = "no definition of it is known here"
_UNKNOWN = {
    "com.microsoft.nchwc": "its data stands in blocks of channels as kernels of ONNX Runtime want them; optimise the "
    "graph below 'all'"
}


class Evaluator(ReferenceEvaluator):
    """The reference evaluator, which by itself keeps every intermediate result until the end.

    A score matrix of 8 heads, batch 8 and 2048 tokens is 2 GB in float64; a decomposed graph has six of them.
    """

    @staticmethod
    def of(model: onnx.ModelProto, ops: Sequence[type[OpRun]] = FLOAT64_OPS) -> "Evaluator":
        """Build the evaluator of a widened model.

        Args:
            model: the nodes.
            ops: definitions to use before those of `onnx.reference`.

        Raises:
            FormError: an operator has no float64 definition; the message names its node.
        """
        own = {(definition.op_domain, definition.__name__) for definition in ops}
        for node in _walk(model.graph):
            refused = deviation(node)
            if refused is not None:
                raise FormError(f"{describe(node)} cannot be evaluated in float64: {refused.reason}")
            if node.domain not in _REFERENCE_DOMAINS and (node.domain, node.op_type) not in own:
                raise FormError(f"{describe(node)} cannot be evaluated in float64: {_UNKNOWN.get(node.domain, _NONE)}")
        try:
            return Evaluator(model, new_ops=list(ops))
        except Exception as error:  # the reference raises RuntimeError, NotImplementedError, AttributeError and more
            raise FormError(f"the graph cannot be evaluated in float64: {_first_line(error)}") from error

    def run(  # type: ignore[override]  # newer releases add options that are for checking annotations
        self,
        output_names: list[str] | None,
        feed_inputs: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] = {},
        watch: Watch | None = None,
        **_: Any,
    ) -> list[Any]:
        """Evaluate the nodes in order; `onnx.reference` calls this for subgraphs and functions too.

        Args:
            output_names: None for all.
            feed_inputs: by name; for a subgraph, all values around it.
            attributes: of the call, inside a function.
            constants: what is neither fed nor computed, looked up when the first node reads it.
            watch: shown each node after it ran, with what went in and came out; not those of subgraphs.
        """
        wanted = self.output_names if output_names is None else output_names
        results: dict[str, Any] = {"": None, **self.rt_inits_, **feed_inputs}
        for node, finished in zip(self.rt_nodes_, self._last_reads(wanted), strict=True):
            options: dict[str, Any] = {}
            for name in _reads(node.onnx_node):
                if name in constants and name not in results:
                    results[name] = constants[name]
            if node.has_linked_attribute and attributes:
                options["linked_attributes"] = attributes
            if node.need_context():
                options["context"] = results
            try:
                outputs = node.run(*(results[name] for name in node.input), **options)
            except FormError:  # from a node of a subgraph, which is named already
                raise
            except MemoryError:
                raise
            except Exception as error:  # numpy and the reference raise what they like
                problem = _first_line(error.__cause__ or error)
                raise FormError(f"{describe(node.onnx_node)} cannot be evaluated in float64: {problem}") from error
            if watch is not None:
                watch(node.onnx_node, [results[name] for name in node.input], outputs)
            results.update(zip(node.output, outputs, strict=False))
            for name in finished:
                results.pop(name, None)
        return [results[name] for name in wanted]

    def _last_reads(self, wanted: list[str]) -> list[list[str]]:
        """Return, for each node, the values that nothing after it reads."""
        if not hasattr(self, "_finished"):
            seen = {"", *wanted}
            self._finished: list[list[str]] = []
            for node in reversed(self.rt_nodes_):
                last = {name for name in (*_reads(node.onnx_node), *node.output) if name not in seen}
                seen |= last
                self._finished.append(sorted(last))
            self._finished.reverse()
        return self._finished


def _walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _walk(inner)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from _reads(inner)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
