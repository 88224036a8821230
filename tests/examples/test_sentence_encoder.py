"""The trained example: our blocks, loaded with a released checkpoint, compute what that model computes."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

PATH = Path(__file__).parents[2] / "examples" / "sentence_encoder.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sentence_encoder", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def weights(example: ModuleType) -> dict[str, torch.Tensor]:
    return load_file(example._package() / "model.safetensors")


def test_sentences_have_real_padding(example: ModuleType) -> None:
    ids, padding = example.tokenize()
    assert ids.shape == padding.shape
    assert not padding[:, 0].any()
    assert padding.any()
    assert not padding.all(dim=1).any()


@pytest.mark.filterwarnings("ignore")  # what transformers warns of on import is not ours to mend
def test_six_of_our_layers_equal_the_released_model(
    example: ModuleType, weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(example._package(), attn_implementation="eager").eval()
    ids, padding = example.tokenize()
    with torch.no_grad():
        want = model(input_ids=ids, attention_mask=(~padding).long()).last_hidden_state
        got, _ = example.token_states(weights, 6)
    valid = ~padding
    error = (got[valid] - want[valid]).norm() / want[valid].norm()
    assert error < 2e-6


def test_trained_weights_are_not_random(example: ModuleType, weights: dict[str, torch.Tensor]) -> None:
    module, inputs, _, _ = example.attention(layer=3)
    ours = module.query_projection.weight
    assert torch.equal(ours, weights["encoder.layer.3.attention.self.query.weight"])
    assert inputs["query"].shape[-1] == 384


def test_a_layer_that_is_not_there_is_refused(example: ModuleType) -> None:
    with pytest.raises(ValueError, match="layer must be 0 to 5, got 6"):
        example.encoder_layer(6)
