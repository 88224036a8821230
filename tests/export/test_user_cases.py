"""Cases that a person brings: what is read, what it is called, and one line for whatever does not fit."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save

from crosshead.export import Case, onnx_cases
from crosshead.export.artifact import SourceError, pack_arrays
from crosshead.export.user_cases import MOST_GENERATED, bind_outputs, read_given, with_given_cases

X = np.arange(8, dtype=np.float32).reshape(2, 4)
NAMES = ("x", "mask")


def data_set(folder: Path, inputs: dict[str, NDArray[np.generic]], outputs: dict[str, NDArray[np.generic]]) -> Path:
    """Write a folder as onnx's own test runner reads it; a name that begins with an underscore is not told."""
    folder.mkdir(parents=True)
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for number, (name, array) in enumerate(arrays.items()):
            tensor = numpy_helper.from_array(array, "" if name.startswith("_") else name)
            (folder / f"{kind}_{number}.pb").write_bytes(tensor.SerializeToString())
    return folder


def refusal(source: object, names: tuple[str, ...] = NAMES) -> str:
    with pytest.raises(SourceError) as caught:
        read_given([str(source)], names, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_npz_is_one_case(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_bytes(pack_arrays({"x": X.astype(ml_dtypes.bfloat16)}))
    (given,) = read_given([tmp_path / "mine.npz"], NAMES, 0)
    assert (given.name, given.inputs["x"].dtype.name, given.outputs) == ("mine", "bfloat16", ())


def test_a_data_set_binds_by_name_and_its_parent_holds_many(tmp_path: Path) -> None:
    data_set(tmp_path / "test_data_set_10", {"mask": X > 2, "x": X}, {"y": X})
    data_set(tmp_path / "test_data_set_2", {"_": X, "__": X > 1}, {"_": X, "__": X + 1})
    (tmp_path / "notes").mkdir()
    second, tenth = read_given([tmp_path], NAMES, 0)
    assert [second.name, tenth.name] == ["test_data_set_2", "test_data_set_10"]
    assert second.inputs["x"].tolist() == X.tolist(), "without names, by their places"
    assert tenth.inputs["mask"].dtype == np.bool_
    assert [name for name, _ in tenth.outputs] == ["y"]
    assert bind_outputs(second.outputs, ["a", "b"], "")["b"].tolist() == (X + 1).tolist()
    assert list(bind_outputs(tenth.outputs, ["z", "y"], "")) == ["y"]
    (alone,) = read_given([tmp_path / "test_data_set_10"], NAMES, 0)
    assert alone.name == "test_data_set_10"


def test_more_outputs_than_the_graph_has_are_refused() -> None:
    with pytest.raises(SourceError, match="2 outputs are given; the graph has: y"):
        bind_outputs((("", X), ("", X)), ["y"], "one")


def test_a_function_is_called_with_the_seed(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(
        "import numpy as np\n"
        "import torch\n"
        "def edges(seed):\n"
        "    print('drawing')\n"
        "    yield 'a/b', {'x': np.full((1, 4), seed, np.float32)}\n"
        "    yield {'x': torch.ones(1, 4, dtype=torch.bfloat16)}\n"
        "def one(seed):\n"
        "    return {'x': np.ones((1, 4), np.float32)}\n"
    )
    first, second = read_given([f"{tmp_path}/cases.py:edges"], NAMES, 7)
    assert (first.name, first.inputs["x"][0, 0]) == ("a-b", 7)
    assert (second.name, second.inputs["x"].dtype.name) == ("edges-1", "bfloat16")
    (only,) = read_given([f"{tmp_path}/cases.py:one"], NAMES, 0)
    assert only.name == "one-0"


def test_names_are_made_unique(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.npz").write_bytes(pack_arrays({"x": X}))
    sources = [tmp_path / "a" / "same.npz", tmp_path / "b" / "same.npz"]
    assert [given.name for given in read_given(sources, NAMES, 0)] == ["same", "same-2"]
    usual = [Case("same", "", 0, {"x": X})]
    assert [case.name for case in with_given_cases(usual, sources, NAMES, 0)] == ["same", "same-2", "same-2-2"]


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "gone")
    assert "cannot read gone.npz" in refusal(tmp_path / "gone.npz")
    (tmp_path / "m.npz").write_bytes(pack_arrays({"z": X}))
    assert "m.npz holds an array 'z'; the graph's inputs are: x, mask" in refusal(tmp_path / "m.npz")
    (tmp_path / "empty").mkdir()
    assert "empty holds no input_0.pb" in refusal(tmp_path / "empty")
    folder = data_set(tmp_path / "test_data_set_0", {"x": X, "mask": X}, {})
    assert "holds 2 inputs; the graph has 1: x" in refusal(folder, ("x",))
    (folder / "input_0.pb").write_bytes(b"no tensor at all")
    assert "cannot read test_data_set_0/input_0.pb" in refusal(folder)
    (folder / "input_0.pb").write_bytes(b"")
    assert "it holds no tensor" in refusal(folder)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no\\nluck')", "raised ValueError: no luck"),
        ("yield 3", "yielded int; expected a dict"),
        ("yield 3, {}", "yielded tuple; expected a dict"),
        ("yield {'y': np.ones(2)}", "holds an array 'y'"),
        ("yield {'x': np.array(['text'])}", "expected numbers or booleans"),
        ("return 3", "it returned int"),
        ("return []", "yielded no case"),
        (f"yield from ({{'x': np.ones(1)}} for _ in range({MOST_GENERATED + 1}))", "more than 64 cases"),
        ("\n    while True: yield {}", "more than 64 cases"),
    ],
)
def test_a_function_that_yields_no_cases_is_refused(tmp_path: Path, body: str, said: str) -> None:
    (tmp_path / "bad.py").write_text(f"import numpy as np\ndef make(seed):\n    {body}\n")
    assert said in refusal(f"{tmp_path}/bad.py:make")


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("def make(seed):\n    return {}\n")
    assert "some.py has no 'other'; it has: make" in refusal(f"{tmp_path}/some.py:other")
    assert "give some.py:function" in refusal(tmp_path / "some.py")
    assert "gone.py is not there" in refusal(f"{tmp_path}/gone.py:make")


def test_a_bare_onnx_draws_what_is_left_out(tmp_path: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "w", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", tensors[:2], tensors[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, tmp_path / "m.onnx")
    (tmp_path / "a.npz").write_bytes(pack_arrays({"x": X}))
    data_set(tmp_path / "test_data_set_0", {"x": X[:1], "w": X[:1]}, {"y": X[:1]})
    sources = [tmp_path / "a.npz", tmp_path / "test_data_set_0"]
    first, second = onnx_cases(tmp_path / "m.onnx", inputs=sources)
    assert (first.name, first.reason) == ("a", "x as given; w drawn")
    assert first.inputs["w"].shape == (2, 4)
    assert (second.name, second.given[0][0]) == ("test_data_set_0", "y")
    with pytest.raises(SourceError, match="one shape each"):
        onnx_cases(tmp_path / "m.onnx", shapes={"x": [(1, 4), (2, 4)]}, inputs=sources)
