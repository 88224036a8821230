"""Planted graphs with a size baked in, each in a way of its own; and healthy ones that nothing may be said against."""

import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from crosshead.export.artifact import (
    Artifact,
    CaseRecord,
    GraphResult,
    GraphVerdict,
    Manifest,
    Source,
    TensorSpec,
    Yardstick,
    pack_arrays,
    sha256_bytes,
    write_artifact,
)
from crosshead.harness import Plan, axes, compare, export
from crosshead.harness.accuracy import Limits
from crosshead.harness.axes import AxesProof, prove_axes
from crosshead.harness.verdict import exit_status
from crosshead.results import GraphRecord, summary
from crosshead.runtimes import Settings

Array = NDArray[Any]
Oracle = Callable[[Array], Array]
Nodes = Sequence[onnx.NodeProto]

LIMITS = Limits(60.0, None)
EXAMPLE = {"batch": 2, "seq": 6}
SIZES = ({"batch": 1}, {"batch": 3}, {"seq": 1}, {"seq": 11}, {"batch": 3, "seq": 11})
YARDSTICK = Yardstick(sensitivity=6e-8, sensitivity_row=6e-8, unit_roundoff=2.0**-24)
TABLE = np.linspace(0.5, 1.5, 11, dtype=np.float32)[:, None]


def tokens(sizes: dict[str, int], seed: int = 0) -> Array:
    shape = (sizes["batch"], sizes["seq"], 4)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def graph(nodes: Nodes, constants: dict[str, Array], out: tuple[str | int, ...] = ("batch", "seq", 4)) -> bytes:
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", "seq", 4)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, out),
    ]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    body = helper.make_graph(list(nodes), "planted", values[:1], values[1:], held)
    opsets = [helper.make_opsetid("", 18)]
    return bytes(helper.make_model(body, opset_imports=opsets, ir_version=9).SerializeToString())


def plant(
    folder: Path,
    model: bytes,
    oracle: Oracle,
    sizes: Sequence[dict[str, int]] = SIZES,
    *,
    verdict: GraphResult = "pass",
    **fields: Any,
) -> Artifact:
    blobs: dict[str, bytes] = {}

    def record(name: str, tried: dict[str, int]) -> CaseRecord:
        x = tokens(EXAMPLE | tried)
        parts = [pack_arrays({"x": x}), pack_arrays({"y": np.asarray(oracle(x.astype(np.float64)), np.float64)})]
        digests = [sha256_bytes(part) for part in parts]
        blobs.update({f"{digest}.npz": part for digest, part in zip(digests, parts, strict=True)})
        return CaseRecord(
            name=name,
            reason="a test",
            seed=0,
            inputs_sha256=digests[0],
            expected_sha256=digests[1],
            yardsticks={"y": YARDSTICK},
            sizes=tried,
        )

    body = onnx.load_from_string(model)
    out = tuple(d.dim_param or d.dim_value for d in body.graph.output[0].type.tensor_type.shape.dim)
    known: dict[str, Any] = {
        "id": "planted",
        "source": Source(kind="factory", name="planted.py:make"),
        "exporter": "by hand",
        "exporter_version": "0",
        "opset": 18,
        "form": "decomposed",
        "precision": "fp32",
        "inputs": (TensorSpec(name="x", dtype="float32", shape=("batch", "seq", 4)),),
        "outputs": (TensorSpec(name="y", dtype="float32", shape=out),),
        "model_sha256": sha256_bytes(model),
        "cases": (record("2x6", {}),),
        "size_cases": tuple(record("axes " + ",".join(f"{n}={s}" for n, s in each.items()), each) for each in sizes),
        "ops": {f"ai.onnx::{node.op_type}": 1 for node in body.graph.node},
        "graph": GraphVerdict(verdict=verdict),
    }
    return write_artifact(folder / "planted", Manifest(**(known | fields)), model=model, blobs=blobs)


def proof(artifact: Artifact, tmp_path: Path, **fake: Any) -> AxesProof:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return prove_axes(artifact, Settings(fake=fake), scratch, LIMITS)


def split(constant: Sequence[int]) -> bytes:
    """x -> (…, 2, 2) -> x, by a shape that stands in the graph."""
    nodes = [
        helper.make_node("Reshape", ["x", "heads"], ["h"], name="split"),
        helper.make_node("Reshape", ["h", "merged"], ["y"], name="merge"),
    ]
    heads, merged = np.array([*constant, 2, 2]), np.array([*constant, 4])
    return graph(nodes, {"heads": heads, "merged": merged})


WEIGHTED = [
    helper.make_node("Mul", ["x", "table"], ["m"], name="weigh"),
    helper.make_node("ReduceSum", ["m", "axis"], ["y"], keepdims=0),
]


def weighted_sum(x: Array) -> Array:
    return np.asarray((x * TABLE[: x.shape[1]]).sum(axis=1))


def test_a_graph_that_takes_every_size_is_proved(tmp_path: Path) -> None:
    found = proof(plant(tmp_path, split((0, -1)), lambda x: x), tmp_path)
    assert found == AxesProof({"batch": "proved: 1, 3", "seq": "proved: 1, 11"})
    assert found.judged(GraphRecord(verdict="pass")) == GraphRecord(verdict="pass")


def test_a_reshape_with_the_examples_length_is_named_with_its_axis(tmp_path: Path) -> None:
    artifact = plant(tmp_path, split((0, 6)), lambda x: x)
    found = proof(artifact, tmp_path)
    assert found.axes["batch"] == "proved: 1, 3"
    assert found.axes["seq"].startswith("not proved: baked in, fails at 1 and 11 (")
    assert "Reshape 'split'" in found.axes["seq"]
    (notice,) = found.notices
    assert (notice.code, notice.where) == ("baked-dimension", "planted")
    assert notice.message.startswith("axis 'seq' is baked in: at 1 and 11 ")
    assert "requested shape:{2,6,2,2}" in notice.message
    judged = found.judged(GraphRecord(verdict="pass", detail="tables folded"))
    assert (judged.verdict, judged.detail) == ("fail", f"{found.baked}; tables folded")
    noted = found.noted(artifact)
    assert [each.message for each in noted.manifest.notices] == [notice.message]
    assert Artifact.load(artifact.folder) == noted
    assert found.noted(noted) == noted


def test_a_shape_that_absorbs_other_sizes_is_found_by_the_shape_of_the_output(tmp_path: Path) -> None:
    sizes = [{"batch": 1}, {"batch": 3}, {"seq": 12}]
    found = proof(plant(tmp_path, split((-1, 6)), lambda x: x, sizes), tmp_path)
    assert found.axes["batch"] == "proved: 1, 3"
    assert "output 'y' has shape [4, 6, 4], and [2, 12, 4] in the module" in found.axes["seq"]


def test_a_table_of_the_examples_length_is_silently_broadcast_at_length_1(tmp_path: Path) -> None:
    model = graph(WEIGHTED, {"table": TABLE[:6], "axis": np.array([1])}, ("batch", 4))
    found = proof(plant(tmp_path, model, weighted_sum, [{"batch": 3}, {"seq": 1}]), tmp_path)
    assert found.axes["batch"] == "proved: 3"
    assert found.axes["seq"].startswith("not proved: baked in, fails at 1 (output 'y' is off by rel_l2 8")
    assert found.baked.startswith("axis 'seq' is baked in: at 1 output 'y' is off by rel_l2")


def test_a_count_of_the_example_is_wrong_at_other_lengths(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["s"], keepdims=1),
        helper.make_node("Div", ["s", "count"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    model = graph(nodes, {"axis": np.array([1]), "count": np.array(6.0, np.float32)})
    found = proof(plant(tmp_path, model, lambda x: x - x.mean(axis=1, keepdims=True)), tmp_path)
    assert found.axes["batch"] == "proved: 1, 3"
    assert "fails at 11 (output 'y' is off by" in found.axes["seq"], "at 1 the oracle is zero, and tells nothing"


def test_axes_that_fail_together_alone_are_blamed_together(tmp_path: Path) -> None:
    artifact = plant(tmp_path, split((2, 6)), lambda x: x, [{"batch": 3, "seq": 11}])
    assert {name: said[:37] for name, said in proof(artifact, tmp_path).axes.items()} == {
        "batch": "not proved: baked in, fails at 3 (onn",
        "seq": "not proved: baked in, fails at 11 (on",
    }


def test_mha_from_the_torchscript_exporter_has_its_length_baked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is imported by the test alone
        def __init__(self) -> None:
            super().__init__()
            self.mha = torch.nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.mha(x, x, x, need_weights=False)[0]

    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)  # has no ONNX form
    torch.manual_seed(0)
    module, file = Block().eval(), io.BytesIO()
    wide = Block().eval().double()
    wide.load_state_dict(module.state_dict())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter is deprecated, and warns of the constants it makes
        torch.onnx.export(
            module,
            (torch.from_numpy(tokens(EXAMPLE)),),
            file,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={name: {0: "batch", 1: "seq"} for name in "xy"},
            opset_version=18,
            dynamo=False,
        )

    def oracle(x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(wide(torch.from_numpy(x)))

    found = proof(plant(tmp_path, file.getvalue(), oracle), tmp_path)
    assert "baked in, fails at 1" in found.axes["seq"]
    assert found.notices
    assert {notice.code for notice in found.notices} == {"baked-dimension"}


@pytest.mark.parametrize(
    ("fake", "said", "times"),
    [
        ({"relative_error": 1e-3}, "output 'y' is off by rel_l2 0.001", 5),
        ({"raises": "cannot do this"}, "cannot do this", 1),  # at its first call alone
        ({"ending": "segfault"}, "SIGSEGV", 5),
        ({"drop_output": "y"}, "output 'y' is missing", 5),
    ],
)
def test_a_backend_that_fails_alone_is_not_taken_for_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: dict[str, Any], said: str, times: int
) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("fake", "onnx-reference"))
    found = proof(plant(tmp_path, split((0, -1)), lambda x: x), tmp_path, **fake)
    assert (found.axes, found.baked) == ({"batch": "proved: 1, 3", "seq": "proved: 1, 11"}, "")
    assert {notice.code for notice in found.notices} == {"size-fails-on-backend"}
    assert len(found.notices) == times
    assert found.notices[0].message.startswith("fake alone fails at batch=1 (")
    assert said in found.notices[0].message


def test_what_a_backend_does_not_take_is_asked_of_the_next_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("fake", "onnx-reference"))
    found = proof(plant(tmp_path, split((0, -1)), lambda x: x), tmp_path, unsupported="Reshape of float32")
    assert found == AxesProof({"batch": "proved: 1, 3", "seq": "proved: 1, 11"})


def test_what_no_backend_takes_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("fake",))
    found = proof(plant(tmp_path, split((0, -1)), lambda x: x), tmp_path, unsupported="Reshape of float32")
    assert found.axes["batch"] == "not proved: batch=1: Reshape of float32; batch=3: Reshape of float32"
    assert (found.baked, found.notices) == ("", [])


def test_an_error_between_pass_and_fail_proves_nothing_and_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("fake",))
    found = proof(plant(tmp_path, split((0, -1)), lambda x: x, [{"seq": 1}]), tmp_path, relative_error=2e-6)
    assert found.axes["seq"].startswith("not proved: seq=1: output 'y': error is ")
    assert (found.baked, found.notices) == ("", [])


HALF_WEIGHTED = [
    helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
    helper.make_node("Cast", ["h"], ["n"], to=TensorProto.FLOAT),
    helper.make_node("Mul", ["n", "table"], ["m"], name="weigh"),
    helper.make_node("ReduceSum", ["m", "axis"], ["y"], keepdims=0),
]
"""The same sum, of numbers that the graph itself rounds to half precision."""


def test_a_module_that_narrows_is_as_far_off_at_every_size_and_is_not_baked(tmp_path: Path) -> None:
    nodes = [*HALF_WEIGHTED[:2], helper.make_node("Neg", ["n"], ["y"])]
    found = proof(plant(tmp_path, graph(nodes, {}), lambda x: -x), tmp_path)
    assert (found.baked, found.notices) == ("", [])
    for said in found.axes.values():
        assert "output 'y' is off by rel_l2 0.0002" in said
        assert "within 10 times what it is off by at the usual sizes" in said


def test_a_module_that_narrows_hides_no_baked_table(tmp_path: Path) -> None:
    model = graph(HALF_WEIGHTED, {"table": TABLE[:6], "axis": np.array([1])}, ("batch", 4))
    found = proof(plant(tmp_path, model, weighted_sum, [{"batch": 3}, {"seq": 1}]), tmp_path)
    assert found.axes["seq"].startswith("not proved: baked in, fails at 1 (output 'y' is off by rel_l2 8")
    assert found.axes["batch"].startswith("not proved: batch=3: output 'y' is off by")
    assert found.baked.startswith("axis 'seq' is baked in: at 1 ")


SCALED = [helper.make_node("Mul", ["x", "scale"], ["big"]), helper.make_node("Mul", ["big", "scale"], ["y"])]


def test_an_overflow_at_every_size_is_no_fault_of_an_axis(tmp_path: Path) -> None:
    model = graph(SCALED, {"scale": np.array(1e30, np.float32)})
    found = proof(plant(tmp_path, model, lambda x: x * 1e60), tmp_path)
    assert (found.baked, found.notices) == ("", [])
    assert "Inf here" in found.axes["batch"]
    assert "at the usual sizes" in found.axes["batch"]


def test_nan_at_another_size_alone_is_a_fault_of_the_axis(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], start=1, end=2),
        helper.make_node("Cast", ["length"], ["n"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["limit", "n"], ["room"]),
        helper.make_node("Sqrt", ["room"], ["root"]),  # NaN beyond 6
        helper.make_node("Mul", ["root", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    model = graph(nodes, {"limit": np.array([6.0], np.float32), "zero": np.array([0.0], np.float32)})
    found = proof(plant(tmp_path, model, lambda x: x), tmp_path)
    assert found.axes["batch"] == "proved: 1, 3"
    assert "baked in, fails at 11 (output 'y' is wrong (88 NaN here, 0 in the oracle" in found.axes["seq"]


def test_what_fails_at_the_usual_sizes_as_well_blames_no_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("ort-cpu",))
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("Identity", ["r"], ["y"])]
    artifact = plant(tmp_path, graph(nodes, {"shape": np.array([-1, 5, 4])}), lambda x: x, [{"batch": 1}, {"seq": 11}])
    found = proof(artifact, tmp_path)
    assert found.baked == ""
    assert "and so it is at the usual sizes" in found.axes["batch"]


def test_numbers_of_a_backend_that_is_known_to_be_off_blame_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axes, "PROVERS", ("onnx-reference",))
    model = graph(WEIGHTED, {"table": TABLE[:6], "axis": np.array([1])}, ("batch", 4))
    artifact = plant(tmp_path, model, weighted_sum, [{"seq": 1}], ops={"ai.onnx::Attention": 1})
    found = proof(artifact, tmp_path)
    assert "onnx-reference is known to be off for ai.onnx::Attention" in found.axes["seq"]
    assert (found.baked, found.notices) == ("", [])


@pytest.mark.parametrize(
    ("verdict", "said"), [("fail", "wrong at the usual sizes already"), ("not-asked", "was not held against")]
)
def test_numbers_say_nothing_of_sizes_where_the_graph_is_not_right_anyway(
    tmp_path: Path, verdict: GraphResult, said: str
) -> None:
    model = graph(WEIGHTED, {"table": TABLE[:6], "axis": np.array([1])}, ("batch", 4))
    found = proof(plant(tmp_path, model, weighted_sum, [{"seq": 1}], verdict=verdict), tmp_path)
    assert said in found.axes["seq"]
    assert found.baked == ""


def test_what_the_module_refuses_is_told_beside_what_is_proved(tmp_path: Path) -> None:
    left = {"seq": "seq=1: ValueError: two tokens at least"}
    artifact = plant(tmp_path, split((0, -1)), lambda x: x, [{"seq": 11}], sizes_left_out=left)
    assert proof(artifact, tmp_path).axes == {
        "batch": "not proved: the artifact carries no other sizes; export it again",
        "seq": "proved: 11; not tried: seq=1: ValueError: two tokens at least",
    }


def test_artifacts_without_other_sizes_say_so(tmp_path: Path) -> None:
    older = plant(tmp_path / "older", split((0, -1)), lambda x: x, [])
    assert set(proof(older, tmp_path).axes.values()) == {
        "not proved: the artifact carries no other sizes; export it again"
    }
    bare = plant(tmp_path / "bare", split((0, -1)), lambda x: x, [], source=Source(kind="onnx", name="bare.onnx"))
    (tmp_path / "bare scratch").mkdir()
    found = prove_axes(bare, Settings(), tmp_path / "bare scratch", LIMITS)
    assert set(found.axes.values()) == {"not proved: a bare .onnx has no module to be held against"}
    fixed = (TensorSpec(name="x", dtype="float32", shape=(2, 6, 4)),)
    static = plant(tmp_path / "static", split((0, -1)), lambda x: x, [], inputs=fixed)
    assert prove_axes(static, Settings(), tmp_path / "bare scratch", LIMITS) == AxesProof()


@pytest.mark.parametrize("verb", [export, compare])
def test_a_run_does_not_call_a_baked_graph_right(make_plan: Callable[..., Plan], tmp_path: Path, verb: Any) -> None:
    plant(tmp_path / "in", split((0, 6)), lambda x: x)
    finished = verb(make_plan(source=str(tmp_path / "in"), backends=("ort-cpu",)))
    (record,) = finished.record.artifacts
    assert (record.graph.verdict, finished.record.verdict) == ("fail", "fail")
    assert exit_status(finished.record, by_name=(), strict=False, interrupted=False) == 1
    assert record.axes["batch"] == "proved: 1, 3"
    assert "baked-dimension" in {notice.code for notice in record.notices}
    text = summary(finished.record)
    assert "- axes of decomposed 18: batch proved: 1, 3 · seq not proved: baked in, fails at 1 and 11" in text
    again = compare(make_plan(source=str(finished.folder), backends=("ort-cpu",)))
    assert again.record.artifacts == [record]
    assert again.record.verdict == "fail"


def test_blocks_are_proved_at_other_sizes(make_plan: Callable[..., Plan]) -> None:
    pytest.importorskip("torch")
    small: dict[str, Any] = {"d_model": 16, "num_heads": 2}
    wanted = {
        "mha": {"batch": "proved: 1, 3", "seq": "proved: 1, 11"},
        "mha-decode": {"batch": "proved: 1, 5", "seq": "proved: 1, 7", "past": "proved: 0, 1, 17"},
    }
    for source, said in wanted.items():
        finished = export(make_plan(source=source, options=small, batches=(1,), lengths=(5,)))
        assert [record.axes for record in finished.record.artifacts] == [said, said]
        assert {record.graph.verdict for record in finished.record.artifacts} == {"pass"}
