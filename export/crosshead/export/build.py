"""From a loaded source to artifacts on disk: capture once, lower to each form, check each, write each whole."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import torch
from safetensors.torch import save_file
from torch import nn

from crosshead.export._failure import fixed_error
from crosshead.export._findings import missing_attention, source_findings
from crosshead.export._graph_file import GraphFile, count_ops, tensor_specs, write_graph
from crosshead.export._quiet import printing_to_stderr
from crosshead.export._records import CaseFiles, artifact_id, check_fit, precision_of, record_cases
from crosshead.export._rounding import rounding_findings
from crosshead.export._scratch import scratch_folder
from crosshead.export._spread import find_spread
from crosshead.export._stress_module import module_stress
from crosshead.export.arithmetic import Counter, with_arithmetic
from crosshead.export.artifact import (
    Arrays,
    Artifact,
    ArtifactNotice,
    CaptureError,
    Form,
    FormError,
    GraphVerdict,
    Manifest,
    Precision,
    SourceError,
    TensorSpec,
    sha256_file,
    write_artifact,
)
from crosshead.export.capture import Captured, capture
from crosshead.export.case import Case
from crosshead.export.float64 import Float64Module, check_graph, module_outputs_float64, module_sensitivity
from crosshead.export.float64.graph_check import MOST_CASES
from crosshead.export.forms import Exporter, check_form, lower
from crosshead.export.precision import CastSource, cast_cases, cast_source
from crosshead.export.size_cases import SizeCases, not_tried, record_size_cases, size_cases
from crosshead.export.source import LoadedSource, seeded
from crosshead.export.stress import StressSet, record_stress

OnStep = Callable[[str], None]

CHECK_MEMORY = 3
"""Memory that the check in float64 takes at its peak, in sizes of the weights; 2.0 were measured on 288 MB of them."""


@dataclass(frozen=True)
class _Shared:
    """What all artifacts of one source and precision have in common.

    The module and the inputs of `cases` are in that precision; `expected` is what they compute in float64, to hold
    graphs against. What is expected of backends stands in `files`: it comes of the module before it was rounded.
    `stress_inputs` and `stress_proven` are the same two of the stress set.
    """

    loaded: LoadedSource
    captured: Captured
    cases: Sequence[Case]
    expected: dict[str, Arrays]
    files: CaseFiles
    sizes: SizeCases
    size_files: CaseFiles
    stress: StressSet
    stress_files: CaseFiles
    stress_inputs: Mapping[str, Arrays]
    stress_proven: Mapping[str, Arrays]
    weights: Path
    weights_sha256: str
    precision: Precision
    notices: tuple[ArtifactNotice, ...]
    random: str


def export_source(
    loaded: LoadedSource,
    cases: Sequence[Case],
    *,
    forms: Sequence[tuple[Form, int]],
    out: Path,
    precisions: Sequence[Precision] = (),
    exporter: Exporter = "dynamo",
    stress: bool = False,
    on_step: OnStep = lambda _: None,
) -> list[Artifact]:
    """Export a module and write one artifact for each precision, form and opset.

    The module is captured once for each precision. What a backend is expected to give is the module's float64 value
    before weights and inputs were rounded to the precision; what a graph is held against is that after. The `native`
    part of each yardstick is left open: it is measured where a clean process can be had.

    Args:
        loaded: the source.
        cases: at least one; they travel with every artifact.
        forms: pairs of form and opset.
        out: folder that takes one folder an artifact, `<out>/<artifact id>`.
        precisions: what to cast the module to; empty leaves it as it came.
        exporter: which of torch's exporters captures the module.
        stress: whether the stress set travels with the artifacts, and counts for their graphs.
        on_step: told in a few words what is being done.

    Returns:
        The artifacts, precision by precision, in the order of `forms`.

    Raises:
        FormError: a form or opset that is not offered with this exporter, or a graph that is not valid in it.
        CaptureError: the exporter refused the module.
        SourceError: a case does not fit, the module fails on it, or cannot be cast.
        ArtifactError: `out` cannot be written. In every case nothing of this call is left behind.
    """
    pairs = list(dict.fromkeys(forms))
    for form, opset in pairs:
        check_form(form, opset, exporter)
    if not cases:
        raise SourceError("no case was given; an artifact carries one at least")
    artifacts: list[Artifact] = []
    with scratch_folder(out) as scratch, seeded(loaded.source.seed):  # a module may draw numbers
        try:
            expected: dict[str, Arrays] = {}
            for precision in tuple(dict.fromkeys(precisions)) or (None,):
                shared = _prepare(loaded, cases, precision, expected, exporter, scratch, on_step, stress=stress)
                for form, opset in pairs:
                    artifacts.append(_build(shared, form, opset, out, scratch, on_step))
        except BaseException:
            for artifact in artifacts:
                shutil.rmtree(artifact.folder, ignore_errors=True)
            raise
    return artifacts


def _prepare(
    loaded: LoadedSource,
    cases: Sequence[Case],
    asked: Precision | None,
    expected: dict[str, Arrays],
    exporter: Exporter,
    scratch: Path,
    on_step: OnStep,
    *,
    stress: bool,
) -> _Shared:
    """Do for one precision what all forms share.

    `expected` takes the float64 outputs of the module as it came, for the next precision to find.
    """
    name = loaded.source.name
    cast = CastSource(loaded, tuple(cases)) if asked is None else cast_source(loaded, cases, asked)
    precision = asked or _precision(loaded)
    for case in cast.cases:
        check_fit(_declared_inputs(cast.loaded), case)
    on_step(f"exporting {name}" + (f" in {asked}" if asked else ""))
    captured = _capture(cast, exporter)
    for case in cast.cases:
        check_fit(_captured_inputs(captured), case)  # axes that were declared apart may have to be equal
    sensitivities = {}
    proven: dict[str, Arrays] = {}
    for number, (case, rounded) in enumerate(zip(cases, cast.cases, strict=True)):
        on_step(f"computing {case.name} in float64")
        try:
            with printing_to_stderr():
                if tuple(expected.get(case.name, ())) != captured.output_names:
                    expected[case.name] = module_outputs_float64(loaded.module, case.inputs, captured.output_names)
                sensitivities[case.name] = module_sensitivity(
                    loaded.module, case.inputs, expected[case.name], precision
                )
                if cast.loaded is loaded:
                    proven[case.name] = expected[case.name]
                elif number < MOST_CASES:
                    proven[case.name] = module_outputs_float64(
                        cast.loaded.module, rounded.inputs, captured.output_names
                    )
        except SourceError as error:
            raise SourceError(f"{name}, case {case.name}: {error}") from error
    spread = find_spread(loaded, captured, cases, expected)
    on_step(f"computing {name} in float64 at other sizes")
    specs = [  # the axes of the graph, the dtypes of the source: cases are rounded after
        msgspec.structs.replace(spec, dtype=loaded.inputs[spec.name].dtype.name) for spec in _captured_inputs(captured)
    ]
    sizes = (
        not_tried(specs, f"{spread.said}, and does not give the same numbers twice")
        if spread.said
        else size_cases(loaded, specs, captured.output_names, growth=_growth(cases, expected))
    )
    if sizes.fixed and exporter == "torchscript":  # the other exporter has proved its axes, or refused them, by itself
        raise fixed_error(name, sizes.fixed, loaded.module, loaded.dynamic)
    small = sizes.cases if asked is None else cast_cases(sizes.cases, asked, loaded.roles)
    made = StressSet()
    if stress and not spread.said and not loaded.source.training:
        on_step(f"computing the stress set of {name} in float64")
        growth = _growth(cases, expected)
        taken = [case.name for case in (*cases, *sizes.cases)]
        made = module_stress(loaded, specs, captured.output_names, precision, growth=growth, taken=taken)
    hard = made.inputs if asked is None else cast_cases(made.inputs, asked, loaded.roles)
    weights = scratch / f"weights-{precision}.safetensors"
    write_weights(cast.loaded.module, weights)
    return _Shared(
        cast.loaded,
        captured,
        cast.cases,
        proven,
        spread.noted(record_cases(cast.cases, expected, sensitivities, precision)),
        sizes,
        record_size_cases(loaded, sizes, sensitivities, precision, rounded=small),
        made,
        record_stress(made, precision, hard),
        {case.name: case.inputs for case in hard},
        _proven(loaded, cast.loaded, made, hard, captured.output_names),
        weights,
        sha256_file(weights),
        precision,
        (
            *cast.loaded.notices,
            *cast.notices,
            *captured.notices,
            *source_findings(cast.loaded, captured.model, cast.cases),
            *sizes.notices,
            *spread.notices,
        ),
        spread.said,
    )


def _proven(
    loaded: LoadedSource, cast: LoadedSource, made: StressSet, rounded: Sequence[Case], output_names: Sequence[str]
) -> dict[str, Arrays]:
    """Return what the module computes in float64 on the stress set, after both were rounded."""
    if cast is loaded:
        return {each.case.name: each.expected for each in made.cases}
    oracle = Float64Module(cast.module)
    with printing_to_stderr():
        return {case.name: oracle.run(case.inputs, output_names) for case in rounded}


def _capture(cast: CastSource, exporter: Exporter) -> Captured:
    """Capture the module; where it was cast, a refusal says to what.

    Raises:
        CaptureError: the exporter refused.
    """
    try:
        return capture(cast.loaded, exporter)
    except CaptureError as error:
        precision = cast.loaded.source.cast
        if precision is None:
            raise
        raise CaptureError(f"in {precision}: {error}") from error


def _build(shared: _Shared, form: Form, opset: int, out: Path, scratch: Path, on_step: OnStep) -> Artifact:
    source = shared.loaded.source
    identity = artifact_id(source.name, form, opset, shared.precision)
    on_step(f"lowering to {form}, opset {opset}")
    try:
        graph = write_graph(lower(shared.captured.model, form, opset), opset, scratch)
    except FormError as error:
        raise FormError(f"{source.name}, form {form}, opset {opset}: {error}") from error
    outputs = tensor_specs(graph.proto.graph.output)
    names = tuple(spec.name for spec in outputs)
    if names != shared.captured.output_names:
        raise FormError(f"form {form}: outputs came out as {names}, expected {shared.captured.output_names}")
    on_step(f"checking {form}, opset {opset}, in float64")
    inputs = {case.name: case.inputs for case in shared.cases}
    too_large = _too_large(graph)
    counters = {name: Counter() for name in inputs}
    verdict = too_large or _checked(shared, graph, inputs, counters)
    ops = count_ops(graph.proto)
    manifest = Manifest(
        id=identity,
        source=source,
        exporter=shared.captured.exporter,
        exporter_version=str(torch.__version__),  # a subclass of str, which msgspec does not take
        opset=opset,
        form=form,
        precision=shared.precision,
        inputs=tensor_specs(graph.proto.graph.input),
        outputs=outputs,
        model_sha256=graph.sha256,
        external_sha256=graph.external_sha256,
        weights_sha256=shared.weights_sha256,
        cases=with_arithmetic(
            shared.files.records, graph.proto, inputs, shared.expected, counters, _formula(shared.loaded)
        ),
        roles=shared.loaded.roles,
        ops=ops,
        graph=verdict,
        notices=(
            *shared.notices,
            *missing_attention(form, ops),
            *rounding_findings(source.name, graph.proto, {} if too_large else inputs, shared.precision),
        ),
        size_cases=shared.size_files.records,
        sizes_left_out=shared.sizes.left_out,
        stress_cases=shared.stress_files.records,
        stress_left_out=dict(shared.stress.left_out),
    )
    return write_artifact(
        out / identity,
        manifest,
        model=graph.model,
        blobs={
            **shared.files.blobs,
            **shared.size_files.blobs,
            **shared.stress_files.blobs,
            f"{shared.weights_sha256}.safetensors": shared.weights,
        },
        external=graph.external,
    )


def _formula(loaded: LoadedSource) -> Callable[[Mapping[str, tuple[int, ...]]], float] | None:
    """Return the arithmetic of a built-in block by the shapes of its inputs."""
    if loaded.block is None:
        return None
    block, options = loaded.block, loaded.source.options
    return lambda shapes: block.flops(shapes, **options)


def _checked(
    shared: _Shared, graph: GraphFile, inputs: Mapping[str, Arrays], watches: Mapping[str, Counter]
) -> GraphVerdict:
    """Hold the graph against the module; of one that draws random numbers, the weights alone."""
    module = shared.loaded.module
    if not shared.random:
        expected = {**shared.expected, **shared.stress_proven}
        cases = {**inputs, **shared.stress_inputs}
        return check_graph(graph.proto, module, cases, expected, stress=shared.stress_inputs.keys(), watches=watches)
    verdict = check_graph(graph.proto, module, {}, {})
    if verdict.verdict == "fail":
        return verdict
    return msgspec.structs.replace(verdict, verdict="not-asked", detail=f"{shared.random}: no outputs to compare with")


def _too_large(graph: GraphFile) -> GraphVerdict | None:
    """Return the verdict over a graph that cannot be evaluated in the memory there is, before the system kills us."""
    if not graph.external:
        return None
    needed = CHECK_MEMORY * sum(path.stat().st_size for path in graph.external.values())
    available = psutil.virtual_memory().available
    if available >= needed:
        return None
    detail = (
        f"not evaluated in float64: that takes about {needed / 1e9:.0f} GB of memory for weights of this size, "
        f"and {available / 1e9:.0f} GB are free"
    )
    return GraphVerdict(verdict="weak", detail=detail)


def _growth(cases: Sequence[Case], expected: Mapping[str, Arrays]) -> float:
    """Return the elements of the outputs for each element of the inputs: many, where tokens become logits."""
    given = sum(array.size for case in cases for array in case.inputs.values())
    return sum(array.size for each in expected.values() for array in each.values()) / max(given, 1)


def _declared_inputs(loaded: LoadedSource) -> list[TensorSpec]:
    """Return the inputs as the source declares them."""
    return [
        TensorSpec(
            name=name,
            dtype=array.dtype.name,
            shape=tuple(loaded.dynamic.get(name, {}).get(axis, size) for axis, size in enumerate(array.shape)),
        )
        for name, array in loaded.inputs.items()
    ]


def _captured_inputs(captured: Captured) -> list[TensorSpec]:
    """Return the inputs of the canonical graph, which every form keeps."""
    return [
        TensorSpec(
            name=str(value.name),
            dtype=value.dtype.numpy().name if value.dtype is not None else "float32",
            shape=tuple(dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()),
        )
        for value in captured.model.graph.inputs
    ]


def _precision(loaded: LoadedSource) -> Precision:
    tensors = [*loaded.module.parameters(), *loaded.module.buffers()]
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    return precision_of(loaded.source.name, [*dtypes, *(array.dtype.name for array in loaded.inputs.values())])


def write_weights(module: nn.Module, path: Path) -> None:
    """Write a module's parameters and buffers as safetensors; equal modules give equal bytes.

    Tied tensors are stored once, under the first of their names; buffers that are not persistent are stored as well,
    since a factory may draw others the second time.

    Raises:
        SourceError: a dtype that safetensors cannot store.
    """
    held: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    tensors: dict[str, torch.Tensor] = {}
    named = {**dict(module.named_buffers(remove_duplicate=False)), **module.state_dict(keep_vars=True)}
    for name, tensor in sorted(named.items()):
        if not isinstance(tensor, torch.Tensor):
            continue  # what a module keeps by get_extra_state; a factory makes it again
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and held.setdefault(place, name) != name:
            continue
        plain = tensor.detach().cpu().contiguous()
        whole = plain.untyped_storage().nbytes() == plain.nbytes
        tensors[name] = plain if whole else plain.clone()  # safetensors refuses tensors that share their memory
    try:
        save_file(tensors, path)
    except KeyError as error:
        raise SourceError(f"the module holds a tensor of dtype {error}, which safetensors cannot store") from error
