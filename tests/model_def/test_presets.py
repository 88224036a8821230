import pytest

from crosshead.model_def.attention import MultiHeadAttention
from crosshead.model_def.presets import PRESETS


# Parameters of one attention block as published: projections 4 d² with biases 4 d, or 2 d² + 2 d·Hkv·head_dim without.
@pytest.mark.parametrize(
    ("name", "heads", "head_dim", "parameters"),
    [
        ("transformer-base", (8, 8), 64, 4 * 512 * 512 + 4 * 512),
        ("bert-base", (12, 12), 64, 4 * 768 * 768 + 4 * 768),
        ("vit-b", (12, 12), 64, 4 * 768 * 768 + 4 * 768),
        ("llama-gqa", (32, 8), 64, 2 * 2048 * 2048 + 2 * 2048 * 512),
        ("whisper-cross", (12, 12), 64, 4 * 768 * 768 + 4 * 768),
    ],
)
def test_sizes_are_the_published_ones(name: str, heads: tuple[int, int], head_dim: int, parameters: int) -> None:
    config = PRESETS[name]
    assert (config.num_heads, config.kv_heads, config.head_size) == (*heads, head_dim)
    assert sum(each.numel() for each in MultiHeadAttention(config).parameters()) == parameters


def test_llama_is_causal_and_rotary() -> None:
    llama = PRESETS["llama-gqa"]
    assert llama.is_causal
    assert llama.rotary is not None
    assert llama.rotary.base == 500_000.0
