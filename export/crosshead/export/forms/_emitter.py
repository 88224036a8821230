"""Writes nodes into a graph: fresh names that depend on the graph alone, shared constants, outputs that keep theirs."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from crosshead.export.forms._shapes import static_dim

Attribute = int | float | str | Sequence[int]


class Emitter:
    """Emits nodes before an anchor node; one emitter serves a whole rewrite of one model.

    A value is named `<anchor>_<label>` after the anchor's name without the exporter's `node_`, and its node
    `node_<value>`; a number makes them unique, so the same graph always gets the same names.
    Constants become initializers of the main graph, where subgraphs see them too; equal ones are shared, and no
    initializer of the model is ever edited, since exporters let several uses share one.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._anchor: ir.Node | None = None
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._lengths: dict[tuple[ir.Value, int], ir.Value] = {}
        self._names: set[str | None] = set()
        for scope in (graph, *graph.subgraphs()):
            self._names.update(value.name for value in (*scope.inputs, *scope.initializers.values()))
            for node in scope:
                self._names.update((node.name, *(value.name for value in node.outputs)))
        self.emitted: list[ir.Node] = []

    def before(self, node: ir.Node) -> "Emitter":
        """Emit before this node from now on. Forgets the emitted nodes, and lengths that may not stand before it."""
        self._anchor = node
        self._lengths = {}
        self.emitted = []
        return self

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        labels: Sequence[str],
        dtype: ir.DataType | None = None,
        attributes: Sequence[ir.Attr] = (),
    ) -> Sequence[ir.Value]:
        """Emit a node with several outputs, one for each label. Types and shapes not given are inferred later."""
        assert self._anchor is not None
        assert self._anchor.graph is not None
        stem = (self._anchor.name or self._anchor.op_type.lower()).removeprefix("node_")
        outputs = [ir.Value(name=self.fresh(f"{stem}_{label}")) for label in labels]
        for output in outputs:
            output.type = None if dtype is None else ir.TensorType(dtype)
        name = self.fresh(f"node_{outputs[0].name}")
        node = ir.Node("", op_type, inputs, attributes=attributes, outputs=outputs, name=name)
        self._anchor.graph.insert_before(self._anchor, node)
        self.emitted.append(node)
        return outputs

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        label: str | None = None,
        dtype: ir.DataType | None = None,
        **attributes: Attribute,
    ) -> ir.Value:
        """Emit a node with one output."""
        converted = ir.convenience.convert_attributes(attributes)
        label = op_type.lower() if label is None else label
        return self.ops(op_type, *inputs, labels=[label], dtype=dtype, attributes=converted)[0]

    def constant(self, value: object, dtype: ir.DataType, label: str) -> ir.Value:
        """An initializer with this content; an equal one that this emitter made before is used again."""
        array = np.array(value, dtype=dtype.numpy())
        key = (dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(f"const_{label}")
            shape = ir.Shape(array.shape)
            tensor = ir.tensor(array, dtype=dtype, name=name)
            made = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype), const_value=tensor)
            self._graph.register_initializer(made)
            self._constants[key] = made
        return self._constants[key]

    def ints(self, *values: int) -> ir.Value:
        """A 1-D int64 constant."""
        return self.constant(values, ir.DataType.INT64, "ints_" + "_".join(map(str, values)).replace("-", "m"))

    def length(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of one axis as a 1-D int64 value of one element: a constant where it is static. `axis` >= 0."""
        size = static_dim(value, axis)
        if size is not None:
            return self.ints(size)
        if (value, axis) not in self._lengths:
            self._lengths[value, axis] = self.op(
                "Shape", value, label=f"size{axis}", dtype=ir.DataType.INT64, start=axis, end=axis + 1
            )
        return self._lengths[value, axis]

    def concat_lengths(self, *lengths: ir.Value) -> ir.Value:
        """One 1-D int64 value from several."""
        return self.op("Concat", *lengths, label="shape", dtype=ir.DataType.INT64, axis=0)

    def substitute(self, old: ir.Value, new: ir.Value) -> None:
        """Let every use of `old` use `new`, which this emitter (or an edit in place) made or which already existed.

        A graph output keeps its name, type and shape: `new` takes them over, through an Identity where it has a name
        that must stay (an input, an initializer, another output, a value of the graph around a subgraph).
        """
        is_output = old.is_graph_output()
        if is_output and (new.producer() is None or new.is_graph_output() or new.graph is not old.graph):
            new = self.op("Identity", new)
        if is_output:
            new.name, old.name = old.name, None
            new.type, new.shape = old.type, old.shape
        else:
            new.type = old.type if new.type is None else new.type
            new.shape = old.shape if new.shape is None else new.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)

    def fresh(self, name: str) -> str:
        """A name that nothing in the model has: this one, or this one with a number."""
        candidate, number = name, 1
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate
