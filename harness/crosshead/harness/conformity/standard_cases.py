"""The ONNX standard's own node cases, each as a small artifact.

The onnx package makes its cases when their modules are imported, and keeps them in a list of the whole process. So this
is run in a process of its own: `python -m crosshead.harness.conformity.standard_cases FOLDER TEXT`, see `make_cases`.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from crosshead.export.artifact import (
    Artifact,
    CaseRecord,
    Manifest,
    Precision,
    Source,
    TensorSpec,
    pack_arrays,
    sha256_bytes,
    write_artifact,
)
from crosshead.harness.conformity.features import ATTENTION_OPS, node_features
from crosshead.harness.errors import RequestError
from crosshead.results import FeatureRecord, scrub
from crosshead.runtimes import Settings

if TYPE_CHECKING:
    import onnx

DEFAULT_MATCH: Final = "attention"
CASE: Final = "standard"
"""Name of the one case that each artifact carries."""

_LIST_FILE: Final = "cases.json"
_LIMIT_S: Final = 300.0
_EXPANDED: Final = re.compile(r"_expanded(_ver\d+)?$")
_WORD: Final = "attention"


class StandardCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case: the standard's name, the artifact's folder, what the graph asks of attention, and its outputs.

    `outputs` holds, by the name of each output that is there, its place among those of the operator.
    """

    name: str
    folder: str
    features: FeatureRecord
    outputs: dict[str, int] = {}

    def artifact(self) -> Artifact:
        """Read the artifact."""
        return Artifact.load(Path(self.folder))


class StandardCases(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: the library that holds the cases, the cases, and by name why others were left out."""

    standard: str
    total: int
    cases: list[StandardCase]
    left_out: dict[str, str] = {}


def make_cases(match: str, folder: Path) -> StandardCases:
    """Write the cases whose name holds a text as artifacts, and return them in the standard's order.

    Args:
        match: what a case's name must hold, in small or capital letters.
        folder: an existing one; it takes one folder a case.

    Raises:
        RequestError: no case has such a name, or the installed onnx does not give its cases.
    """
    from crosshead.runtimes._environment import child_environment, python_command

    command = [*python_command("crosshead.harness.conformity.standard_cases"), str(folder), match]
    try:
        done = subprocess.run(
            command,
            env=child_environment(Settings()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RequestError(f"the onnx package did not make its cases within {_LIMIT_S:g} s") from error
    written = folder / _LIST_FILE
    if done.returncode or not written.is_file():
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise RequestError(f"the onnx package does not give its cases: {scrub(said[-1]) if said else 'no reason told'}")
    found = msgspec.json.decode(written.read_bytes(), type=StandardCases)
    if not found.cases and not found.left_out:
        raise RequestError(
            f"no node case of {found.standard} has {match!r} in its name (it has {found.total}, such as "
            "test_attention_4d and test_softmax_axis_0); give another --match"
        )
    return found


def write_cases(match: str, folder: Path) -> StandardCases:
    """Do what `make_cases` says, in this process: its list of cases is filled, and its modules imported."""
    from onnx.backend.test.case import node as standard

    for name in _modules(match):
        with warnings.catch_warnings():
            # Some cases are about overflow, and about logarithms and quotients of zero.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"onnx\.backend\.test\.case\.node\.")
            importlib.import_module(name)
    made = list(standard._NodeTestCases)
    cases: list[StandardCase] = []
    left_out: dict[str, str] = {}
    for case in made:
        if match.lower() not in case.name.lower():
            continue
        origin = standard._existing_names.get(_EXPANDED.sub("", case.name))
        try:
            cases.append(_write(case, origin, folder / f"case{len(cases)}"))
        except _NotPlainError as error:
            left_out[case.name] = str(error)
    title = f"onnx {importlib.metadata.version('onnx')}"
    return StandardCases(standard=title, total=len(made), cases=cases, left_out=left_out)


def _modules(match: str) -> Iterator[str]:
    """Yield the modules that may hold the cases: to import them all takes many seconds."""
    from onnx.backend.test.case import node as standard

    for found in pkgutil.walk_packages(standard.__path__, f"{standard.__name__}."):
        spec = importlib.util.find_spec(found.name)
        source = Path(spec.origin) if spec is not None and spec.origin is not None else None
        if _WORD in match.lower() and source is not None and _WORD not in source.read_text(encoding="utf-8").lower():
            continue
        yield found.name


class _NotPlainError(Exception):
    """A case with values other than tensors of numbers."""


def _write(case: Any, origin: "onnx.NodeProto | None", folder: Path) -> StandardCase:
    model: onnx.ModelProto = case.model
    data = model.SerializeToString(deterministic=True)
    given, wanted = case.data_sets[0]
    inputs = _arrays(model.graph.input, given)
    expected = _arrays(model.graph.output, wanted)
    blobs = {kind: pack_arrays(arrays) for kind, arrays in (("inputs", inputs), ("expected", expected))}
    digests = {kind: sha256_bytes(blob) for kind, blob in blobs.items()}
    ops: dict[str, int] = {}
    for node in model.graph.node:
        name = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        ops[name] = ops.get(name, 0) + 1
    manifest = Manifest(
        id=case.name,
        source=Source(kind="onnx", name=case.name),
        exporter="onnx.backend.test",
        exporter_version=importlib.metadata.version("onnx"),
        opset=_version(model, ""),
        form="given",
        precision=_precision(inputs.values()),
        inputs=_specs(inputs),
        outputs=_specs(expected),
        model_sha256=sha256_bytes(data),
        cases=(
            CaseRecord(
                name=CASE,
                reason="the standard's own inputs and expected outputs",
                seed=0,
                inputs_sha256=digests["inputs"],
                expected_sha256=digests["expected"],
            ),
        ),
        ops=ops,
    )
    write_artifact(folder, manifest, model=data, blobs={f"{digests[kind]}.npz": blob for kind, blob in blobs.items()})
    node = origin if origin is not None else model.graph.node[0]
    return StandardCase(
        name=case.name,
        folder=str(folder),
        features=_features(model, node, expanded=_EXPANDED.search(case.name) is not None),
        outputs={name: place for place, name in enumerate(node.output) if name},
    )


def _arrays(values: Sequence["onnx.ValueInfoProto"], given: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return tensors by name.

    Raises:
        _NotPlainError: a value is a sequence, an optional one or text.
    """
    import onnx

    arrays = {}
    for value, each in zip(values, given, strict=True):
        if isinstance(each, onnx.TensorProto):
            each = onnx.numpy_helper.to_array(each)
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type" or not isinstance(each, np.ndarray | np.generic):
            raise _NotPlainError(f"{value.name!r} is no tensor")
        array = np.asarray(each)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise _NotPlainError(f"{value.name!r} holds {array.dtype.name}")
        arrays[value.name] = array
    return arrays


def _specs(arrays: Mapping[str, np.ndarray[Any, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in arrays.items())


def _precision(arrays: Any) -> Precision:
    names = {array.dtype.name for array in arrays}
    return "bf16" if "bfloat16" in names else "fp16" if "float16" in names else "fp32"


def _version(model: "onnx.ModelProto", domain: str) -> int:
    wanted = {domain, "ai.onnx"} if domain in ("", "ai.onnx") else {domain}
    return next((entry.version for entry in model.opset_import if entry.domain in wanted), 0)


def _features(model: "onnx.ModelProto", node: "onnx.NodeProto", *, expanded: bool) -> FeatureRecord:
    """Read the features off the node; of an expanded case, off the node that it was expanded from."""
    dtypes, shapes = {}, {}
    for value in (*model.graph.input, *model.graph.output):
        tensor = value.type.tensor_type
        dtypes[value.name] = tensor.elem_type
        shapes[value.name] = tuple(axis.dim_value for axis in tensor.shape.dim)
    features = node_features(node, _version(model, node.domain), dtypes, shapes)
    return msgspec.structs.replace(features, expanded=expanded)


def is_attention(features: FeatureRecord) -> bool:
    """Whether these are features of attention, and not of another operator that a text was found in the name of."""
    return features.op.rpartition(":")[2] in ATTENTION_OPS


@functools.cache
def idle_model() -> bytes:
    """Return a model that every backend takes: one Identity."""
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "idle", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    """Write the cases and the list of them."""
    folder, match = Path(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(BrokenPipeError):
        found = write_cases(match, folder)
        (folder / _LIST_FILE).write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
