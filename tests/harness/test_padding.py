"""Padded positions are told apart, and the verdict is that of the valid ones."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from crosshead.export.artifact import (
    Artifact,
    Manifest,
    Source,
    TensorSpec,
    Yardstick,
    pack_arrays,
    sha256_bytes,
    write_artifact,
)
from crosshead.export.artifact import CaseRecord as Case
from crosshead.harness.judge import judge_output
from crosshead.harness.padding import padded_notices, padded_positions
from crosshead.results import CellRecord

PADDING = np.array([[False, False, False], [False, True, True]])
WANT = np.linspace(1.0, 2.0, 24).reshape(2, 3, 4)
YARDSTICK = Yardstick(sensitivity=1e-7, sensitivity_row=1e-7, unit_roundoff=2.0**-24)

Shape = tuple[int | str, ...]
Write = Callable[..., Artifact]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a manifest that says what goes in and out; the graph itself is never read here."""

    def write(
        *, x: Shape = ("batch", "seq", 4), y: Shape = ("batch", "seq", 4), more: dict[str, Shape], padding: np.ndarray
    ) -> Artifact:
        specs = {"x": x, "padding": ("batch", "seq"), **more}
        if not isinstance(x[1], str):
            specs["padding"] = (2, 3)
        inputs, expected = pack_arrays({"padding": padding}), pack_arrays({"y": WANT})
        digests = [sha256_bytes(part) for part in (inputs, expected)]
        manifest = Manifest(
            id="padded",
            source=Source(kind="onnx", name="padded.onnx"),
            exporter="by hand",
            exporter_version="0",
            opset=17,
            form="given",
            precision="fp32",
            inputs=tuple(
                TensorSpec(name=name, dtype="bool" if name == "padding" else "float32", shape=shape)
                for name, shape in specs.items()
            ),
            outputs=(TensorSpec(name="y", dtype="float32", shape=y),),
            model_sha256=sha256_bytes(b"model"),
            cases=(Case(name="one", reason="", seed=0, inputs_sha256=digests[0], expected_sha256=digests[1]),),
            roles={"padding": "key_padding_mask", **({"bias": "attn_mask"} if "bias" in more else {})},
        )
        blobs = {f"{digest}.npz": part for digest, part in zip(digests, (inputs, expected), strict=True)}
        return write_artifact(tmp_path / "padded", manifest, model=b"model", blobs=blobs)

    return write


def positions(artifact: Artifact) -> np.ndarray | None:
    return padded_positions(artifact, "one", {"y": WANT}).get("y")


@pytest.mark.parametrize("sizes", [("batch", "seq", 4), (2, 3, 4)])
def test_the_positions_of_one_sequence_are_those_of_its_mask(write: Write, sizes: Shape) -> None:
    found = positions(write(x=sizes, y=sizes, more={}, padding=PADDING))
    assert found is not None
    np.testing.assert_array_equal(found, PADDING)


def test_an_additive_mask_pads_where_it_is_minus_infinity(write: Write) -> None:
    mask = np.where(PADDING, -np.inf, 0.0).astype(np.float32)
    found = positions(write(more={"bias": ("seq", "seq")}, padding=mask))
    assert found is not None
    np.testing.assert_array_equal(found, PADDING)


def test_a_mask_over_the_keys_of_another_sequence_says_nothing_of_the_output(write: Write) -> None:
    assert positions(write(y=("batch", "length", 4), more={}, padding=PADDING)) is None
    by_accident = write(x=(2, 3, 4), y=(2, 3, 4), more={"memory": (2, 3, 4)}, padding=PADDING)
    assert positions(by_accident) is None, "two sequences of that length: whose padding it is cannot be known"


def test_without_a_role_or_without_padding_nothing_is_told_apart(write: Write) -> None:
    artifact = write(more={}, padding=PADDING)
    assert positions(Artifact(artifact.folder, msgspec.structs.replace(artifact.manifest, roles={}))) is None


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_case_that_is_not_padded_or_nothing_else_is_judged_whole(write: Write, everywhere: bool) -> None:
    assert positions(write(more={}, padding=np.full((2, 3), everywhere))) is None


def judged(got: np.ndarray, padded: np.ndarray | None = PADDING) -> CellRecord:
    record = judge_output(
        "y", got, WANT, expected_dtype="float64", yardstick=YARDSTICK, use_native=False, padded=padded
    )
    return CellRecord(artifact="a", backend="b", case="c", threads=1, status="ok", outputs=[record])


@pytest.mark.parametrize("there", [3.17, np.nan, np.inf])
def test_a_padded_position_does_not_decide_but_is_told(there: float) -> None:
    got = WANT * (1 + 1e-8)
    got[1, 2] += there
    assert judged(got, None).outputs[0].verdict == "fail"
    cell = judged(got)
    (output,) = cell.outputs
    assert (output.verdict, output.nan, output.inf, output.shape) == ("pass", 0, 0, [2, 3, 4])
    assert output.rel_l2 == pytest.approx(1e-8)
    assert output.padded is not None
    assert output.padded.positions == 2
    assert output.padded.nonfinite == (0 if np.isfinite(there) else 4)
    if np.isfinite(there):
        assert output.padded.max_abs == pytest.approx(3.17)
        assert output.padded.rel_l2 == pytest.approx(3.17 * 2 / np.linalg.norm(WANT[PADDING]), rel=1e-3)
    else:
        assert output.padded.rel_l2 == np.inf
    (notice,) = padded_notices(cell)
    assert (notice.code, notice.where) == ("padded-positions", "b/a c")
    assert "2 padded positions of output 'y'" in notice.message


def test_a_valid_position_decides_and_its_place_is_that_in_the_whole_output() -> None:
    got = WANT.copy()
    got[1, 0, 3] += 0.5
    cell = judged(got)
    (output,) = cell.outputs
    assert output.verdict == "fail"
    assert output.worst is not None
    assert output.worst.index == [1, 0, 3]
    assert output.padded is not None
    assert output.padded.max_abs == 0.0
    assert not padded_notices(cell)


def test_whole_numbers_at_padded_positions_decide_nothing_either() -> None:
    got, want = np.ones((2, 3), np.int64), np.ones((2, 3), np.int64)
    got[1, 1] = 9
    facts = {"expected_dtype": "int64", "yardstick": None, "use_native": True}
    assert judge_output("ids", got, want, **facts).verdict == "fail"  # type: ignore[arg-type]  # a shorthand
    record = judge_output("ids", got, want, **facts, padded=PADDING)  # type: ignore[arg-type]  # a shorthand
    assert (record.verdict, record.padded is not None and record.padded.max_abs) == ("pass", 8.0)
