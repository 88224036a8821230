"""Named arrays on disk: an `.npz` that is written, read whole, or read in blocks by whoever compares large arrays."""

import io
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact._errors import ArtifactError
from crosshead.export.artifact._plain import check_plain

Arrays = dict[str, NDArray[np.generic]]

_BF16: Final = "@bfloat16"
_LOCAL_HEADER: Final = 30  # bytes of a zip member's own header, before its name; the last four are two lengths
_READ_ERRORS: Final = (
    *(OSError, ValueError, KeyError, EOFError, AttributeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, TypeError, tokenize.TokenError),
    RuntimeError,  # an archive under a password, or packed in a way that Python does not know
)


@dataclass(frozen=True)
class StoredArray:
    """An array in an `.npz`, uncompressed and in C order, whose numbers stay on disk until they are asked for.

    Attributes:
        path: the `.npz`.
        offset: where its numbers begin there, in bytes.
        shape, dtype: as of the array.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for each in self.shape:
            size *= each
        return size

    @property
    def nbytes(self) -> int:
        """Size of all elements, in bytes."""
        return self.size * self.dtype.itemsize

    def read(self) -> NDArray[Any]:
        """Read the whole array.

        Raises:
            ArtifactError: the file is gone, or ends too early.
        """
        return next(self.pieces(lambda: iter([self.size]))).reshape(self.shape)  # (size,) -> shape

    def pieces(self, sizes: Callable[[], Iterator[int]]) -> Iterator[NDArray[Any]]:
        """Read the elements in C order, as 1-D arrays of the sizes that are asked for, one after the other.

        Raises:
            ArtifactError: as `read`.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                for count in sizes():
                    data = np.fromfile(file, np.uint8, count * self.dtype.itemsize)
                    if data.size < count * self.dtype.itemsize:
                        raise ArtifactError(f"cannot read {self.path.name}: it ends too early; was it changed?")
                    yield data.view(self.dtype)
        except OSError as error:
            raise ArtifactError(f"cannot read {self.path.name}: {error.strerror or error}") from error


Readable = NDArray[Any] | StoredArray
"""An array in memory or on disk; both tell `shape`, `dtype`, `size` and `ndim`."""


def pack_arrays(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return `arrays` as the bytes of an `.npz` file; equal arrays give equal bytes.

    bfloat16, which NumPy cannot store by itself, is kept as raw 16-bit words; the member's name says so.
    """
    buffer = io.BytesIO()
    _write_archive(buffer, arrays)
    return buffer.getvalue()


def write_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write what `pack_arrays` returns into a file, whole or not at all, with no copy of it in memory."""
    with _whole_file(path) as file:
        _write_archive(file, arrays)


def _write_archive(target: IO[bytes], arrays: Mapping[str, NDArray[np.generic]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, array in sorted(arrays.items()):
            bfloat16 = array.dtype.name == "bfloat16"
            plain = np.asanyarray(array.view(np.uint16) if bfloat16 else array)
            member = zipfile.ZipInfo(f"{name}{_BF16 if bfloat16 else ''}.npy")  # its date stands still: 1980
            with archive.open(member, "w", force_zip64=True) as file:
                if plain.ndim > 1 and plain.flags.f_contiguous and not plain.flags.c_contiguous:
                    plain = np.ascontiguousarray(plain)  # in C order it can be read in blocks
                np.lib.format.write_array(file, plain, allow_pickle=False)


def unpack_arrays(path: Path) -> Arrays:
    """Read an `.npz` written by `pack_arrays`, or any other `.npz` of plain arrays.

    Raises:
        ArtifactError: the file is missing, truncated, a single array, or holds something else than numbers.
    """
    with _archive(path) as archive:
        return {name: _read_member(archive, member) for name, member in _members(archive).items()}


def open_arrays(path: Path) -> dict[str, Readable]:
    """Read the headers of an `.npz` only; its arrays are read when they are asked for.

    What is compressed or in Fortran order cannot be read in blocks, and is in memory afterwards.

    Raises:
        ArtifactError: as `unpack_arrays`.
    """
    with _archive(path) as archive:
        return {name: _open_member(archive, path, member) for name, member in _members(archive).items()}


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an `.npz`, and let whatever is wrong with it come out as one line."""
    try:
        check_plain(path)
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise ValueError("it holds one array without a name (np.savez(path, name=array) writes an archive)")
            with zipfile.ZipFile(file) as archive:
                yield archive
    except ArtifactError:
        raise
    except _READ_ERRORS as error:
        said = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        if isinstance(error, MemoryError):
            said = "an array in it is larger than the memory"
        raise ArtifactError(
            f"cannot read {path.name or path}: {said or type(error).__name__}; expected an .npz of plain arrays"
        ) from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by the names of their arrays; a name is a key, and never a path on disk."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy").removesuffix(_BF16)
        if name in members:
            raise ValueError(f"it holds {name!r} twice")
        members[name] = member
    return members


def _read_header(file: IO[bytes], member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is in Fortran order, and dtype; the file stands at the numbers afterwards."""
    name = member.filename.removesuffix(".npy")
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise ValueError(f"{name!r} is no array") from error
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects, no numbers")
    if dtype.names is not None:
        raise ValueError(f"{name!r} has fields ({', '.join(dtype.names)}); save each as an array of its own")
    if dtype.kind == "V":
        raise ValueError(f"{name!r} holds raw bytes; bfloat16 goes in as array.view(np.uint16), called '{name}{_BF16}'")
    if dtype.kind not in "biufc":
        raise ValueError(f"{name!r} holds {dtype.name}, no numbers")
    if name.endswith(_BF16):
        import ml_dtypes

        if dtype != np.uint16:
            raise ValueError(f"{name!r} holds {dtype.name}; bfloat16 goes in as array.view(np.uint16)")
        dtype = np.dtype(ml_dtypes.bfloat16)
    return shape, fortran, dtype


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        *_, dtype = _read_header(file, member)
    with archive.open(member) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array.view(dtype).astype(dtype.newbyteorder("="), copy=False)  # another machine's byte order


def _open_member(archive: zipfile.ZipFile, path: Path, member: zipfile.ZipInfo) -> Readable:
    with archive.open(member) as file:
        shape, fortran, dtype = _read_header(file, member)
        begins = file.tell()
    if member.compress_type != zipfile.ZIP_STORED or fortran:
        return _read_member(archive, member)
    with path.open("rb") as raw:
        raw.seek(member.header_offset)
        lengths = struct.unpack("<HH", raw.read(_LOCAL_HEADER)[-4:])
    stored = StoredArray(path, member.header_offset + _LOCAL_HEADER + sum(lengths) + begins, shape, dtype)
    if stored.nbytes != member.file_size - begins:
        raise ValueError(f"{member.filename!r} holds {member.file_size - begins} bytes, expected {stored.nbytes}")
    return stored


def write_whole(path: Path, data: bytes) -> None:
    """Write a file by a temporary file beside it and a rename, so that it is there whole or not at all."""
    with _whole_file(path) as file:
        file.write(data)


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)  # noqa: PTH101  # mkstemp makes 0600; an artifact is there to be shared
        os.replace(temporary, path)  # noqa: PTH105  # both names are strings of the same folder
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
