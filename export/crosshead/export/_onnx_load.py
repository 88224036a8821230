"""Read a bare .onnx file, or say in one line why it cannot be read. Free of torch."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs are shipped with it
from onnx import TensorProto, external_data_helper

from crosshead.export._graph_file import opset_of
from crosshead.export.artifact import SourceError, check_plain, is_inside

_LFS = b"version https://git-lfs"


def load_onnx(path: Path) -> onnx.ModelProto:
    """Read and check a model, its external data included.

    Raises:
        SourceError: missing, truncated, no ONNX, too new for the installed onnx, invalid, or without its external data.
    """
    model = read_model(path)
    for name in external_files(path, model):
        _check_external(path, name)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        said = " ".join(str(error).split())
        raise SourceError(f"the external data of {path.name} cannot be read: {said[:300]}") from error
    try:
        _check(path, model)
    except onnx.checker.ValidationError as error:
        raise SourceError(f"{path.name} is not valid ONNX: {' '.join(str(error).split())[:300]}") from error
    return model


def _check(path: Path, model: onnx.ModelProto) -> None:
    """Run onnx.checker, forgiving outputs without a shape, which converters leave out and runtimes never ask for."""
    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        onnx.checker.check_model(str(path))
        return
    shaped = onnx.ModelProto()
    shaped.CopyFrom(model)
    for value in shaped.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(shaped)


def read_model(path: Path) -> onnx.ModelProto:
    """Parse a model without its external data.

    Raises:
        SourceError: missing, truncated, no ONNX, or too new for the installed onnx.
    """
    try:
        check_plain(path)
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path.name} cannot be read: {error.strerror}") from error
    if data.startswith(_LFS):
        raise SourceError(f"{path.name} is a Git LFS pointer, not the model; fetch it with: git lfs pull")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise SourceError(
            f"{path.name} ({len(data)} bytes) is truncated or no ONNX file; copy it again, or export it anew"
        ) from error
    if not data or not model.ir_version or not model.HasField("graph") or not model.graph.output:
        raise SourceError(f"{path.name} ({len(data)} bytes) holds no ONNX graph; copy it again, or export it anew")
    newest = onnx.IR_VERSION
    if model.ir_version > newest:
        raise SourceError(
            f"{path.name} has IR version {model.ir_version}; onnx {onnx.__version__} reads up to {newest}: "
            "pip install --upgrade onnx"
        )
    opset, known = opset_of(model), onnx.defs.onnx_opset_version()
    if opset > known:
        raise SourceError(
            f"{path.name} is at opset {opset}; onnx {onnx.__version__} knows up to {known}: pip install --upgrade onnx"
        )
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if (
            value.name not in weights
            and value.type.WhichOneof("value") == "tensor_type"
            and not tensor.HasField("shape")
        ):
            raise SourceError(f"input {value.name!r} of {path.name} has no rank; export it with shapes")
    return model


def external_files(path: Path, model: onnx.ModelProto) -> list[str]:
    """Return the names of a model's external data files, relative to it, sorted.

    Raises:
        SourceError: a name that leads out of the model's folder, or an offset or length that is no size.
    """
    names = set()
    for tensor in _tensors(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            try:
                location = external_data_helper.ExternalDataInfo(tensor).location
            except ValueError as error:
                said = " ".join(str(error).split())
                raise SourceError(
                    f"{path.name}: where tensor {tensor.name!r} lies in its external data is damaged: {said}"
                ) from error
            if not is_inside(location):
                raise SourceError(
                    f"{path.name}: tensor {tensor.name!r} lies in {location!r}, outside the model's folder"
                )
            names.add(location)
    return sorted(names)


def _check_external(path: Path, name: str) -> None:
    if not (path.parent / name).is_file():
        raise SourceError(
            f"{path.name} needs its external data file {name!r}, which is missing; put it beside the model"
        )


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner)
