"""The artifact on disk: one folder, written whole or not at all.

<folder>/model.onnx            the graph (and its external data files beside it)
<folder>/manifest.json         what it is
<folder>/blobs/<sha256>.npz    inputs and expected outputs, by hash
<folder>/blobs/<sha256>.safetensors   the module's own state, by hash
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from crosshead.export.artifact._arrays import Arrays, Readable, open_arrays, unpack_arrays, write_whole
from crosshead.export.artifact._check import manifest_fault
from crosshead.export.artifact._errors import ArtifactError
from crosshead.export.artifact._manifest import SCHEMA, CaseRecord, Manifest
from crosshead.export.artifact._plain import check_plain

MODEL_FILE = "model.onnx"
MANIFEST_FILE = "manifest.json"
BLOBS = "blobs"


def sha256_bytes(data: bytes) -> str:
    """Return the hex digest of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Artifact:
    """A loaded artifact: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        """The name of the artifact within a run."""
        return self.manifest.id

    @property
    def model_path(self) -> Path:
        """Path of `model.onnx`."""
        return self.folder / MODEL_FILE

    @property
    def weights_path(self) -> Path | None:
        """Path of the module's own state (safetensors); None for a bare `.onnx`."""
        digest = self.manifest.weights_sha256
        return None if digest is None else self.folder / BLOBS / f"{digest}.safetensors"

    def case(self, name: str) -> CaseRecord:
        """Return the record of one case.

        Raises:
            ArtifactError: the artifact carries no case of that name.
        """
        for case in self.manifest.all_cases:
            if case.name == name:
                return case
        known = ", ".join(case.name for case in self.manifest.cases) or "none"
        raise ArtifactError(f"artifact {self.id} has no case {name!r}; it carries: {known}")

    def blob_path(self, digest: str) -> Path:
        """Path of the `.npz` of a digest."""
        return self.folder / BLOBS / f"{digest}.npz"

    def inputs_path(self, case: str) -> Path:
        """Path of the `.npz` with the inputs of a case."""
        return self.blob_path(self.case(case).inputs_sha256)

    def expected_path(self, case: str) -> Path:
        """Path of the `.npz` with the float64 oracle's outputs of a case."""
        return self.blob_path(self.case(case).expected_sha256)

    def inputs(self, case: str) -> Arrays:
        """Read the input arrays of a case, by input name."""
        return unpack_arrays(self.inputs_path(case))

    def expected(self, case: str) -> Arrays:
        """Read the float64 oracle's outputs of a case, by output name.

        Raises:
            ArtifactError: the file cannot be read, or lacks an output.
        """
        expected = unpack_arrays(self.expected_path(case))
        self._check_expected(case, expected)
        return expected

    def stored_expected(self, case: str) -> dict[str, Readable]:
        """Return what `expected` does, with large arrays still on disk. Raises as `expected`."""
        expected = open_arrays(self.expected_path(case))
        self._check_expected(case, expected)
        return expected

    def _check_expected(self, case: str, expected: Mapping[str, Readable]) -> None:
        for spec in self.manifest.outputs:
            if spec.name not in expected:
                raise ArtifactError(
                    f"artifact {self.id}, case {case}: no expectation for output {spec.name!r}; "
                    f"there are: {', '.join(expected) or 'none'}; export again"
                )

    def given(self, case: str) -> Arrays:
        """Read the outputs that a person gave with the inputs of a case, by output name; empty where there are none."""
        digest = self.case(case).given_sha256
        return {} if digest is None else unpack_arrays(self.blob_path(digest))

    @staticmethod
    def load(folder: Path) -> "Artifact":
        """Read the manifest of an artifact folder; digests are checked by `verify`.

        Raises:
            ArtifactError: the folder or its manifest is missing, damaged or of another version.
        """
        path = folder / MANIFEST_FILE
        try:
            check_plain(path)
            data = path.read_bytes()
        except OSError as error:
            raise ArtifactError(
                f"{folder.name} is no artifact: {MANIFEST_FILE} cannot be read ({error.strerror})"
            ) from error
        try:
            schema = msgspec.json.decode(data, type=_SchemaOnly).schema
            if schema != SCHEMA:
                raise ArtifactError(
                    f"{folder.name}/{MANIFEST_FILE} has schema {schema!r}; this version reads {SCHEMA!r}"
                )
            manifest = msgspec.json.decode(data, type=Manifest)
        except msgspec.MsgspecError as error:
            raise ArtifactError(f"{folder.name}/{MANIFEST_FILE} is damaged: {error}; export again") from error
        fault = manifest_fault(manifest)
        if fault:
            raise ArtifactError(f"{folder.name}/{MANIFEST_FILE} is damaged: {fault}; export again")
        return Artifact(folder, manifest)

    def digests(self) -> dict[Path, str]:
        """Return the digest of each file that the manifest names, by its path relative to the folder."""
        wanted = {Path(MODEL_FILE): self.manifest.model_sha256}
        wanted |= {Path(name): digest for name, digest in self.manifest.external_sha256.items()}
        for case in self.manifest.all_cases:
            for digest in case.digests:
                wanted[Path(BLOBS, f"{digest}.npz")] = digest
        if self.manifest.weights_sha256 is not None:
            wanted[Path(BLOBS, f"{self.manifest.weights_sha256}.safetensors")] = self.manifest.weights_sha256
        return wanted

    def verify(self) -> None:
        """Hold every file against its digest in the manifest.

        Raises:
            ArtifactError: a file is missing, was changed, or is a symbolic link; the message names it.
        """
        for name, digest in self.digests().items():
            path = self.folder / name
            if any((self.folder / part).is_symlink() for part in (name, *name.parents[:-1])):
                raise ArtifactError(f"artifact {self.id}: {name} is a symbolic link; put the file itself there")
            if not path.is_file():
                raise ArtifactError(f"artifact {self.id}: {name} is missing; export again")
            found = sha256_file(path)
            if found != digest:
                raise ArtifactError(
                    f"artifact {self.id}: {name} was changed after it was written "
                    f"(sha256 {digest[:12]}… expected, {found[:12]}… found); export again"
                )

    def with_manifest(self, manifest: Manifest) -> "Artifact":
        """Replace the manifest on disk in one step and return the artifact that carries it."""
        write_whole(self.folder / MANIFEST_FILE, encode_manifest(manifest))
        return Artifact(self.folder, manifest)


def _link(source: Path, target: Path) -> None:
    """Let `target` be the same file as `source`; a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


class _SchemaOnly(msgspec.Struct):
    schema: str


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON with a final newline; equal manifests give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2) + b"\n"


def write_artifact(
    folder: Path,
    manifest: Manifest,
    *,
    model: bytes | Path,
    blobs: Mapping[str, bytes | Path] = {},
    external: Mapping[str, Path] = {},
) -> Artifact:
    """Write an artifact folder whole or not at all (a temporary folder, then a rename).

    Args:
        folder: where it shall stand; an artifact that stands there already is replaced.
        manifest: must carry the digests of what is written.
        model: the bytes of `model.onnx`, or a file to move there.
        blobs: `<sha256>.<ending>` -> bytes, or a file to link or copy; it stays where it is.
        external: name relative to the model -> file to move there.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise ArtifactError(
            f"cannot write into {folder.parent}: {error.strerror}; give a writable folder with --out"
        ) from error
    try:
        (staging / BLOBS).mkdir()
        if isinstance(model, bytes):
            (staging / MODEL_FILE).write_bytes(model)
        else:
            shutil.move(model, staging / MODEL_FILE)
        for name, path in external.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, staging / name)
        for name, blob in blobs.items():
            if isinstance(blob, bytes):
                (staging / BLOBS / name).write_bytes(blob)
            else:
                _link(blob, staging / BLOBS / name)
        (staging / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
        staging.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        staging.rename(folder)
    except OSError as error:
        raise ArtifactError(f"cannot write {folder.name}: {error.strerror or error}; is the disk full?") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Artifact(folder, manifest)
