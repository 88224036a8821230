"""Say in our own errors, and in one line, what ONNX Runtime refused."""

import re

from crosshead.export.artifact import Artifact
from crosshead.runtimes.errors import BackendError, UnsupportedError

_NO_KERNEL = re.compile(r"implementation for (?P<op>[\w.:]+)\((?P<version>\d+)\) node with name '(?P<node>[^']*)'")
_NO_OPERATOR = re.compile(r"No Op registered for (?P<op>\w+) with domain_version of (?P<version>\d+)")
_NO_FUNCTION = re.compile(r"Fatal error: (?P<op>[\w.:]+)\(-?\d+\) is not a registered function/op")
_NEW_IR = re.compile(r"Unsupported model IR version: (?P<version>\d+), max supported IR version: (?P<most>\d+)")
_NEW_OPSET = re.compile(r"Opset (?P<version>\d+) is under development")
_SOURCE = re.compile(r"/onnxruntime_src/\S+ (?:.*\) )?")
_RUNNING = re.compile(r"while running (?P<op>\w+) node\.(?: Name:'(?P<node>[^']*)')?")
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

_REFUSALS = (
    (
        "inconsistent q_sequence_length (between attn_mask and Q)",
        "its Attention takes no mask that is broadcast along the queries; the form `decomposed` does",
    ),
    (
        "inconsistent total_sequence_length (between attn_mask",
        "its Attention takes no mask that is broadcast along the keys, or shorter; the form `decomposed` does",
    ),
    (
        "KV sequence length must be greater than 0",
        "its Attention takes no keys of length 0; the form `decomposed` does",
    ),
    ("NOT_IMPLEMENTED", ""),
)
"""Texts by which a kernel refuses, when it is run, what the standard allows; and what that means for a person."""


def translate(error: Exception, artifact: Artifact, library: str, device: str) -> BackendError:
    """Return our error for an exception of ONNX Runtime's.

    Args:
        error: what was raised by building a session or running it.
        artifact: what was loaded; looked into for the dtype of a node.
        library: `onnxruntime 1.32.0`, for the message.
        device: `CPU` or `CUDA`, for the message.
    """
    text = str(error)
    if found := _NO_KERNEL.search(text):
        dtype = dtype_of_node(artifact, found["op"], found["node"])
        return UnsupportedError(
            f"{library} has no {device} kernel for {found['op']} of {dtype} (node {found['node']!r})"
        )
    if found := _NO_OPERATOR.search(text):
        return UnsupportedError(f"{library} knows no operator {found['op']} at opset {found['version']}")
    if found := _NO_FUNCTION.search(text):
        return UnsupportedError(f"{library} knows no operator {found['op']}")
    if found := _NEW_IR.search(text):
        return UnsupportedError(
            f"{library} reads ONNX IR versions up to {found['most']}; this file has {found['version']}"
        )
    if found := _NEW_OPSET.search(text):
        return UnsupportedError(f"{library} is older than opset {found['version']} of this file")
    for sign, meaning in _REFUSALS:
        if sign in text:
            return UnsupportedError(f"{library} on {device}: {meaning or _plain(text)}")
    if "INVALID_PROTOBUF" in text:
        return BackendError(f"{artifact.model_path.name} is truncated or no ONNX file; export again")
    return BackendError(f"{library} on {device}{_running(text)}: {_plain(text)}")


def _running(text: str) -> str:
    """Return the node that a message is about, as `, Reshape 'name'`; empty where it tells none."""
    found = _RUNNING.search(text)
    if found is None:
        return ""
    return f", {found['op']} {found['node']!r}" if found["node"] else f", {found['op']}"


def _plain(text: str) -> str:
    """Return the part of a message that speaks to a person: no status codes, C++ signatures or conditions."""
    text = text.rpartition(" was false. ")[2]
    return " ".join(_SOURCE.sub("", _CODE.sub("", text)).split())


def dtype_of_node(artifact: Artifact, op: str, node_name: str) -> str:
    """Return the dtype of a node's first typed input; the node is found by name, or else by operator."""
    import onnx

    model = onnx.load(artifact.model_path, load_external_data=False)
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.value_info, *graph.output]}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.name == node_name]
    nodes += [node for node in graph.node if node.op_type == op.rpartition(":")[2].rpartition(".")[2]]
    for node in nodes:
        for name in [*node.input, *node.output]:
            if types.get(name):
                return str(onnx.TensorProto.DataType.Name(types[name])).lower()
    return _DTYPES[artifact.manifest.precision]  # a node of a body, which the graph does not hold
