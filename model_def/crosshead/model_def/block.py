"""A built-in block: a layer with the inputs it takes, so that it can be built, fed, exported and counted by name.

Importing this needs no torch; `build` and `example` import it.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from crosshead.model_def.config import (
    AttentionConfig,
    EncoderConfig,
    FeedForwardConfig,
    RotaryConfig,
)
from crosshead.model_def.errors import ConfigError
from crosshead.model_def.samples import sample

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = NDArray[Any]
Layer = Literal["attention", "encoder", "feed-forward"]
Dynamic = Mapping[str, Mapping[int, str]]
Example = tuple["nn.Module", "dict[str, Tensor]", dict[str, dict[int, str]], dict[str, str]]

_AXES: Final[Mapping[str, Mapping[int, str]]] = {
    "query": {0: "batch", 1: "seq"},
    "x": {0: "batch", 1: "seq"},
    "key": {0: "batch", 1: "kv_seq"},
    "attn_mask": {0: "batch", 2: "seq", 3: "seq"},
    "key_padding_mask": {0: "batch", 1: "seq"},
    "past_key": {0: "batch", 2: "past"},
    "past_value": {0: "batch", 2: "past"},
}

# What an export traces: no two axes of one size, none of size 1, so that nothing is bound by accident.
_EXAMPLE_BATCH, _EXAMPLE_SEQ, _EXAMPLE_KV_SEQ, _EXAMPLE_PAST, _EXAMPLE_NEW = 2, 7, 11, 13, 3


def _defaults(record: type[AttentionConfig] | type[FeedForwardConfig]) -> dict[str, object]:
    return {each.name: each.default for each in fields(record) if each.default is not MISSING}


def attention_fields(config: AttentionConfig) -> dict[str, object]:
    """The fields of a configuration, flat: rotary as rotary_base and rotary_dim, None for no rotary positions."""
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    rotary = values.pop("rotary")
    values["rotary_base"] = None if rotary is None else rotary.base
    values["rotary_dim"] = None if rotary is None else rotary.dim
    return values


def _pairs(length: int, keys: int, past: int, config: AttentionConfig) -> int:
    """Return how many keys the queries see, all together: the query at place i stands at position past + i."""
    places = np.arange(past, past + length)
    first, end = np.zeros_like(places), np.full_like(places, keys)
    if config.is_causal:
        end = np.minimum(end, places + 1)
    if config.window is not None:
        first, end = np.maximum(first, places - config.window + 1), np.minimum(end, places + config.window)
    return int(np.maximum(end - first, 0).sum())


def _attention_config(values: Mapping[str, Any]) -> AttentionConfig:
    names = {each.name for each in fields(AttentionConfig)}
    base, dim = values.get("rotary_base"), values.get("rotary_dim")
    if base is None and dim is not None:
        raise ConfigError(f"rotary_dim: expected with rotary_base, got rotary_dim={dim!r} alone")
    rotary = None if base is None else RotaryConfig(base=base, dim=dim)
    return AttentionConfig(rotary=rotary, **{name: value for name, value in values.items() if name in names})


def _feed_forward_config(values: Mapping[str, Any]) -> FeedForwardConfig:
    names = {each.name for each in fields(FeedForwardConfig)}
    return FeedForwardConfig(**{name: value for name, value in values.items() if name in names})


@dataclass(frozen=True)
class Block:
    """A named layer, the inputs that it takes and the fields that can be set on it.

    Attributes:
        name: what it is called on the command line.
        summary: one line.
        layer: what is built.
        takes: input names, in forward's order, the first being the tokens.
        defaults: fields that differ from the layer's own defaults.
    """

    name: str
    summary: str
    layer: Layer = "attention"
    takes: tuple[str, ...] = ("query",)
    defaults: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def factory(self) -> str:
        """The block's factory, as any source is named."""
        return f"crosshead.model_def.blocks:{self.name.replace('-', '_')}"

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        """Named dynamic axes of each input."""
        return {name: dict(_AXES[name]) for name in self.takes}

    @property
    def roles(self) -> dict[str, str]:
        """What each input is to attention."""
        return {name: "query" if name == "x" else name for name in self.takes}

    def fields(self) -> dict[str, object]:
        """Names that can be set, with their defaults.

        Beside those of the configuration: `implementation`; and, shaping the inputs alone, `sample` (the kind of
        numbers, by its name in `SAMPLES`), `kv_seq` (cross-attention: length of the key source, None for the
        query's), `new_tokens` (with a past: how many of the tokens are new) and `mask` (with attn_mask: "boolean" or
        "additive").
        """
        values: dict[str, object] = {"sample": "normal"}
        if self.layer != "feed-forward":
            values |= attention_fields(AttentionConfig()) | {"implementation": "sdpa"}
        if self.layer != "attention":
            values |= _defaults(FeedForwardConfig)
        if self.layer == "encoder":
            del values["kv_dim"]  # an encoder layer attends to itself
            values["norm_first"] = False
        if "key" in self.takes:
            values["kv_seq"] = None
        if "past_key" in self.takes:
            values["new_tokens"] = 1
        if "attn_mask" in self.takes:
            values["mask"] = "boolean"
        return values | dict(self.defaults)

    def build(self, /, **options: object) -> "nn.Module":
        """Build the layer in evaluation mode, its weights drawn from torch's global generator.

        The gains and shifts of norms are drawn around 1 and 0, since a lost gain of exactly 1 would not show.

        Raises:
            ConfigError: an unknown field, or a value out of its range.
        """
        from torch import nn

        from crosshead.model_def.attention import MultiHeadAttention
        from crosshead.model_def.encoder import EncoderLayer
        from crosshead.model_def.feedforward import FeedForward

        values: dict[str, Any] = self._resolve(options)
        module: nn.Module
        if self.layer == "feed-forward":
            module = FeedForward(_feed_forward_config(values))
        elif self.layer == "attention":
            module = MultiHeadAttention(_attention_config(values), values["implementation"])
        else:
            config = EncoderConfig(
                attention=_attention_config(values),
                feed_forward=_feed_forward_config(values),
                norm_first=values["norm_first"],
            )
            module = EncoderLayer(config, values["implementation"])
        for part in module.modules():
            if isinstance(part, (nn.LayerNorm, nn.RMSNorm)):
                nn.init.normal_(part.weight, mean=1.0, std=0.1)
                if isinstance(part, nn.LayerNorm):
                    nn.init.normal_(part.bias, std=0.1)
        return module.eval()

    def inputs(self, batch: int, seq: int, seed: int, **options: object) -> dict[str, Array]:
        """Draw inputs: tokens, float32, and the masks and past that the block takes.

        Args:
            batch: batch size.
            seq: number of tokens; with a past, of past and new ones together.
            seed: of the generator; each input has a stream of its own.
            options: fields, as for `build`.

        Returns:
            Arrays by input name, in forward's order.

        Raises:
            ConfigError: an unknown field, a value out of its range, or no room for a past.
        """
        values = self._resolve(options)
        query_length, past_length = seq, 0
        if "past_key" in self.takes:
            query_length = _count("new_tokens", values["new_tokens"])
            past_length = seq - query_length
            if past_length < 0:
                raise ConfigError(f"seq: expected at least new_tokens={query_length}, got {seq}")
        kv_length = seq
        if values.get("kv_seq") is not None:
            kv_length = _count("kv_seq", values["kv_seq"])
        return self._draw(_count("batch", batch), _count("seq", query_length), kv_length, past_length, seed, values)

    def example(self, /, **options: object) -> Example:
        """The block as a factory's result: module, inputs, dynamic axes and roles.

        Inputs follow torch's seed (`torch.initial_seed()`) without drawing from its generator. Batch 2; lengths are
        small primes that differ from each other.

        Raises:
            ConfigError: an unknown field, or a value out of its range.
        """
        import torch

        module = self.build(**options)
        query_length = _EXAMPLE_NEW if "past_key" in self.takes else _EXAMPLE_SEQ
        arrays = self._draw(
            _EXAMPLE_BATCH, query_length, _EXAMPLE_KV_SEQ, _EXAMPLE_PAST, torch.initial_seed(), self._resolve(options)
        )
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return module, tensors, self.dynamic, self.roles

    def flops(self, shapes: Mapping[str, Sequence[int]], **options: object) -> float:
        """Floating-point operations of one call by formula, a multiply and an add counted as two.

            projections   2 · B · (Lq · D · H·d + 2 · S · Dkv · Hkv·d + Lq · H·d · D)
            core          4 · B · H · d · (pairs of a query and a key that it sees), Lq · Lk of them without a mask
            feed-forward  4 · B · L · D · Dff

        Args:
            shapes: of each input, by name.
            options: fields, as for `build`.

        Raises:
            ConfigError: an unknown field, or a value out of its range.
        """
        values = self._resolve(options)
        batch, length = shapes[self.takes[0]][:2]
        total = 0.0
        if self.layer != "attention":
            feed_forward = _feed_forward_config(values)
            total += 4.0 * batch * length * feed_forward.d_model * feed_forward.d_ff
        if self.layer != "feed-forward":
            config = _attention_config(values)
            new = shapes["key"][1] if "key" in self.takes else length
            keys = new + (shapes["past_key"][2] if "past_key" in self.takes else 0)
            inner, kv_inner = config.num_heads * config.head_size, config.kv_heads * config.head_size
            total += 2.0 * batch * (2 * length * config.d_model * inner + 2 * new * config.kv_width * kv_inner)
            total += 4.0 * batch * inner * _pairs(length, keys, keys - new, config)
        return total

    def _resolve(self, options: Mapping[str, object]) -> dict[str, object]:
        values = self.fields()
        for name in options:
            if name not in values:
                close = difflib.get_close_matches(name, values, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(sorted(values))}"
                raise ConfigError(f"{self.name} has no field {name!r}{hint}")
        return values | dict(options)

    def _draw(
        self, batch: int, length: int, kv_length: int, past_length: int, seed: int, values: Mapping[str, Any]
    ) -> dict[str, Array]:
        if self.layer == "feed-forward":
            shapes: dict[str, tuple[int, ...]] = {"x": (batch, length, _feed_forward_config(values).d_model)}
        else:
            config = _attention_config(values)
            past = (batch, config.kv_heads, past_length, config.head_size)
            shapes = {
                "x": (batch, length, config.d_model),
                "query": (batch, length, config.d_model),
                "key": (batch, kv_length, config.kv_width),
                "past_key": past,
                "past_value": past,
            }
        arrays: dict[str, Array] = {}
        for stream, name in enumerate(self.takes):
            if name == "attn_mask":
                arrays[name] = _draw_mask(values["mask"], batch, length, (seed, stream))
            elif name == "key_padding_mask":
                arrays[name] = _draw_padding(batch, length, (seed, stream))
            else:
                arrays[name] = sample(values["sample"], shapes[name], (seed, stream))
        return arrays


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}: expected a whole number of at least 1, got {value!r}")
    return value


def _draw_mask(kind: object, batch: int, length: int, seed: Sequence[int]) -> Array:
    """(B, 1, L, L): three keys in four kept and always the query's own, or a normal bias on every score."""
    shape = (batch, 1, length, length)
    if kind == "additive":
        return sample("normal", shape, seed)
    if kind == "boolean":
        return (np.random.default_rng(seed).random(shape) < 0.75) | np.eye(length, dtype=bool)
    raise ConfigError(f"mask: expected one of boolean, additive, got {kind!r}")


def _draw_padding(batch: int, length: int, seed: Sequence[int]) -> Array:
    """(B, L), True at padding: from the right, up to half of each row, some in the first row where L is above 1."""
    kept = np.random.default_rng(seed).integers((length + 1) // 2, length + 1, size=batch)
    kept[0] = min(kept[0], max(length - 1, 1))
    return np.arange(length) >= kept[:, None]
