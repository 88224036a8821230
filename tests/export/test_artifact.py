import os
import stat
import zipfile
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import onnx
import pytest

from crosshead.export.artifact import (
    DTYPES,
    SCHEMA,
    Artifact,
    ArtifactError,
    CaseRecord,
    Manifest,
    Source,
    TensorSpec,
    Yardstick,
    pack_arrays,
    sha256_bytes,
    unpack_arrays,
    write_artifact,
    write_whole,
)

ARRAYS = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "mask": np.array([True, False]),
    "half": np.array([1.5, -2.0], dtype=ml_dtypes.bfloat16),
    "scalar": np.array(3, dtype=np.int64),
    "empty": np.zeros((2, 0), dtype=np.float16),
}


def write(folder: Path, **changes: object) -> Artifact:
    inputs, expected, weights = pack_arrays(ARRAYS), pack_arrays({"y": np.ones(2)}), b"weights"
    manifest = Manifest(
        id="a",
        source=Source(kind="block", name="mha", options={"num_heads": 4, "scale": None}),
        exporter="e",
        exporter_version="1",
        opset=23,
        form="standard",
        precision="fp32",
        inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 3)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(2,)),),
        model_sha256=sha256_bytes(b"model"),
        weights_sha256=sha256_bytes(weights),
        cases=(
            CaseRecord(
                name="c", reason="r", seed=0, inputs_sha256=sha256_bytes(inputs), expected_sha256=sha256_bytes(expected)
            ),
        ),
    )
    manifest = msgspec.structs.replace(manifest, **changes)
    blobs = {
        f"{sha256_bytes(inputs)}.npz": inputs,
        f"{sha256_bytes(expected)}.npz": expected,
        f"{sha256_bytes(weights)}.safetensors": weights,
    }
    return write_artifact(folder, manifest, model=b"model", blobs=blobs)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_arrays_come_back_bit_for_bit_and_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    data = pack_arrays(ARRAYS)
    assert data == pack_arrays(dict(reversed(ARRAYS.items())))
    (tmp_path / "a.npz").write_bytes(data)
    back = unpack_arrays(tmp_path / "a.npz")
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


def test_arrays_of_anyone_are_read_but_no_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", x=np.ones(2))
    assert unpack_arrays(tmp_path / "plain.npz")["x"].tolist() == [1.0, 1.0]
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ArtifactError, match=r"cannot read objects\.npz.*expected an \.npz of plain arrays"):
        unpack_arrays(tmp_path / "objects.npz")


@pytest.mark.parametrize("keep", [0, 10, 100, 400])
def test_a_truncated_npz_is_refused(tmp_path: Path, keep: int) -> None:
    (tmp_path / "a.npz").write_bytes(pack_arrays(ARRAYS)[:keep])
    with pytest.raises(ArtifactError, match=r"cannot read a\.npz"):
        unpack_arrays(tmp_path / "a.npz")


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", pack_arrays(ARRAYS))
    with pytest.raises(ArtifactError, match=r"cannot read a\.npz"):
        unpack_arrays(path)


def test_an_artifact_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(tmp_path / "a")
    read = Artifact.load(tmp_path / "a")
    read.verify()
    assert read == written
    assert read.inputs("c")["x"].tolist() == ARRAYS["x"].tolist()
    assert read.expected("c")["y"].dtype == np.float64
    assert read.model_path.read_bytes() == b"model"
    assert read.weights_path is not None
    assert read.weights_path.read_bytes() == b"weights"
    with pytest.raises(ArtifactError, match="artifact a has no case 'd'; it carries: c"):
        read.case("d")


def test_writing_again_replaces_and_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a")
    first = {path.name: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    (tmp_path / "a" / "left over").touch()
    write(tmp_path / "a")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == first
    assert names(tmp_path) == ["a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755


@pytest.mark.parametrize("which", ["model.onnx", "npz", "safetensors"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_changed_or_missing_file_is_named(tmp_path: Path, which: str, damage: str) -> None:
    artifact = write(tmp_path / "a")
    path = next(each for each in sorted((tmp_path / "a").rglob("*")) if each.name.endswith(which))
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match=f"{path.name}.*{damage}.*export again"):
        artifact.verify()


def test_a_changed_external_file_is_refused(tmp_path: Path) -> None:
    artifact = write(tmp_path / "a", external_sha256={"model.onnx.data": sha256_bytes(b"data")})
    with pytest.raises(ArtifactError, match=r"model\.onnx\.data is missing"):
        artifact.verify()
    (tmp_path / "a" / "model.onnx.data").write_bytes(b"datb")
    with pytest.raises(ArtifactError, match=r"model\.onnx\.data was changed after it was written"):
        artifact.verify()
    (tmp_path / "a" / "model.onnx.data").write_bytes(b"data")
    artifact.verify()


def test_a_manifest_can_be_replaced_in_one_step(tmp_path: Path) -> None:
    artifact = write(tmp_path / "a")
    changed = artifact.with_manifest(msgspec.structs.replace(artifact.manifest, exporter_version="2"))
    assert changed.manifest.exporter_version == "2"
    assert Artifact.load(tmp_path / "a") == changed
    assert names(tmp_path / "a") == ["blobs", "manifest.json", "model.onnx"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is no artifact: manifest.json cannot be read"),
        ("", "is damaged"),
        ("{}", "is damaged"),
        ('{"schema": "crosshead.artifact/99"}', f"has schema 'crosshead.artifact/99'; this version reads '{SCHEMA}'"),
        (f'{{"schema": "{SCHEMA}"}}', "is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_read(tmp_path: Path, text: str | None, message: str) -> None:
    (tmp_path / "a").mkdir()
    if text is not None:
        (tmp_path / "a" / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError) as caught:
        Artifact.load(tmp_path / "a")
    assert message in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


X, Y = (TensorSpec(name=name, dtype="float32", shape=("batch", 3)) for name in "xy")
CASE = CaseRecord(name="x=1x128,a/b=1x128", reason="r", seed=0, inputs_sha256="a" * 64, expected_sha256="b" * 64)
YARDSTICK = Yardstick(sensitivity=1e-7, sensitivity_row=0.0, unit_roundoff=2.0**-24)


def case(**changes: object) -> dict[str, object]:
    return {"cases": (msgspec.structs.replace(CASE, **changes),)}


def yardstick(**changes: object) -> dict[str, object]:
    return case(yardsticks={"y": msgspec.structs.replace(YARDSTICK, **changes)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "../a"}, "id '../a'"),
        ({"id": "a\n"}, r"id 'a\n'"),
        ({"id": ".."}, "id '..'"),
        ({"model_sha256": "../../x"}, "model_sha256: expected 64 hexadecimal digits"),
        ({"weights_sha256": "A" * 64}, "weights_sha256: expected 64"),
        ({"external_sha256": {"w": "0"}}, "w: expected 64"),
        ({"external_sha256": {"/etc/passwd": "0" * 64}}, "external file '/etc/passwd'"),
        ({"external_sha256": {"a/../../w": "0" * 64}}, "expected a path inside the artifact's folder"),
        ({"outputs": ()}, "outputs: expected one at least"),
        ({"inputs": (X, X)}, "input 'x' is there 2 times"),
        ({"inputs": (TensorSpec(name="x", dtype="float33", shape=()),)}, "no dtype is called 'float33'"),
        ({"outputs": (TensorSpec(name="y", dtype="bool", shape=(-1,)),)}, "expected sizes of at least 0, got -1"),
        ({"inputs": (TensorSpec(name="x", dtype="bfloat16", shape=()),), "precision": "fp16"}, "precision fp16 does"),
        ({"source": Source(kind="block", name="mha", cast="fp16")}, "was cast to fp16, but input 'x' is float32"),
        ({"source": Source(kind="block", name="mha", cast="fp16"), "inputs": ()}, "but the precision is fp32"),
        (case(name="../c"), "case '../c': expected a name"),
        (case(name="a\x1b[2J"), "without control characters"),
        (case(name=" "), "case ' '"),
        ({"cases": (CASE, CASE)}, "is there 2 times"),
        ({"cases": (CASE,), "size_cases": (CASE,)}, "is there 2 times"),
        (case(inputs_sha256="g" * 64), "inputs of case"),
        (case(sizes={"batch": -1}), "got -1 for axis 'batch'"),
        (case(noise={"z": 0.1}), "noise 0.1 of output 'z'"),
        (case(yardsticks={"z": YARDSTICK}), "output 'z': there is no such output"),
        (yardstick(unit_roundoff=0.0), "0.0 is not the unit roundoff of fp32"),
        (yardstick(unit_roundoff=2.0**-11), "is not the unit roundoff of fp32"),
        (yardstick(sensitivity=-1e-7), "at least 0, got -1e-07"),
        (yardstick(native=-1.0), "at least 0, got -1.0"),
    ],
)
def test_an_edited_manifest_is_refused_in_one_line(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    write(tmp_path / "a", **({"outputs": (Y,)} | changes))
    with pytest.raises(ArtifactError, match=r"^a/manifest.json is damaged: [^\n]+; export again$") as caught:
        Artifact.load(tmp_path / "a")
    assert message in str(caught.value)


def test_what_an_export_may_write_is_read(tmp_path: Path) -> None:
    spread = msgspec.structs.replace(CASE, name="batch=1", sizes={"batch": 1, "past": 0}, noise={"y": 0.5})
    whole = TensorSpec(name="n", dtype="int64", shape=(0,))
    cases = (CASE, msgspec.structs.replace(CASE, name="1x128", yardsticks={"y": YARDSTICK}))
    write(tmp_path / "a", outputs=(Y, whole), cases=cases, size_cases=(spread,), precision="fp32")
    assert Artifact.load(tmp_path / "a").manifest.size_cases == (spread,)
    write(tmp_path / "a", cases=(), precision="bf16", external_sha256={"./w/x.bin": "0" * 64})
    assert not Artifact.load(tmp_path / "a").manifest.cases


def test_every_element_type_of_onnx_is_known() -> None:
    kinds = [kind for kind in onnx.TensorProto.DataType.values() if kind != onnx.TensorProto.UNDEFINED]
    assert {onnx.helper.tensor_dtype_to_np_dtype(kind).name for kind in kinds} <= DTYPES


@pytest.mark.parametrize("which", ["model.onnx", "blobs"])
def test_symbolic_links_are_refused(tmp_path: Path, which: str) -> None:
    artifact = write(tmp_path / "a")
    (tmp_path / "a" / which).rename(tmp_path / "moved")
    (tmp_path / "a" / which).symlink_to(tmp_path / "moved")
    with pytest.raises(ArtifactError, match=f"{which}.* is a symbolic link"):
        artifact.verify()


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(ArtifactError, match=r"manifest.json cannot be read .it is a pipe"):
        Artifact.load(tmp_path)
    with pytest.raises(ArtifactError, match=r"cannot read manifest.json: it is a pipe"):
        unpack_arrays(tmp_path / "manifest.json")


def test_a_single_array_and_a_folder_are_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.ones(2))
    with pytest.raises(ArtifactError, match=r"cannot read x.npy: it holds one array without a name"):
        unpack_arrays(tmp_path / "x.npy")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match=r"cannot read \.: Is a directory; expected an .npz"):
        unpack_arrays(Path())


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match="give a writable folder with --out"):
        write(tmp_path / "file" / "a")
    model = tmp_path / "gone.onnx"
    manifest = write(tmp_path / "a").manifest
    with pytest.raises(ArtifactError, match="cannot write b"):
        write_artifact(tmp_path / "b", manifest, model=model)
    assert names(tmp_path) == ["a", "file"]


def test_a_model_and_its_data_may_come_as_files(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"model")
    (tmp_path / "d").write_bytes(b"data")
    manifest = write(tmp_path / "a").manifest
    external = {"weights/part.bin": sha256_bytes(b"data")}
    manifest = msgspec.structs.replace(manifest, external_sha256=external, cases=(), weights_sha256=None)
    artifact = write_artifact(
        tmp_path / "b", manifest, model=tmp_path / "m", external={"weights/part.bin": tmp_path / "d"}
    )
    artifact.verify()
    assert names(tmp_path) == ["a", "b"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_whole(path, b"one")

    def refuse(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["f"]
