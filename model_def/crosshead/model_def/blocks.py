"""The built-in blocks by name, and a factory for each: `crosshead.model_def.blocks:mha` is a source like any other.

Importing this needs no torch; calling a factory does.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from crosshead.model_def.block import Block, Example, attention_fields
from crosshead.model_def.presets import PRESETS

_ENCODER: Final = "encoder"


def _preset(name: str) -> dict[str, object]:
    return attention_fields(PRESETS[name])


BLOCKS: Final[Mapping[str, Block]] = MappingProxyType(
    {
        block.name: block
        for block in (
            Block("mha", "self-attention of the original transformer: width 512, 8 heads"),
            Block("mha-masked", "self-attention with an attn_mask per sequence", takes=("query", "attn_mask")),
            Block("mha-causal", "self-attention that sees no later token", defaults={"is_causal": True}),
            Block("mha-padded", "self-attention with a key_padding_mask", takes=("query", "key_padding_mask")),
            Block(
                "mha-decode",
                "a decoding step: new tokens attend to themselves and a KV cache",
                takes=("query", "past_key", "past_value"),
                defaults={"is_causal": True},
            ),
            Block("cross-attention", "queries of one sequence, keys and values of another", takes=("query", "key")),
            Block("gqa", "grouped-query attention: 8 heads share 2 key/value heads", defaults={"num_kv_heads": 2}),
            Block("mqa", "multi-query attention: 8 heads share 1 key/value head", defaults={"num_kv_heads": 1}),
            Block("encoder-layer", "post-norm encoder layer of the original transformer", _ENCODER, ("x",)),
            Block(
                "encoder-layer-prenorm",
                "pre-norm encoder layer",
                _ENCODER,
                ("x",),
                {"norm_first": True},
            ),
            Block(
                "encoder-layer-padded",
                "post-norm encoder layer with a key_padding_mask",
                _ENCODER,
                ("x", "key_padding_mask"),
            ),
            Block("feed-forward", "position-wise feed-forward layer: width 512, hidden 2048", "feed-forward", ("x",)),
            Block(
                "bert-base",
                "attention of BERT-base: width 768, 12 heads, key_padding_mask",
                takes=("query", "key_padding_mask"),
                defaults=_preset("bert-base"),
            ),
            Block("vit-b", "attention of ViT-B: width 768, 12 heads", defaults=_preset("vit-b")),
            Block(
                "llama-gqa",
                "attention as in Llama 3.2 1B: width 2048, 32 heads over 8, causal, rotary",
                defaults=_preset("llama-gqa"),
            ),
            Block(
                "whisper-cross",
                "cross-attention as in Whisper small: width 768, 12 heads, 1500 keys",
                takes=("query", "key"),
                defaults=_preset("whisper-cross") | {"kv_seq": 1500},
            ),
        )
    }
)
"""Block name to block; `mha` is the default."""


def _factory(name: str) -> Callable[..., Example]:
    def factory(**options: object) -> Example:
        return BLOCKS[name].example(**options)

    factory.__name__ = factory.__qualname__ = name.replace("-", "_")
    factory.__doc__ = f"{BLOCKS[name].summary}; see `crosshead.model_def.block.Block.example`."
    return factory


mha = _factory("mha")
mha_masked = _factory("mha-masked")
mha_causal = _factory("mha-causal")
mha_padded = _factory("mha-padded")
mha_decode = _factory("mha-decode")
cross_attention = _factory("cross-attention")
gqa = _factory("gqa")
mqa = _factory("mqa")
encoder_layer = _factory("encoder-layer")
encoder_layer_prenorm = _factory("encoder-layer-prenorm")
encoder_layer_padded = _factory("encoder-layer-padded")
feed_forward = _factory("feed-forward")
bert_base = _factory("bert-base")
vit_b = _factory("vit-b")
llama_gqa = _factory("llama-gqa")
whisper_cross = _factory("whisper-cross")
