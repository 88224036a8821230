"""The artifact: a graph, what it is, and the cases and float64 expectations that travel with it. Free of torch."""

from crosshead.export.artifact._arrays import (
    Arrays,
    Readable,
    StoredArray,
    open_arrays,
    pack_arrays,
    unpack_arrays,
    write_arrays,
    write_whole,
)
from crosshead.export.artifact._artifact import Artifact, sha256_bytes, sha256_file, write_artifact
from crosshead.export.artifact._cast import cast_module
from crosshead.export.artifact._check import DTYPES, UNIT_ROUNDOFFS, is_inside
from crosshead.export.artifact._errors import ArtifactError, CaptureError, ExportError, FormError, SourceError
from crosshead.export.artifact._factory import import_factory
from crosshead.export.artifact._fit import input_fault
from crosshead.export.artifact._manifest import (
    SCHEMA,
    Apart,
    ArtifactNotice,
    CaseRecord,
    Form,
    GraphResult,
    GraphVerdict,
    Manifest,
    Precision,
    Source,
    TensorSpec,
    Yardstick,
)
from crosshead.export.artifact._plain import check_plain

__all__ = [
    "DTYPES",
    "SCHEMA",
    "UNIT_ROUNDOFFS",
    "Apart",
    "Arrays",
    "Artifact",
    "ArtifactError",
    "ArtifactNotice",
    "CaptureError",
    "CaseRecord",
    "ExportError",
    "Form",
    "FormError",
    "GraphResult",
    "GraphVerdict",
    "Manifest",
    "Precision",
    "Readable",
    "Source",
    "SourceError",
    "StoredArray",
    "TensorSpec",
    "Yardstick",
    "cast_module",
    "check_plain",
    "import_factory",
    "input_fault",
    "is_inside",
    "open_arrays",
    "pack_arrays",
    "sha256_bytes",
    "sha256_file",
    "unpack_arrays",
    "write_arrays",
    "write_artifact",
    "write_whole",
]
