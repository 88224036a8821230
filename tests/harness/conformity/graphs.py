"""Attention graphs with chosen features, and what the standard's own function body makes of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.test.case.node import function_testcase_helper  # the module makes no cases by itself
from onnx.reference import ReferenceEvaluator

Arrays = dict[str, np.ndarray[Any, Any]]
BATCH, HEADS, QUERIES, KEYS, PAST, SIZE = 2, 3, 4, 6, 5, 8


@dataclass(frozen=True)
class Graph:
    """One Attention node. `mask` names its axes by letters of B, H, L, T (all keys) and 1; empty for none."""

    opset: int = 23
    mask: str = ""
    boolean: bool = False
    causal: bool = False
    past: bool = False
    mode: int | None = None
    softcap: bool = False

    def inputs(self) -> Arrays:
        rng = np.random.default_rng(5)

        def draw(*shape: int) -> np.ndarray[Any, Any]:
            return rng.random(shape, dtype=np.float32)

        arrays = {name: draw(BATCH, HEADS, length, SIZE) for name, length in (("Q", QUERIES), ("K", KEYS), ("V", KEYS))}
        if self.mask:
            axes = {"B": BATCH, "H": HEADS, "L": QUERIES, "T": KEYS + PAST * self.past, "1": 1}
            mask = draw(*(axes[letter] for letter in self.mask))
            arrays["mask"] = mask > 0.3 if self.boolean else mask
        if self.past:
            arrays |= {name: draw(BATCH, HEADS, PAST, SIZE) for name in ("past_key", "past_value")}
        return arrays

    def model(self) -> onnx.ModelProto:
        arrays = self.inputs()
        cache = ["past_key", "past_value"] if self.past else []
        kept = ["present_key", "present_value"] if self.past else ["", ""]
        ins = ["Q", "K", "V", "mask" if self.mask else "", *cache]
        outs = ["Y", *kept, "scores" if self.mode is not None else ""]
        attributes: dict[str, Any] = {"is_causal": int(self.causal)}
        attributes |= {} if self.mode is None else {"qk_matmul_output_mode": self.mode}
        attributes |= {"softcap": 0.5} if self.softcap else {}
        node = helper.make_node("Attention", ins, outs, **attributes)
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
        ]
        results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outs if name]
        return _model([node], values, results, [helper.make_opsetid("", self.opset)])

    def expanded(self) -> onnx.ModelProto:
        """Return the graph with the standard's function body in place of the node."""
        model = self.model()
        node, types = model.graph.node[0], {value.name: value.type for value in model.graph.input}
        bodies, _ = function_testcase_helper(
            node, [types.get(name, onnx.TypeProto()) for name in node.input], "test", list(model.opset_import)
        )
        nodes, opsets = bodies[-1]
        return _model(nodes, model.graph.input, model.graph.output, [_opset(each) for each in opsets])

    def expected(self) -> Arrays:
        return reference(self.expanded(), self.inputs())


def reference(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """Evaluate with the onnx package's evaluator."""
    names = [value.name for value in model.graph.output]
    with np.errstate(all="ignore"):
        return dict(zip(names, ReferenceEvaluator(model).run(names, inputs), strict=True))


def _opset(entry: Any) -> onnx.OperatorSetIdProto:
    return helper.make_opsetid(entry.domain, entry.version)


def _model(nodes: Any, inputs: Any, outputs: Any, opsets: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)
