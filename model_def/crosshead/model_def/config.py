"""What a block is made of, as frozen records that are checked when they are made. Free of torch."""

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeGuard, get_args

from crosshead.model_def.errors import ConfigError

QkNorm = Literal["rms", "layer"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]

NORM_EPS: Final = 1e-5
"""Added to the variance inside every LayerNorm, as `torch.nn.LayerNorm` does by default."""

QK_NORM_EPS: Final = 1e-6
"""Added to the variance inside a query/key norm; stated, since torch's own RMSNorm default changes with the dtype."""


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _require_count(name: str, value: object) -> None:
    if not _is_whole(value) or value < 1:
        raise ConfigError(f"{name}: expected a whole number of at least 1, got {value!r}")


def _require_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: expected true or false, got {value!r}")


def _require_positive(name: str, value: object) -> None:
    if not _is_real(value) or value <= 0:
        raise ConfigError(f"{name}: expected a finite number above 0, got {value!r}")


def _require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class RotaryConfig:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Attributes:
        base: theta; pair i turns by position · base^(-2i/dim). 10000 in the paper, 500000 in Llama 3.
        dim: how many of the first features of each head are turned; even. None turns all of them.
    """

    base: float = 10_000.0
    dim: int | None = None

    def __post_init__(self) -> None:
        _require_positive("rotary base", self.base)
        if self.dim is not None and (not _is_whole(self.dim) or self.dim < 2 or self.dim % 2):
            raise ConfigError(f"rotary dim: expected an even whole number of at least 2, got {self.dim!r}")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """What one attention block computes. There is no dropout anywhere.

    Attributes:
        d_model: width of the query source and of the output.
        num_heads: query heads; must divide d_model unless head_dim is given.
        num_kv_heads: key/value heads; must divide num_heads. None is num_heads (multi-head), 1 is multi-query
            (Shazeer 2019, arXiv:1911.02150), between the two is grouped-query (Ainslie et al. 2023,
            arXiv:2305.13245).
        head_dim: width of one head. None is d_model // num_heads.
        bias: whether the query, key, value and output projections add a bias.
        is_causal: query i sees only keys at its own position or before it.
        scale: the factor on query · key. None is 1/sqrt(head_dim). 0 and negative factors are allowed, as in
            `torch.nn.functional.scaled_dot_product_attention`: 0 weighs all keys alike.
        softcap: c; scores become c · tanh(scores / c) before any mask is applied (Gemma 2, arXiv:2408.00118).
        window: sliding window; query at position p sees keys at positions j with |p - j| < window, so with
            is_causal the last `window` tokens, its own included (Mistral, arXiv:2310.06825), and without it
            window - 1 tokens on either side (Longformer, arXiv:2004.05150).
        rotary: rotary positions on queries and keys. None for none.
        qk_norm: norm over head_dim of every query and key head, with learned gains, before rotary positions
            (Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442). "rms" or "layer". None for
            none.
        kv_dim: width of the key and value source. None is d_model.

    Raises:
        ConfigError: a field out of its range, or fields that do not fit together.
    """

    d_model: int = 512
    num_heads: int = 8
    num_kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool = True
    is_causal: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None
    rotary: RotaryConfig | None = None
    qk_norm: QkNorm | None = None
    kv_dim: int | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "num_heads"):
            _require_count(name, getattr(self, name))
        for name in ("num_kv_heads", "head_dim", "window", "kv_dim"):
            if getattr(self, name) is not None:
                _require_count(name, getattr(self, name))
        for name in ("bias", "is_causal"):
            _require_flag(name, getattr(self, name))
        if self.scale is not None and not _is_real(self.scale):
            raise ConfigError(f"scale: expected a finite number, got {self.scale!r}")
        if self.softcap is not None:
            _require_positive("softcap", self.softcap)
        if self.qk_norm is not None:
            _require_choice("qk_norm", self.qk_norm, get_args(QkNorm))
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ConfigError(
                f"num_heads must divide d_model when head_dim is not given: "
                f"got d_model={self.d_model}, num_heads={self.num_heads}"
            )
        if self.num_heads % self.kv_heads:
            raise ConfigError(
                f"num_kv_heads must divide num_heads: got num_heads={self.num_heads}, num_kv_heads={self.kv_heads}"
            )
        self._check_rotary()

    def _check_rotary(self) -> None:
        if self.rotary is None:
            return
        if not isinstance(self.rotary, RotaryConfig):
            raise ConfigError(f"rotary: expected a RotaryConfig or None, got {self.rotary!r}")
        dim = self.rotary.dim
        if dim is None and self.head_size % 2:
            raise ConfigError(f"rotary turns pairs, so head_dim must be even: got head_dim={self.head_size}")
        if dim is not None and dim > self.head_size:
            raise ConfigError(f"rotary dim must be at most head_dim={self.head_size}: got {dim}")

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, resolved."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """Width of one head, resolved."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the key and value source, resolved."""
        return self.d_model if self.kv_dim is None else self.kv_dim

    @property
    def group(self) -> int:
        """Query heads that share one key/value head: query head h reads key/value head h // group."""
        return self.num_heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """The factor on query · key, resolved."""
        return 1.0 / math.sqrt(self.head_size) if self.scale is None else float(self.scale)


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """What one position-wise feed-forward layer computes.

    Attributes:
        d_model: width of input and output.
        d_ff: width of the hidden layer.
        activation: "relu", "gelu" (exact, by erf), "gelu_tanh" (its tanh approximation) or "silu".
        bias: whether both linear layers add a bias.

    Raises:
        ConfigError: a field out of its range.
    """

    d_model: int = 512
    d_ff: int = 2048
    activation: Activation = "relu"
    bias: bool = True

    def __post_init__(self) -> None:
        _require_count("d_model", self.d_model)
        _require_count("d_ff", self.d_ff)
        _require_choice("activation", self.activation, get_args(Activation))
        _require_flag("bias", self.bias)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """What one encoder layer computes: self-attention and a feed-forward layer, each in a residual branch.

    Attributes:
        attention: the self-attention; its kv_dim must be its d_model.
        feed_forward: the feed-forward layer; of the same d_model.
        norm_first: the LayerNorm stands before each branch (pre-norm) rather than after its sum (post-norm).
        norm_eps: added to the variance inside each LayerNorm.

    Raises:
        ConfigError: a field out of its range, or widths that do not meet.
    """

    attention: AttentionConfig = AttentionConfig()
    feed_forward: FeedForwardConfig = FeedForwardConfig()
    norm_first: bool = False
    norm_eps: float = NORM_EPS

    def __post_init__(self) -> None:
        _require_flag("norm_first", self.norm_first)
        _require_positive("norm_eps", self.norm_eps)
        if self.attention.kv_width != self.attention.d_model:
            raise ConfigError(
                f"an encoder layer attends to itself, so kv_dim must be d_model={self.attention.d_model}: "
                f"got kv_dim={self.attention.kv_width}"
            )
        if self.feed_forward.d_model != self.attention.d_model:
            raise ConfigError(
                f"attention and feed_forward must have one d_model: "
                f"got {self.attention.d_model} and {self.feed_forward.d_model}"
            )
