import random
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from crosshead.export import SourceError, load_source
from crosshead.export.artifact import sha256_file
from crosshead.model_def.blocks import BLOCKS

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def codes(name: str) -> list[str]:
    return [notice.code for notice in load_source(f"{TROUBLES}:{name}").notices]


def refusal(text: str, **options: object) -> str:
    with pytest.raises(SourceError, match=r"^[^\n]+$") as caught:
        load_source(text, options=options)  # type: ignore[arg-type]  # some are wrong on purpose
    return str(caught.value)


def test_a_block_by_name() -> None:
    loaded = load_source("gqa", options={"d_model": 32, "num_heads": 4}, seed=5)
    assert loaded.block is BLOCKS["gqa"]
    assert loaded.source.kind == "block"
    assert loaded.source.name == "gqa"
    assert loaded.source.factory == "crosshead.model_def.blocks:gqa"
    assert loaded.source.options == {"d_model": 32, "num_heads": 4}
    assert loaded.source.seed == 5
    assert loaded.source.file_sha256 is None
    assert loaded.folder is None
    assert not loaded.module.training
    assert loaded.inputs.keys() == {"query"}
    assert loaded.dynamic == {"query": {0: "batch", 1: "seq"}}
    assert loaded.roles == {"query": "query"}
    assert loaded.notices == ()


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_loads(name: str) -> None:
    small = {"llama-gqa": {"d_model": 64, "num_heads": 8, "num_kv_heads": 2, "head_dim": 8}}
    loaded = load_source(name, options=small.get(name, {}))
    assert tuple(loaded.inputs) == BLOCKS[name].takes


def test_a_factory_in_a_file() -> None:
    loaded = load_source(f"{TROUBLES}:tied", options={"width": 4}, seed=2)
    assert loaded.source.kind == "factory"
    assert loaded.source.name == loaded.source.factory == "troubles.py:tied"
    assert loaded.source.file_sha256 == sha256_file(TROUBLES)
    assert loaded.folder == TROUBLES.parent
    assert loaded.block is None
    assert loaded.inputs["x"].shape == (2, 5, 4)
    assert loaded.roles == {"x": "query"}


def test_a_factory_in_a_package_here_and_in_an_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "models.py").write_text(TROUBLES.read_text())
    monkeypatch.chdir(tmp_path)
    here = load_source("pack.models:token_ids")
    assert here.folder == tmp_path
    assert here.source.name == "pack.models:token_ids"
    assert here.source.file_sha256 is None
    installed = load_source("crosshead.model_def.blocks:mha", options={"d_model": 16, "num_heads": 2})
    assert installed.folder is None
    assert installed.source.kind == "factory"


def test_a_seed_governs_all_generators_and_leaves_them_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002  # the old global is what is tested
    draws = [load_source(f"{TROUBLES}:draws_from_all_generators", seed=seed).inputs["input"] for seed in (1, 1, 2)]
    assert draws[0].tolist() == draws[1].tolist()
    assert not np.isclose(draws[0].astype(float), draws[2].astype(float)).any()
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]  # type: ignore[index]  # noqa: NPY002  # as above
    assert torch.equal(torch.get_rng_state(), before[2])
    with pytest.raises(SourceError, match="seed: expected a whole number from 0"):
        load_source("mha", seed=-1)


def test_inputs_are_in_the_order_of_forward_however_they_came() -> None:
    assert list(load_source(f"{TROUBLES}:out_of_order").inputs) == ["query", "key", "value"]
    assert list(load_source(f"{TROUBLES}:inputs_as_tuple").inputs) == ["query", "key", "value"]


def test_bfloat16_inputs_keep_their_dtype() -> None:
    assert load_source(f"{TROUBLES}:bfloat16_core").inputs["query"].dtype == ml_dtypes.bfloat16


def test_aliased_inputs_are_cloned_with_a_notice() -> None:
    loaded = load_source(f"{TROUBLES}:aliased")
    assert codes("aliased") == ["aliased-input", "aliased-input", "roles-guessed"]
    loaded.inputs["query"][...] = 0
    assert loaded.inputs["key"].any()


def test_a_module_left_in_training_mode_is_switched_or_kept() -> None:
    loaded = load_source(f"{TROUBLES}:left_in_training_mode")
    assert [notice.code for notice in loaded.notices] == ["training-mode"]
    assert "Dropout" in loaded.notices[0].message
    assert not any(part.training for part in loaded.module.modules())
    assert not loaded.source.training
    kept = load_source(f"{TROUBLES}:left_in_training_mode", keep_training_mode=True)
    assert kept.module.training
    assert kept.source.training
    assert [notice.code for notice in kept.notices] == ["training-mode"]


def test_a_module_that_has_no_mode_is_switched_in_silence() -> None:
    loaded = load_source(f"{TROUBLES}:unused_input")  # nn.Module starts in training mode
    assert not loaded.module.training
    assert loaded.notices == ()


def test_roles_are_guessed_from_conventional_names_and_said() -> None:
    loaded = load_source(f"{TROUBLES}:padding_as_broadcast_mask")
    assert loaded.roles == {"query": "query", "key": "key", "value": "value", "attn_mask": "attn_mask"}
    assert "query, key, value, attn_mask" in loaded.notices[0].message


def test_what_a_factory_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    load_source(f"{TROUBLES}:prints")
    assert capfd.readouterr() == ("", "loading…\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mhaa", "no block named 'mhaa'; did you mean mha"),
        ("nothing-like-it", "Blocks: mha, mha-masked"),
        ("model.onnx", "model.onnx is an ONNX file"),
        ("gone.py", "gone.py alone names no factory"),
        ("gone.py:make", "gone.py is not there"),
        ("gone.py:", "gone.py alone names no factory; give gone.py:factory"),
        (f"{TROUBLES}:", "it has: causal_unequal_lengths, equal_lengths_batch_one"),
        ("", "no block named ''"),
        (str(TROUBLES), "it has: causal_unequal_lengths, equal_lengths_batch_one"),
        (f"{TROUBLES}:missing", "troubles.py has no 'missing'; it has: Branches"),
        (f"{TROUBLES}:not_callable", "troubles.py:not_callable is a int"),
        (f"{TROUBLES}:ready_made", "is a module; name a function that returns it"),
        (f"{TROUBLES}:alone", "returned a module without inputs; return (module, inputs)"),
        (f"{TROUBLES}:raises", "troubles.py:raises raised KeyError: 'weights.bin'"),
        (f"{TROUBLES}:exits", "troubles.py:exits ended the program (exit 3)"),
        ("no.such.package:make", "no module named 'no.such.package'"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused_in_one_line(text: str, message: str) -> None:
    said = refusal(text)
    assert message in said
    assert not text.startswith("/") or str(TROUBLES.parent) not in said


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("mha", {"num_heads": 7}, "num_heads"),
        ("mha", {"self": 1}, "mha has no field 'self'; it has "),
        ("mha", {"num_head": 8}, "did you mean 'num_heads'?"),
        (f"{TROUBLES}:tied", {"widht": 4}, "it takes: width"),
        (f"{TROUBLES}:aliased", {"width": 4}, "it takes: no options"),
        ("torch.nn:Linear", {}, "missing a required argument: 'in_features' (--set field=value)"),
    ],
)
def test_options_that_do_not_fit(text: str, options: dict[str, object], message: str) -> None:
    assert message in refusal(text, **options)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "returned a int; expected an nn.Module"),
        ("return None", "returned None; expected an nn.Module"),
        ("return ()", "expected an nn.Module"),
        ("return net, x, {}, {}, 5", "returned 5 values"),
        ("return net, None", "a module without inputs"),
        ("return net, {}", "forward needs input as well; inputs returned: none"),
        ("return net, {'y': x}", "forward has no argument 'y'; it takes: input"),
        ("return net, (x, x)", "returned 2 inputs, but forward takes 1: input"),
        ("return net, 'x'", "inputs as a str"),
        ("return net, {'input': 3}", "input 'input' is a int; expected a tensor"),
        ("return net, {'input': [x]}", "input 'input' is a list; expected a tensor"),
        ("return net, {'input': x.to(torch.complex64)}", "is complex"),
        ("return net, {'input': x.to_sparse()}", "has no NumPy counterpart"),
        ("return net, {'input': x.numpy().astype(object)}", "has dtype object"),
        ("return net, {'input': x}, [0]", "dynamic axes as a list; expected {input: {axis: symbol}}"),
        ("return net, {'input': x}, {'y': {0: 'n'}}", "dynamic axes for 'y', which is no input"),
        ("return net, {'input': x}, {'input': [0]}", "dynamic axes of 'input' are a list"),
        ("return net, {'input': x}, {'input': {2: 'n'}}", "has no axis 2; its shape is (2, 3)"),
        ("return net, {'input': x}, {'input': {0: 'a b'}}", "is named 'a b'; expected a name such as 'seq'"),
        ("return net, {'input': x}, {'input': {0: 'n', 1: 'n'}}", "axis 'n' is 2 in 'input' and 3 in 'input'"),
        ("return net, {'input': x}, None, 'query'", "roles as a str"),
        ("return net, {'input': x}, None, {'y': 'query'}", "a role for 'y', which is no input"),
        ("return net, {'input': x}, None, {'input': 'queri'}", "did you mean 'query'?"),
        ("return net.to('meta'), {'input': x}", "on the meta device"),
    ],
)
def test_what_a_factory_returns_is_checked(tmp_path: Path, body: str, message: str) -> None:
    text = f"import torch\ndef make():\n    net, x = torch.nn.Linear(3, 3), torch.ones(2, 3)\n    {body}\n"
    (tmp_path / "made.py").write_text(text)
    assert message in refusal(f"{tmp_path}/made.py:make")


@pytest.mark.parametrize(
    "body",
    [
        "return net, x",
        "return net, (x,)",
        "return net, {'input': x.numpy()}, {'input': None}",
        "return net, {'input': x}, {'input': {-2: 'n'}}, None",
        "return net, {'input': torch.nn.Parameter(x)}, {'input': {0: 'n'}}",
    ],
)
def test_what_a_factory_may_return(tmp_path: Path, body: str) -> None:
    text = f"import torch\ndef make():\n    net, x = torch.nn.Linear(3, 3), torch.ones(2, 3)\n    {body}\n"
    (tmp_path / "made.py").write_text(text)
    loaded = load_source(f"{tmp_path}/made.py:make")
    assert loaded.inputs["input"].tolist() == [[1.0] * 3] * 2
    assert loaded.dynamic in ({}, {"input": {0: "n"}})


def test_importing_the_package_pulls_in_neither_torch_nor_onnx() -> None:
    heavy = "{'torch', 'onnx', 'onnxscript', 'onnx_ir', 'scipy', 'onnxruntime'}"
    code = f"import sys, crosshead.export, crosshead.export.case; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_public_names_are_sorted_and_all_there() -> None:
    import crosshead.export as package

    constants = [name for name in package.__all__ if name.isupper()]
    others = [name for name in package.__all__ if not name.isupper()]
    assert list(package.__all__) == sorted(constants) + sorted(others)
    assert set(package.__all__) == set(package._HOMES)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018  # the access is what is tested
