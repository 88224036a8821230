"""Arrays on disk: read in blocks they are what they were, and what is no plain array is refused in one line."""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crosshead.export.artifact import (
    ArtifactError,
    StoredArray,
    open_arrays,
    pack_arrays,
    unpack_arrays,
    write_arrays,
)

DTYPES = ["float32", "float16", "float64", "int64", "bool", "complex64", ml_dtypes.bfloat16]
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: not name.endswith((".npy", "@bfloat16")) and "\0" not in name),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4).map(
            lambda shape: np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        )
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arrays")


@given(arrays=ARRAYS, transposed=st.booleans())
@settings(max_examples=60)
def test_arrays_read_from_disk_are_what_was_packed(
    arrays: dict[str, np.ndarray], transposed: bool, folder: Path
) -> None:
    arrays = {name: array.T if transposed else array for name, array in arrays.items()}
    path = folder / "a.npz"
    write_arrays(path, arrays)
    assert path.read_bytes() == pack_arrays(arrays)
    whole, opened = unpack_arrays(path), open_arrays(path)
    assert whole.keys() == opened.keys() == arrays.keys()
    for name, array in arrays.items():
        stored = opened[name]
        assert isinstance(stored, StoredArray), "what is written here is in C order, so that it can be read in blocks"
        assert (stored.shape, stored.dtype, stored.size, stored.ndim) == (
            array.shape,
            array.dtype,
            array.size,
            array.ndim,
        )
        assert stored.nbytes == array.nbytes
        for back in (whole[name], stored.read()):
            assert back.dtype == array.dtype
            assert back.shape == array.shape
            assert back.tobytes() == array.tobytes()


def test_pieces_follow_each_other(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"x": np.arange(10.0).reshape(2, 5)})
    stored = open_arrays(tmp_path / "a.npz")["x"]
    assert isinstance(stored, StoredArray)
    assert [piece.tolist() for piece in stored.pieces(lambda: iter([4, 1, 5]))] == [
        [0.0, 1.0, 2.0, 3.0],
        [4.0],
        [5.0, 6.0, 7.0, 8.0, 9.0],
    ]


@pytest.mark.parametrize("compressed", [False, True])
def test_what_others_wrote_is_read_in_any_order_and_packing(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    x, y = np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([1, 2], ">i4")
    save(tmp_path / "a.npz", x=x, y=y)
    for arrays in (unpack_arrays(tmp_path / "a.npz"), open_arrays(tmp_path / "a.npz")):
        values = {name: array.read() if isinstance(array, StoredArray) else array for name, array in arrays.items()}
        assert values["x"].tolist() == x.tolist()
        assert values["y"].tolist() == [1, 2]
    assert unpack_arrays(tmp_path / "a.npz")["y"].dtype.isnative


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def npy(header: str) -> bytes:
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


HUGE = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }")
SHORT = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (8,), }") + bytes(4)
BROKEN = npy("{'descr': '<f4', 'fortran_order': (")


@pytest.mark.parametrize("read", [unpack_arrays, open_arrays])
@pytest.mark.parametrize(
    ("member", "data", "said"),
    [
        ("x.npy", b"no array at all", "'x' is no array"),
        ("readme.txt", b"hello", "'readme.txt' is no array"),
        ("x@bfloat16.npy", SHORT, "'x@bfloat16' holds float32; bfloat16 goes in as array.view"),
        ("x.npy", SHORT, ""),
        ("x.npy", HUGE, ""),
        ("x.npy", BROKEN, ""),
    ],
)
def test_a_member_that_is_no_array_is_refused(
    tmp_path: Path, read: object, member: str, data: bytes, said: str
) -> None:
    path = archive(tmp_path / "a.npz", {member: data})
    assert callable(read)
    with pytest.raises(
        ArtifactError, match=r"^cannot read a\.npz: [^\n]+; expected an \.npz of plain arrays$"
    ) as error:
        read(path)
    assert said in str(error.value)


@pytest.mark.parametrize("read", [unpack_arrays, open_arrays])
@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.array([{}], dtype=object), "'x' holds Python objects, no numbers"),
        (np.zeros(2, [("a", "f4"), ("b", "i8")]), "'x' has fields (a, b); save each as an array of its own"),
        (np.array(["text"]), "'x' holds str128, no numbers"),
        (np.array(["2020-01-01"], "datetime64[D]"), "'x' holds datetime64[D], no numbers"),
        (np.zeros(2, "V2"), "'x' holds raw bytes; bfloat16 goes in as array.view(np.uint16), called 'x@bfloat16'"),
    ],
)
def test_an_array_of_something_else_than_numbers_is_refused(
    tmp_path: Path, read: object, array: np.ndarray, said: str
) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    assert callable(read)
    with pytest.raises(ArtifactError) as error:
        read(tmp_path / "a.npz")
    assert str(error.value) == f"cannot read a.npz: {said}; expected an .npz of plain arrays"


@pytest.mark.parametrize("read", [unpack_arrays, open_arrays])
def test_names_are_keys_and_no_paths(tmp_path: Path, read: object) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    data = pack_arrays({"../escaped": np.ones(2), "/absolute": np.ones(2), "a\\b": np.ones(2)})
    (inside / "a.npz").write_bytes(data)
    assert callable(read)
    assert sorted(read(inside / "a.npz")) == ["../escaped", "/absolute", "a\\b"]
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "a.npz"]


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile itself warns of what is written here
def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for _ in range(2):
            file.writestr("x.npy", SHORT)
    with pytest.raises(ArtifactError, match="it holds 'x' twice"):
        unpack_arrays(tmp_path / "a.npz")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_archive_is_read_or_refused(data: st.DataObject, folder: Path) -> None:
    packed = bytearray(pack_arrays({"x": np.arange(6, dtype=np.float32), "y": np.ones((2, 2), ml_dtypes.bfloat16)}))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(len(packed) // 2, len(packed)))
    path = folder / "damaged.npz"
    path.write_bytes(packed[:keep])
    for read in (unpack_arrays, open_arrays):
        with suppress(ArtifactError):
            read(path)


def test_what_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {"x": np.arange(10.0)})
    stored = open_arrays(path)["x"]
    assert isinstance(stored, StoredArray)

    def sizes() -> Iterator[int]:
        yield 5
        path.write_bytes(path.read_bytes()[:200])
        yield 5

    with pytest.raises(ArtifactError, match=r"cannot read a\.npz: it ends too early; was it changed\?"):
        list(stored.pieces(sizes))
    path.unlink()
    with pytest.raises(ArtifactError, match=r"cannot read a\.npz: No such file"):
        stored.read()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "a.npz", {"x": np.array([{}], dtype=object)})
    assert list(tmp_path.iterdir()) == []
