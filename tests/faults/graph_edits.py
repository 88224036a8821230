"""Faults of an export: small edits to a right graph, each of which makes it another function than its module.

An edit takes the graph of one of our blocks in the forms that it names and changes it in place. All of them are of the
kind *graph*: whatever backend runs the graph is right, and the graph is wrong. That holds of two that could be argued
about. Scores cast to fp16 and back (`scores-through-fp16`) look like a math mode, but the rounding is written in the
graph, every backend shows it, and no setting of a backend takes it away; float64 hides it, so it is found by the list
of narrowing casts. Weights in int8 (`int8-outlier`) are a choice, to be judged by a budget of its own, once a form
declares it; inside a graph that calls itself fp32 they are not the module's weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper
from tests.faults.graph import Graph, before_edit

from crosshead.export.artifact import Form

HEADS: Final = 4
"""Number of heads of every block that is edited."""

_BOTH: Final[tuple[Form, ...]] = ("standard", "decomposed")
_STANDARD: Final[tuple[Form, ...]] = ("standard",)
_DECOMPOSED: Final[tuple[Form, ...]] = ("decomposed",)


@dataclass(frozen=True)
class GraphEdit:
    """One fault of an export.

    Attributes:
        name: what it is called in the bench.
        sentence: what is wrong.
        block: the block whose graph it fits.
        options: fields of the block, beside the small widths of the bench.
        forms: the forms of the graph that it fits.
        change: what it does to the graph.
        seq: number of tokens at which it shows.
    """

    name: str
    sentence: str
    block: str
    change: Callable[[Graph], None]
    options: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[Form, ...] = _BOTH
    seq: int = 9

    def apply(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return an edited copy.

        Raises:
            AssertionError: nothing was changed, or the result is no valid model.
        """
        edited = onnx.ModelProto()
        edited.CopyFrom(model)
        graph = Graph(edited)
        self.change(graph)
        graph.sort()
        assert _essence(edited) != _essence(model), f"{self.name} changed nothing"
        onnx.checker.check_model(edited, full_check=True)
        return edited


def _essence(model: onnx.ModelProto) -> bytes:
    """What a model computes with, without what describes it."""
    nodes = sorted(node.SerializeToString(deterministic=True) for node in model.graph.node)
    arrays = sorted(each.SerializeToString(deterministic=True) for each in model.graph.initializer)
    return b"".join([*nodes, *arrays])


# --- scale and softmax


def _scale_dropped(graph: Graph) -> None:
    if graph.nodes("Attention"):
        graph.set_attribute(graph.one("Attention"), "scale", 1.0)
    else:
        scores = graph.scores()
        scores.input[0] = graph.maker(scores.input[0]).input[0]


def _scale_squared(graph: Graph) -> None:
    if graph.nodes("Attention"):
        node = graph.one("Attention")
        graph.set_attribute(node, "scale", 1.0 / _head_size(graph))
    else:
        scaled = graph.maker(graph.scores().input[0])
        graph.rewire(scaled.output[0], graph.put("Div", [scaled.output[0], scaled.input[1]]))


def _head_size(graph: Graph) -> int:
    return int(graph.array(graph.weights()[0]).shape[1]) // HEADS


def _softmax_axis(graph: Graph) -> None:
    graph.set_attribute(graph.one("Softmax"), "axis", -2)


def _scores_through_fp16(graph: Graph) -> None:
    scores = graph.scores().output[0]
    half = graph.put("Cast", [scores], to=onnx.TensorProto.FLOAT16)
    graph.rewire(scores, graph.put("Cast", [half], to=onnx.TensorProto.FLOAT))


# --- masks


def _mask(graph: Graph) -> tuple[onnx.NodeProto, int]:
    """The node that applies the mask, and which of its inputs that is."""
    return (graph.one("Attention"), 3) if graph.nodes("Attention") else (graph.masking(), 0)


def _mask_inverted(graph: Graph) -> None:
    node, place = _mask(graph)
    node.input[place] = graph.put("Not", [node.input[place]])


def _mask_dropped(graph: Graph) -> None:
    node, place = _mask(graph)
    if node.op_type == "Attention":
        node.input[place] = ""
    else:
        graph.rewire(node.output[0], next(name for name in node.input[1:] if graph.made(name)))


def _mask_off_by_one(graph: Graph) -> None:
    """Every key takes its neighbour's place in the mask."""
    node, place = _mask(graph)
    last, end = graph.ints(-1), graph.ints(np.iinfo(np.int64).max)
    as_int = graph.put("Cast", [node.input[place]], to=onnx.TensorProto.INT32)
    head = graph.put("Slice", [as_int, graph.ints(0), graph.ints(1), last])
    tail = graph.put("Slice", [as_int, graph.ints(1), end, last])
    turned = graph.put("Concat", [tail, head], axis=-1)
    node.input[place] = graph.put("Cast", [turned], to=onnx.TensorProto.BOOL)


def _mask_over_queries(graph: Graph) -> None:
    """(B, S) of the keys is laid along the queries: (B, 1, S, 1)."""
    node = next(node for node in graph.nodes("Unsqueeze") if graph.maker(node.input[0]).op_type == "Not")
    node.input[1] = graph.ints(1, 3)
    expand = graph.readers(node.output[0])[0]
    graph.rewire(expand.output[0], node.output[0])


def _mask_fill(graph: Graph) -> None:
    node = graph.masking()
    place = next(place for place in (1, 2) if graph.is_minus_inf(node.input[place]))
    node.input[place] = graph.constant(np.array(-30.0, np.float32))


def _causal_sees_next(graph: Graph) -> None:
    node = graph.one("LessOrEqual")
    node.input[1] = graph.put("Add", [node.input[1], graph.constant(np.array(1, np.int64))])


def _causal_lower_right(graph: Graph) -> None:
    """Query i sees key j up to i + T - L."""
    if graph.nodes("Attention"):
        node = graph.one("Attention")
        graph.set_attribute(node, "is_causal", 0)
        first = graph.constant(np.array(0, np.int64))
        one = graph.constant(np.array(1, np.int64))
        lengths = [
            graph.put("Squeeze", [graph.put("Shape", [name], start=1, end=2), graph.ints(0)]) for name in node.input[:2]
        ]
        queries, keys = (graph.put("Range", [first, length, one]) for length in lengths)
        column = graph.put("Unsqueeze", [queries, graph.ints(1)])  # (L,) -> (L, 1)
        ahead = graph.put("Sub", [lengths[1], lengths[0]])
        node.input.append(graph.put("LessOrEqual", [keys, graph.put("Add", [column, ahead])]))
        return
    node = graph.one("LessOrEqual")
    keys, column = node.input
    ahead = graph.put("Sub", [graph.put("Shape", [keys], start=0), graph.put("Shape", [column], start=0, end=1)])
    node.input[1] = graph.put("Add", [column, ahead])


def _softcap_after_mask(graph: Graph) -> None:
    mask, tanh = graph.masking(), graph.one("Tanh")
    divide, multiply = graph.maker(tanh.input[0]), graph.readers(tanh.output[0])[0]
    raw = divide.input[0]
    for place, name in enumerate(mask.input):
        if name == multiply.output[0]:
            mask.input[place] = raw
    divide.input[0] = mask.output[0]
    graph.one("Softmax").input[0] = multiply.output[0]


# --- heads, batch, cache


def _kv_tiled(graph: Graph) -> None:
    if graph.nodes("Attention"):
        node = graph.one("Attention")
        group = HEADS // graph.attribute(node, "kv_num_heads")
        for place in (1, 2):
            node.input[place] = graph.put("Tile", [node.input[place], graph.ints(1, 1, group)])  # (B, S, H*D)
        graph.set_attribute(node, "kv_num_heads", HEADS)
        return
    for node in [each for each in graph.nodes("Expand") if graph.maker(each.input[0]).op_type == "Unsqueeze"]:
        shape = graph.array(node.input[1])
        if shape.size == 5:
            graph.maker(node.input[0]).input[1] = graph.ints(1)  # (B, 1, G, T, D), to be repeated as a whole
            node.input[1] = graph.ints(1, int(shape[2]), 1, 1, 1)


def _heads_swapped(graph: Graph) -> None:
    order = np.array([1, 0, *range(2, HEADS)], np.int64)
    if graph.nodes("Attention"):
        out, size = graph.one("Attention").output[0], _head_size(graph)
        columns = (order[:, np.newaxis] * size + np.arange(size)).reshape(-1)  # (H, D) -> (H*D,)
        graph.rewire(out, graph.put("Gather", [out, graph.constant(columns)], axis=2))
    else:
        out = graph.attended().output[0]
        graph.rewire(out, graph.put("Gather", [out, graph.constant(order)], axis=1))


def _batch_mixed(graph: Graph) -> None:
    """The first of the batch reads the values of the last."""
    node, place = (graph.one("Attention"), 2) if graph.nodes("Attention") else (graph.attended(), 1)
    value, axis, end = node.input[place], graph.ints(0), graph.ints(np.iinfo(np.int64).max)
    last = graph.put("Slice", [value, graph.ints(-1), end, axis])
    rest = graph.put("Slice", [value, graph.ints(1), end, axis])
    node.input[place] = graph.put("Concat", [last, rest], axis=0)


def _stale_cache(graph: Graph) -> None:
    for name in ("key", "value"):
        present = f"present_{name}"
        graph.rewire(present, graph.put("Identity", [f"past_{name}"]))
        for reader in graph.readers(present):
            reader.input[list(reader.input).index(present)] = before_edit(present)


def _past_ignored(graph: Graph) -> None:
    for name in ("key", "value"):
        join = graph.maker(f"present_{name}")
        nothing = graph.put("Sub", [join.input[0], join.input[0]])
        empty = graph.put("Concat", [nothing, join.input[1]], axis=2)
        for reader in graph.readers(join.output[0]):
            reader.input[list(reader.input).index(join.output[0])] = empty


def _rotary_pairs(graph: Graph) -> None:
    """Members 2i and 2i+1 are turned together, for i and i + D/2."""
    size, changed = _head_size(graph), 0
    for node in graph.nodes("Slice"):
        start, end = (int(graph.array(name).reshape(())) for name in (node.input[1], node.input[2]))
        if (start, end) in ((0, size // 2), (size // 2, size)):
            node.input[1], node.input[2] = graph.ints(int(start > 0)), graph.ints(size)
            node.input[4] = graph.ints(2)
            changed += 1
    assert changed == 4, changed


# --- weights


def _last_place(graph: Graph) -> None:
    _change_weight(graph, lambda weight: np.nextafter(weight, np.float32(np.inf)))


def _by_a_thousandth(graph: Graph) -> None:
    _change_weight(graph, lambda weight: weight + np.float32(1e-3))


def _change_weight(graph: Graph, change: Callable[[np.float32], np.float32]) -> None:
    name = graph.weights()[-1]
    array = graph.array(name).copy()
    array[3, 5] = change(array[3, 5])
    graph.set_array(name, array)


def _weight_transposed(graph: Graph) -> None:
    name = graph.weights()[-1]
    graph.set_array(name, graph.array(name).T)


def _bias_dropped(graph: Graph) -> None:
    node = next(node for node in graph.nodes("Add") if node.input[1] == "value_projection.bias")
    graph.rewire(node.output[0], node.input[0])


def _int8_outlier(graph: Graph) -> None:
    """One large weight takes the range of a scale that all the others share."""
    name = graph.weights()[-1]
    array = graph.array(name)
    scale = np.float32(20.0 * np.abs(array).max() / 127)
    whole = np.clip(np.round(array / scale), -127, 127).astype(np.int8)
    whole[3, 5] = 127
    parts = [graph.constant(whole), graph.constant(np.array(scale)), graph.constant(np.array(0, np.int8))]
    graph.rewire(name, graph.put("DequantizeLinear", parts))


# --- encoder layer


def _residual_twice(graph: Graph) -> None:
    node = next(node for node in graph.nodes("Add") if node.input[0] == "x")
    graph.rewire(node.output[0], graph.put("Add", [node.output[0], "x"]))


def _eps_changed(graph: Graph) -> None:
    for node in graph.nodes("LayerNormalization"):
        graph.set_attribute(node, "epsilon", 1e-3)


def _norm_dropped(graph: Graph) -> None:
    node = graph.nodes("LayerNormalization")[0]
    graph.rewire(node.output[0], node.input[0])


def _gelu_approximation(graph: Graph) -> None:
    if graph.nodes("Gelu"):
        graph.set_attribute(graph.one("Gelu"), "approximate", "tanh")
        return
    erf = graph.one("Erf")
    x = graph.maker(erf.input[0]).input[0]  # erf(x / sqrt(2))
    cube = graph.put("Mul", [graph.put("Mul", [x, x]), x])
    third = graph.put("Mul", [cube, graph.constant(np.array(0.044715, np.float32))])
    inner = graph.put("Mul", [graph.put("Add", [x, third]), graph.constant(np.array(np.sqrt(2 / np.pi), np.float32))])
    graph.rewire(erf.output[0], graph.put("Tanh", [inner]))


def _transposed_when_square(graph: Graph) -> None:
    """As many tokens as the width: then, and only then, the output comes out transposed."""
    shape = graph.put("Shape", ["output"])
    tokens, width = (graph.put("Gather", [shape, graph.constant(np.array(axis, np.int64))], axis=0) for axis in (1, 2))
    square = graph.put("Equal", [tokens, width])
    whole = helper.make_tensor_value_info("branch", onnx.TensorProto.FLOAT, ["b", "l", "d"])
    turned = helper.make_node("Transpose", [before_edit("output")], ["branch"], perm=[0, 2, 1])
    same = helper.make_node("Identity", [before_edit("output")], ["branch"])
    branches = {
        f"{word}_branch": helper.make_graph([node], word, [], [whole])
        for word, node in (("then", turned), ("else", same))
    }
    chosen = graph.put("If", [square], **branches)
    graph.rewire("output", chosen)


_ALL: Final = (
    GraphEdit("scale-dropped", "scores are not scaled", "mha", _scale_dropped),
    GraphEdit("scale-squared", "scores are scaled twice", "mha", _scale_squared),
    GraphEdit("softmax-axis", "softmax runs over the queries", "mha", _softmax_axis, forms=_DECOMPOSED),
    GraphEdit(
        "scores-through-fp16",
        "scores are rounded to fp16 on the way to the softmax",
        "mha",
        _scores_through_fp16,
        forms=_DECOMPOSED,
    ),
    GraphEdit("mask-inverted", "the mask keeps what it should drop", "mha-masked", _mask_inverted),
    GraphEdit("mask-dropped", "the mask is not applied", "mha-masked", _mask_dropped),
    GraphEdit("mask-off-by-one", "every key takes its neighbour's place in the mask", "mha-masked", _mask_off_by_one),
    GraphEdit("mask-over-queries", "padding is masked as queries", "mha-padded", _mask_over_queries, forms=_DECOMPOSED),
    GraphEdit("mask-fill", "masked scores are -30 instead of -inf", "mha-padded", _mask_fill, forms=_DECOMPOSED),
    GraphEdit("causal-sees-next", "every token sees the next one", "mha-causal", _causal_sees_next, forms=_DECOMPOSED),
    GraphEdit(
        "causal-lower-right",
        "the causal frontier ends at the last query and key",
        "cross-attention",
        _causal_lower_right,
        {"is_causal": True, "kv_seq": 13},
    ),
    GraphEdit(
        "softcap-after-mask",
        "scores are capped after the mask",
        "mha-causal",
        _softcap_after_mask,
        {"softcap": 50.0},
        _DECOMPOSED,
    ),
    GraphEdit("kv-tiled", "grouped key/value heads are tiled", "gqa", _kv_tiled, {"num_kv_heads": 2}),
    GraphEdit("heads-swapped", "two heads change places", "mha", _heads_swapped),
    GraphEdit("batch-mixed", "the first of the batch reads the values of the last", "mha", _batch_mixed),
    GraphEdit("stale-cache", "the present returns the past", "mha-decode", _stale_cache),
    GraphEdit("past-ignored", "cached keys and values are read as zeros", "mha-decode", _past_ignored),
    GraphEdit(
        "rotary-pairs", "neighbours are turned for halves", "mha-causal", _rotary_pairs, {"rotary_base": 10000.0}
    ),
    GraphEdit("weight-last-place", "one weight differs in its last place", "mha", _last_place),
    GraphEdit("weight-thousandth", "one weight is 1e-3 larger", "mha", _by_a_thousandth),
    GraphEdit("weight-transposed", "a square weight is transposed", "mha", _weight_transposed),
    GraphEdit("bias-dropped", "the bias of the values is missing", "mha", _bias_dropped),
    GraphEdit(
        "int8-outlier",
        "a weight is int8 with a scale that an outlier decides",
        "mha",
        _int8_outlier,
        forms=_STANDARD,  # the reference evaluator has no DequantizeLinear of opset 18
    ),
    GraphEdit("residual-twice", "the residual is added twice", "encoder-layer", _residual_twice),
    GraphEdit("eps-changed", "layer norms add 1e-3 instead of 1e-5", "encoder-layer", _eps_changed),
    GraphEdit("norm-dropped", "a layer norm is missing", "encoder-layer", _norm_dropped),
    GraphEdit(
        "gelu-approximation",
        "gelu is its tanh approximation",
        "feed-forward",
        _gelu_approximation,
        {"activation": "gelu"},
    ),
    GraphEdit(
        "transposed-when-square",
        "the output is transposed where there are as many tokens as the width",
        "mha",
        _transposed_when_square,
        seq=64,
    ),
)

GRAPH_EDITS: Final[Mapping[str, GraphEdit]] = MappingProxyType({edit.name: edit for edit in _ALL})
"""Every fault of an export by name."""
