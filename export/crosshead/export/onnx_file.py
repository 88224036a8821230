"""A bare .onnx file as an artifact: the file as it is, cases for it, and its own float64 evaluation as the oracle.

There is no module behind it, so the graph question is answered "not-asked". Free of torch: a machine that only runs
models can do this too.
"""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import onnx
from onnx import helper

from crosshead.export._graph_file import count_ops, nodes_of, opset_of, tensor_specs
from crosshead.export._onnx_draw import draw_inputs, index_ranges, resolve_shapes
from crosshead.export._onnx_load import external_files, load_onnx, read_model
from crosshead.export._onnx_pair import compare_graphs
from crosshead.export._records import artifact_id, check_fit, precision_of, record_cases
from crosshead.export._scratch import scratch_folder
from crosshead.export.arithmetic import Counter, with_arithmetic
from crosshead.export.artifact import (
    Arrays,
    Artifact,
    ArtifactNotice,
    FormError,
    Manifest,
    Precision,
    Source,
    SourceError,
    TensorSpec,
    sha256_file,
    write_artifact,
)
from crosshead.export.case import Case, Shape, case_name, keeps_nothing
from crosshead.export.float64 import evaluate_float64, graph_sensitivity
from crosshead.export.user_cases import Given, read_given

OnStep = Callable[[str], None]

EXPORTER_UNKNOWN: Final = "unknown"
UNKNOWN_RANK: Final = "…"
"""The one axis of an output whose rank the file does not tell."""

WRONG_SHAPE: Final = "wrong-output-shape"

_LARGE_BYTES = 1024  # smaller initializers may be shapes, which shape inference reads


def onnx_signature(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and the outputs of a model.

    An axis without a name is called `<input>_<axis>`. Initializers that old files list as inputs are left out. An
    output whose rank nothing tells has the shape `("…",)`.

    Raises:
        SourceError: the file cannot be read, or an input is no tensor or has no rank.
    """
    return _signature(path.name, read_model(path))


def onnx_cases(
    path: Path,
    *,
    shapes: Mapping[str, Sequence[Shape]] = {},
    inputs: Path | Sequence[Path | str] | None = None,
    seed: int = 0,
) -> list[Case]:
    """Make the cases of a bare .onnx.

    Args:
        path: the model.
        shapes: by input name, one shape for every case, or one shape for all of them; symbolic axes that two inputs
            share need be given once.
        inputs: where cases come from that a person brings (see `read_given`): an `.npz`, folders `test_data_set_N`,
            functions. Inputs that they leave out are drawn.
        seed: of what is drawn.

    Returns:
        One case, named by its shapes, or `inputs` where one `.npz` was given, or `fixed` where nothing was; one a shape
        where several were given; and where cases come from other sources than one `.npz`, these under their own names.

    Raises:
        SourceError: the file cannot be read; an axis has no size; an array or a shape does not fit; a whole-number
            input has no range.
    """
    model = load_onnx(path)
    specs, _ = _signature(path.name, model)
    sources = [] if inputs is None else [inputs] if isinstance(inputs, Path) else list(inputs)
    brought = read_given(sources, [spec.name for spec in specs], seed)
    ranges = index_ranges(_inferred(model))
    count = max((len(each) for each in shapes.values()), default=1)
    for name, each in shapes.items():
        if len(each) not in (1, count):
            raise SourceError(f"input {name!r} was given {len(each)} shapes, another one {count}; give it 1 or {count}")
    lone = len(sources) == 1 and Path(sources[0]).suffix == ".npz"
    if brought and not lone and count > 1:
        raise SourceError("cases that are given are run at one shape each; give --shape one shape an input")
    cases: dict[str, Case] = {}
    for index, given in itertools.product(range(count), brought or [Given("fixed", "", {})]):
        wanted = {name: tuple(each[index % len(each)]) for name, each in shapes.items()}
        resolved = resolve_shapes(path.name, specs, given.inputs, wanted)
        drawn = draw_inputs(
            path.name, [spec for spec in specs if spec.name not in given.inputs], resolved, ranges, seed
        )
        if not brought or lone:
            name = case_name(wanted) if wanted else "inputs" if given.inputs else "fixed"
        else:
            name = given.name
        told = f"{', '.join(given.inputs)} {given.told}" if given.inputs else ""
        told = "; ".join(part for part in (told, f"{', '.join(drawn)} drawn" if drawn else "") if part)
        arrays = {**given.inputs, **drawn}
        case = Case(
            name,
            told or "a graph without inputs",
            seed,
            {spec.name: arrays[spec.name] for spec in specs},
            given.outputs,
        )
        check_fit(specs, case)
        cases[name] = case
    return list(cases.values())


def export_onnx_file(path: Path, cases: Sequence[Case], *, out: Path, on_step: OnStep = lambda _: None) -> Artifact:
    """Write a bare .onnx as an artifact; its bytes, and those of its external data, stay as they are.

    Args:
        path: the model.
        cases: at least one; see `onnx_cases`.
        out: folder that takes the artifact's folder.
        on_step: told in a few words what is being done.

    Raises:
        SourceError: the file cannot be read, or a case does not fit.
        FormError: an operator cannot be evaluated in float64; its node is named.
        ArtifactError: `out` cannot be written.
    """
    on_step(f"reading {path.name}")
    model = load_onnx(path)
    inputs, outputs = _signature(path.name, model)
    if not cases:
        raise SourceError("no case was given; an artifact carries one at least")
    precision = _precision(path.name, model)
    expected: dict[str, Arrays] = {}
    sensitivities = {}
    counters: dict[str, Counter] = {}
    for case in cases:
        check_fit(inputs, case)
        on_step(f"computing {case.name} in float64")
        expected[case.name] = evaluate_float64(model, case.inputs, watch=counters.setdefault(case.name, Counter()))
        sensitivities[case.name] = graph_sensitivity(model, case.inputs, expected[case.name], precision)
    arrays = {case.name: case.inputs for case in cases}
    files = record_cases(cases, expected, sensitivities, precision)
    manifest = msgspec.structs.replace(
        _manifest(path, model, cases[0].seed, inputs, outputs, expected),
        cases=with_arithmetic(files.records, model, arrays, expected, counters),
        notices=(*_findings(cases), *_wrong_shapes(path.name, inputs, outputs, arrays, expected)),
    )
    return _write(path, manifest, files.blobs, out)


def against_onnx_file(first: Artifact, path: Path, *, out: Path, on_step: OnStep = lambda _: None) -> Artifact:
    """Write a second .onnx as an artifact with the cases and expectations of a first one, and compare the two graphs.

    Args:
        first: what `export_onnx_file` made of the file that serves as the reference.
        path: the other model; its inputs and outputs must be called like the first one's.
        out: folder that takes the artifact's folder.
        on_step: told in a few words what is being done.

    Returns:
        The artifact; its graph verdict says whether it is the first one's function in float64.

    Raises:
        SourceError: the file cannot be read, its inputs or outputs are called otherwise, or a case does not fit it.
        FormError: an operator cannot be evaluated in float64; its node is named.
        ArtifactError: `out` cannot be written.
    """
    on_step(f"reading {path.name}")
    model = load_onnx(path)
    inputs, outputs = _signature(path.name, model)
    name = first.manifest.source.name
    _check_names(f"{path.name} has inputs", inputs, f"{name} has", first.manifest.inputs)
    _check_names(f"{path.name} has outputs", outputs, f"{name} has", first.manifest.outputs)
    arrays = {record.name: first.inputs(record.name) for record in first.manifest.cases}
    expected = {record.name: first.expected(record.name) for record in first.manifest.cases}
    for record in first.manifest.cases:
        check_fit(inputs, Case(record.name, record.reason, record.seed, arrays[record.name]))
    on_step(f"comparing {path.name} with {name} in float64")
    verdict = compare_graphs(model, load_onnx(first.model_path), arrays, expected)
    manifest = _manifest(path, model, first.manifest.source.seed, inputs, outputs, expected)
    identity = manifest.id if manifest.id != first.id else f"{manifest.id}-against"
    notices = [each for each in first.manifest.notices if each.code != WRONG_SHAPE]
    notices += _wrong_shapes(path.name, inputs, outputs, arrays, expected)
    manifest = msgspec.structs.replace(
        manifest, id=identity, graph=verdict, cases=first.manifest.cases, notices=tuple(notices)
    )
    digests = {digest for record in first.manifest.cases for digest in record.digests}
    blobs = {f"{digest}.npz": first.blob_path(digest).read_bytes() for digest in sorted(digests)}
    return _write(path, manifest, blobs, out)


def _check_names(mine: str, specs: Sequence[TensorSpec], theirs: str, wanted: Sequence[TensorSpec]) -> None:
    names, others = [spec.name for spec in specs], [spec.name for spec in wanted]
    if sorted(names) != sorted(others):
        raise SourceError(
            f"{mine} {', '.join(names)}; {theirs} {', '.join(others)}: files are compared by name, so rename one side's"
        )


def _manifest(
    path: Path,
    model: onnx.ModelProto,
    seed: int,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    expected: Mapping[str, Arrays],
) -> Manifest:
    """Describe a file: everything but its cases."""
    precision, opset = _precision(path.name, model), opset_of(model)
    return Manifest(
        id=artifact_id(path.name, "given", opset, precision),
        source=Source(kind="onnx", name=path.name, seed=seed, file_sha256=sha256_file(path)),
        exporter=model.producer_name or EXPORTER_UNKNOWN,
        exporter_version=model.producer_version,
        opset=opset,
        form="given",
        precision=precision,
        inputs=inputs,
        outputs=tuple(_ranked(spec, next(iter(expected.values()))) for spec in outputs),
        model_sha256=sha256_file(path),
        external_sha256={name: sha256_file(path.parent / name) for name in external_files(path, read_model(path))},
        ops=count_ops(model),
    )


def _write(path: Path, manifest: Manifest, blobs: Mapping[str, bytes], out: Path) -> Artifact:
    """Copy the file and its external data, and put the artifact together from the copies."""
    with scratch_folder(out) as scratch:
        copies = {}
        for number, name in enumerate(manifest.external_sha256):
            copies[name] = scratch / f"external{number}"
            shutil.copyfile(path.parent / name, copies[name])
        shutil.copyfile(path, scratch / path.name)
        return write_artifact(out / manifest.id, manifest, model=scratch / path.name, blobs=blobs, external=copies)


def _signature(file: str, model: onnx.ModelProto) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    initializers = {each.name for each in model.graph.initializer}
    try:
        inputs = tensor_specs(each for each in model.graph.input if each.name not in initializers)
        untold = [each for each in model.graph.output if not each.type.tensor_type.HasField("shape")]
        known = {each.name: each for each in _inferred(model).graph.output} if untold else {}
        outputs = []
        for each in model.graph.output:
            value = known.get(each.name, each)
            if value.type.WhichOneof("value") in (None, "tensor_type") and not value.type.tensor_type.HasField("shape"):
                element = value.type.tensor_type.elem_type
                dtype = helper.tensor_dtype_to_np_dtype(element).name if element else "float32"
                outputs.append(TensorSpec(name=each.name, dtype=dtype, shape=(UNKNOWN_RANK,)))
            else:
                outputs += tensor_specs([value])
    except FormError as error:
        raise SourceError(f"{file}: {error}") from error
    return inputs, tuple(outputs)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with the shapes that inference finds, if it finds any; the data of large weights is left out."""
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = onnx.GraphProto(name=model.graph.name, node=model.graph.node, value_info=model.graph.value_info)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() > _LARGE_BYTES:
            tensor = onnx.TensorProto(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=onnx.TensorProto.EXTERNAL
            )
        graph.initializer.append(tensor)
    bare.graph.CopyFrom(graph)
    try:
        return onnx.shape_inference.infer_shapes(bare)
    except (onnx.shape_inference.InferenceError, ValueError):
        return bare


def _ranked(spec: TensorSpec, expected: Arrays) -> TensorSpec:
    """Give an output of unknown rank the rank that its evaluation has."""
    if spec.shape != (UNKNOWN_RANK,):
        return spec
    return msgspec.structs.replace(spec, shape=tuple(f"{spec.name}_{axis}" for axis in range(expected[spec.name].ndim)))


def _precision(file: str, model: onnx.ModelProto) -> Precision:
    """Return the coarsest floating type of weights and inputs."""
    elements = {each.data_type for each in model.graph.initializer}
    elements |= {each.type.tensor_type.elem_type for each in model.graph.input}
    for node in nodes_of(model.graph):
        elements |= {each.t.data_type for each in node.attribute if each.HasField("t")}
    return precision_of(file, {_dtype_name(element) for element in elements if element})


def _dtype_name(element: int) -> str:
    return helper.tensor_dtype_to_np_dtype(element).name


def _findings(cases: Sequence[Case]) -> list[ArtifactNotice]:
    masks = {name: case.name for case in cases for name, array in case.inputs.items() if keeps_nothing(array, None)}
    return [
        ArtifactNotice(
            code="fully-masked-row",
            message=f"input {name!r} is -inf over a whole row ({case}); runtimes answer such rows differently",
            where=name,
        )
        for name, case in masks.items()
    ]


def _wrong_shapes(
    file: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    arrays: Mapping[str, Arrays],
    expected: Mapping[str, Arrays],
) -> list[ArtifactNotice]:
    """Hold the shapes that a file declares for its outputs against those it computes; the first case that differs."""
    notices: dict[str, ArtifactNotice] = {}
    for case, computed in expected.items():
        sizes = {
            axis: size
            for spec in inputs
            for axis, size in zip(spec.shape, arrays[case][spec.name].shape, strict=True)
            if isinstance(axis, str)
        }
        for spec in outputs:
            got = computed[spec.name].shape
            want = tuple(sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.shape)
            fits = len(want) == len(got) and all(a == b for a, b in zip(want, got, strict=True) if isinstance(a, int))
            if fits or spec.shape == (UNKNOWN_RANK,) or spec.name in notices:
                continue
            message = (
                f"{file} declares output {spec.name!r} as [{', '.join(map(str, spec.shape))}], but computes "
                f"{list(got)} (case {case})"
            )
            notices[spec.name] = ArtifactNotice(code=WRONG_SHAPE, message=message, where=spec.name)
    return list(notices.values())
