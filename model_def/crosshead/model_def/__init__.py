"""What is computed: attention blocks and their layers, a float64 NumPy reference, sample inputs.

Importing this package pulls in neither torch nor NumPy; each name is imported where it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.model_def.attention import MultiHeadAttention
    from crosshead.model_def.block import Block
    from crosshead.model_def.blocks import BLOCKS
    from crosshead.model_def.config import AttentionConfig, EncoderConfig, FeedForwardConfig, RotaryConfig
    from crosshead.model_def.convert import from_torch, to_torch
    from crosshead.model_def.encoder import EncoderLayer
    from crosshead.model_def.errors import ConfigError, ConversionError, InputError, ModelDefError
    from crosshead.model_def.feedforward import FeedForward
    from crosshead.model_def.presets import PRESETS
    from crosshead.model_def.samples import SAMPLES, sample

_HOMES = {
    "BLOCKS": "blocks",
    "PRESETS": "presets",
    "SAMPLES": "samples",
    "AttentionConfig": "config",
    "Block": "block",
    "ConfigError": "errors",
    "ConversionError": "errors",
    "EncoderConfig": "config",
    "EncoderLayer": "encoder",
    "FeedForward": "feedforward",
    "FeedForwardConfig": "config",
    "InputError": "errors",
    "ModelDefError": "errors",
    "MultiHeadAttention": "attention",
    "RotaryConfig": "config",
    "from_torch": "convert",
    "sample": "samples",
    "to_torch": "convert",
}

__all__ = [
    "BLOCKS",
    "PRESETS",
    "SAMPLES",
    "AttentionConfig",
    "Block",
    "ConfigError",
    "ConversionError",
    "EncoderConfig",
    "EncoderLayer",
    "FeedForward",
    "FeedForwardConfig",
    "InputError",
    "ModelDefError",
    "MultiHeadAttention",
    "RotaryConfig",
    "from_torch",
    "sample",
    "to_torch",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
