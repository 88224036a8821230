"""A graph as it goes to disk: bytes, external data where it is large, and what is read off it.

Free of torch; onnx_ir is imported only where a lowered graph is written.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import onnx
from onnx import helper

from crosshead.export.artifact import FormError, TensorSpec, sha256_bytes, sha256_file
from crosshead.export.clean import clean

if TYPE_CHECKING:
    import onnx_ir as ir

LARGEST_BYTES = 1_500_000_000
"""Weights beyond this many bytes go to a file beside the model: one protobuf message ends at 2 GiB."""

EXTERNAL_FILE = "model.onnx.data"


@dataclass(frozen=True)
class GraphFile:
    """A graph, written down.

    Attributes:
        proto: the whole model in memory, weights included.
        model: its bytes, or the file that holds them, for `write_artifact`.
        sha256: digest of `model`.
        external: base name of each external data file -> where it lies now.
        external_sha256: digest of each.
    """

    proto: onnx.ModelProto
    model: bytes | Path
    sha256: str
    external: dict[str, Path] = field(default_factory=dict)
    external_sha256: dict[str, str] = field(default_factory=dict)


def write_graph(model: "ir.Model", opset: int, scratch: Path) -> GraphFile:
    """Clean a lowered graph, check it, and write it down; equal graphs give equal bytes.

    Args:
        model: the graph; its large initializers are moved out of it when they are too many for one file.
        opset: what its opset must be.
        scratch: folder that takes the files where there are any.

    Raises:
        FormError: onnx.checker or strict shape inference refuses the graph, or its opset is another one.
    """
    import onnx_ir as ir

    total = sum(
        value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None
    )
    large = total > LARGEST_BYTES
    if large:
        ir.external_data.unload_from_model(model, scratch, EXTERNAL_FILE, size_threshold_bytes=1024)
    proto = ir.to_proto(model)
    clean(proto)
    found = opset_of(proto)
    if found != opset:
        raise FormError(f"asked for opset {opset}, the graph came out at {found}; ask for another opset or form")
    proto.ir_version = helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    data = proto.SerializeToString(deterministic=True)
    if not large:
        check_graph_file(proto)
        return GraphFile(proto, data, sha256_bytes(data))
    path, beside = scratch / "model.onnx", scratch / EXTERNAL_FILE
    path.write_bytes(data)
    check_graph_file(path)
    whole = onnx.load(path)
    return GraphFile(whole, path, sha256_bytes(data), {EXTERNAL_FILE: beside}, {EXTERNAL_FILE: sha256_file(beside)})


def check_graph_file(model: onnx.ModelProto | Path) -> None:
    """Run onnx.checker and strict shape inference; a graph with external data is given by its path.

    Raises:
        FormError: either refuses it.
    """
    try:
        onnx.checker.check_model(model if isinstance(model, onnx.ModelProto) else str(model))
        if isinstance(model, onnx.ModelProto):
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        else:
            inferred = model.with_name(".inferred.onnx")
            onnx.shape_inference.infer_shapes_path(
                str(model), str(inferred), check_type=True, strict_mode=True, data_prop=True
            )
            inferred.unlink()
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        said = " ".join(str(error).split())
        raise FormError(f"the graph is not valid ONNX: {said[:300]}") from error


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset of the default domain; 0 where the model imports none."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)


def count_ops(model: onnx.ModelProto) -> dict[str, int]:
    """Count nodes by `domain::op`, those of subgraphs included; the default domain is written `ai.onnx`."""
    counts = Counter(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in nodes_of(model.graph))
    return dict(sorted(counts.items()))


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from nodes_of(inner)


def tensor_specs(values: Iterable[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
    """Return name, dtype and shape of graph inputs or outputs.

    An axis without a name, or of size -1 as some converters write an open one, is called `<value>_<axis>`.

    Raises:
        FormError: a value is no tensor of a dtype that NumPy knows, or has no rank.
    """
    return tuple(_tensor_spec(value) for value in values)


def _tensor_spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise FormError(
            f"{value.name!r} is a {(kind or 'value without a type').removesuffix('_type')}; expected a tensor"
        )
    if not value.name.isprintable():
        raise FormError(f"{value.name!r} holds control characters; rename it")
    tensor = value.type.tensor_type
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, TypeError, ValueError) as error:
        raise FormError(f"{value.name!r} has element type {tensor.elem_type}, which NumPy has no name for") from error
    if not tensor.HasField("shape"):
        raise FormError(f"{value.name!r} has no rank in the graph; export it with shapes")
    return TensorSpec(
        name=value.name,
        dtype=dtype,
        shape=tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else dim.dim_param or f"{value.name}_{axis}"
            for axis, dim in enumerate(tensor.shape.dim)
        ),
    )
