"""Attention configurations of known models, by name. Free of torch.

They have the widths, heads and options of the published models, not their weights.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from crosshead.model_def.config import AttentionConfig, RotaryConfig

PRESETS: Final[Mapping[str, AttentionConfig]] = MappingProxyType(
    {
        # Vaswani et al. 2017 (arXiv:1706.03762), table 3, base model.
        "transformer-base": AttentionConfig(d_model=512, num_heads=8),
        # Devlin et al. 2018 (arXiv:1810.04805), BERT-base.
        "bert-base": AttentionConfig(d_model=768, num_heads=12),
        # Dosovitskiy et al. 2020 (arXiv:2010.11929), ViT-B; an image of 224 x 224 in patches of 16 has 197 tokens.
        "vit-b": AttentionConfig(d_model=768, num_heads=12),
        # Llama 3.2 1B (Grattafiori et al. 2024, arXiv:2407.21783), without its scaling of rotary frequencies.
        "llama-gqa": AttentionConfig(
            d_model=2048, num_heads=32, num_kv_heads=8, bias=False, is_causal=True, rotary=RotaryConfig(base=500_000.0)
        ),
        # Radford et al. 2022 (arXiv:2212.04356), small, decoder to encoder: 1500 keys for 30 s of sound. Whisper's own
        # key projection has no bias, which no softmax can tell from one: it shifts all scores of a row alike.
        "whisper-cross": AttentionConfig(d_model=768, num_heads=12),
    }
)
"""Preset name to configuration."""
