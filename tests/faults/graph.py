"""A graph that is about to be edited: finding a node by what it does, rewiring, and adding nodes and constants."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]

_THROUGH = ("Where", "Add", "Mul", "Tanh", "Div", "Cast")


def before_edit(output: str) -> str:
    """What an output of the graph is called once another node gives it."""
    return f"{output}_before_edit"


class Graph:
    """One model, edited in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.added = 0

    # --- finding

    def nodes(self, op: str) -> list[onnx.NodeProto]:
        return [node for node in self.model.graph.node if node.op_type == op]

    def one(self, op: str) -> onnx.NodeProto:
        """The only node of an operator."""
        (node,) = self.nodes(op)
        return node

    def maker(self, name: str) -> onnx.NodeProto:
        """The node that computes a value."""
        found: onnx.NodeProto = next(node for node in self.model.graph.node if name in node.output)
        return found

    def made(self, name: str) -> bool:
        return any(name in node.output for node in self.model.graph.node)

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return [node for node in self.model.graph.node if name in node.input]

    def scores(self) -> onnx.NodeProto:
        """The product of queries and keys: the first one met on the way back from the softmax."""
        name = self.one("Softmax").input[0]
        while (node := self.maker(name)).op_type != "MatMul":
            assert node.op_type in _THROUGH, node.op_type
            name = next(each for each in node.input[node.op_type == "Where" :] if self.made(each))
        return node

    def masking(self) -> onnx.NodeProto:
        """The Where that sets masked scores to -inf."""
        return next(node for node in self.nodes("Where") if any(self.is_minus_inf(name) for name in node.input[1:]))

    def attended(self) -> onnx.NodeProto:
        """The product of probabilities and values."""
        name = self.one("Softmax").output[0]
        while (node := self.readers(name)[0]).op_type != "MatMul":
            name = node.output[0]
        return node

    def is_minus_inf(self, name: str) -> bool:
        array = self.find_array(name)
        return array is not None and array.size == 1 and bool(np.isneginf(array.astype(np.float64)).all())

    def find_array(self, name: str) -> Array | None:
        found = next((each for each in self.model.graph.initializer if each.name == name), None)
        return None if found is None else numpy_helper.to_array(found)

    def array(self, name: str) -> Array:
        array = self.find_array(name)
        assert array is not None, f"{name} is no initializer"
        return array

    def weights(self) -> list[str]:
        """The matrices that something is multiplied by, in the order of their use."""
        found = (self.find_array(node.input[1]) for node in self.nodes("MatMul"))
        return [n.input[1] for n, array in zip(self.nodes("MatMul"), found, strict=True) if array is not None]

    # --- changing

    def set_array(self, name: str, array: Array) -> None:
        (old,) = (each for each in self.model.graph.initializer if each.name == name)
        old.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def constant(self, array: Array) -> str:
        self.added += 1
        name = f"edit_constant_{self.added}"
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def put(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node, and return what it gives; `sort` brings it to its place."""
        self.added += 1
        name = f"edit_{op}_{self.added}"
        self.model.graph.node.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def rewire(self, old: str, new: str) -> None:
        """Let all that read `old` read `new`, but for what was put there; an output of the graph keeps its name."""
        inner = old
        if any(value.name == old for value in self.model.graph.output):
            inner = before_edit(old)
            for maker, before, after in ((self.maker(old), old, inner), (self.maker(new), new, old)):
                maker.output[list(maker.output).index(before)] = after
            new = old
        for node in self.model.graph.node:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = inner if node.name.startswith("edit_") else new

    def attribute(self, node: onnx.NodeProto, name: str, default: Any = None) -> Any:
        found = next((each for each in node.attribute if each.name == name), None)
        return default if found is None else helper.get_attribute_value(found)

    def set_attribute(self, node: onnx.NodeProto, name: str, value: Any) -> None:
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def sort(self) -> None:
        """Bring nodes into an order in which each comes after what it reads; drop those that nothing reads."""
        wanted = {value.name for value in self.model.graph.output}
        kept: list[onnx.NodeProto] = list(self.model.graph.node)
        while True:
            read = wanted | {name for node in kept for name in _reads(node)}
            alive = [node for node in kept if read & {*node.output}]
            if len(alive) == len(kept):
                break
            kept = alive
        known = {"", *(v.name for v in self.model.graph.input), *(i.name for i in self.model.graph.initializer)}
        ordered: list[onnx.NodeProto] = []
        while kept:
            ready = [node for node in kept if known >= {*_reads(node)}]
            assert ready, "the edit made a loop"
            ordered += ready
            known |= {name for node in ready for name in node.output}
            kept = [node for node in kept if not any(node is other for other in ready)]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)
        del self.model.graph.value_info[:]
        read = wanted | {name for node in copies for name in _reads(node)}
        used = [each for each in self.model.graph.initializer if each.name in read]
        tensors = [onnx.TensorProto.FromString(each.SerializeToString()) for each in used]
        del self.model.graph.initializer[:]
        self.model.graph.initializer.extend(tensors)


def _reads(node: onnx.NodeProto) -> list[str]:
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    made = {name for graph in inner for each in graph.node for name in each.output}
    within = [name for graph in inner for each in graph.node for name in _reads(each) if name not in made]
    return [*node.input, *within]
