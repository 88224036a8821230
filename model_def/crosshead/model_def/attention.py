"""Multi-head attention, put together from projections, norms, positions, a cache, masks and a core."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from crosshead.model_def.checks import check_attention_inputs
from crosshead.model_def.config import QK_NORM_EPS, AttentionConfig, QkNorm
from crosshead.model_def.cores import explicit_core, sdpa_core
from crosshead.model_def.errors import ConfigError
from crosshead.model_def.masks import causal_keep, combine_masks, padding_keep, window_keep
from crosshead.model_def.rotary import rotary_tables, turn

Implementation = Literal["sdpa", "explicit"]


def _head_norm(kind: QkNorm | None, head_dim: int) -> nn.Module:
    if kind == "rms":
        return nn.RMSNorm(head_dim, eps=QK_NORM_EPS)
    if kind == "layer":
        return nn.LayerNorm(head_dim, eps=QK_NORM_EPS)
    return nn.Identity()


class MultiHeadAttention(nn.Module):
    """Attention heads in parallel on the same tokens, concatenated and mixed by one more linear layer.

        head_h = softmax(q_h k_gᵀ / sqrt(head_dim) + mask) v_g        g = h // group
        q_h = query Wq_h + bq_h        k_g = key Wk_g + bk_g        v_g = value Wv_g + bv_g
        output = concat(head_0, …, head_{H-1}) Wo + bo

    Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.2. Every option of
    `AttentionConfig` names its own source. Head h owns rows h·head_dim to (h+1)·head_dim of each projection's weight.

    Differences from `torch.nn.MultiheadAttention`: batch first only; a boolean attn_mask is True where a query *may*
    attend, as in `scaled_dot_product_attention`; weights come per head, not averaged; a fully masked row attends to
    nothing, so the output there is the output projection's bias (torch gives NaN on some of its paths); no dropout.

    Attributes:
        config: what is computed.
        implementation: "sdpa" for torch's `scaled_dot_product_attention`, which exporters write as the standard
            Attention operator; "explicit" for each step written out. They are equal to rounding. A softcap, and
            weights on request, exist only written out, so they take that path under either name.

    Raises:
        ConfigError: an unknown implementation.
    """

    def __init__(self, config: AttentionConfig, implementation: Implementation = "sdpa") -> None:
        super().__init__()
        if implementation not in get_args(Implementation):
            choices = ", ".join(get_args(Implementation))
            raise ConfigError(f"implementation: expected one of {choices}, got {implementation!r}")
        self.config = config
        self.implementation = implementation
        inner, kv_inner = config.num_heads * config.head_size, config.kv_heads * config.head_size
        self.query_projection = nn.Linear(config.d_model, inner, bias=config.bias)
        self.key_projection = nn.Linear(config.kv_width, kv_inner, bias=config.bias)
        self.value_projection = nn.Linear(config.kv_width, kv_inner, bias=config.bias)
        self.output_projection = nn.Linear(inner, config.d_model, bias=config.bias)
        self.query_norm = _head_norm(config.qk_norm, config.head_size)
        self.key_norm = _head_norm(config.qk_norm, config.head_size)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        past_key: Tensor | None = None,
        past_value: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, ...]:
        """Attend.

        Without a past, query i and key i stand at position i, so causal masks of unequal lengths are upper-left
        aligned, as torch's are. With a past of P tokens, query i and new key i stand at position P + i, so that
        decoding in steps equals one full forward.

        Args:
            query: (B, Lq, d_model), floating point.
            key: (B, S, kv_dim). None for the query: self-attention.
            value: (B, S, kv_dim). None for the key.
            attn_mask: (Lq | 1, Lk) or (B | 1, H | 1, Lq | 1, Lk) with Lk = P + S. Boolean, True where a query may
                attend; or of the query's dtype, added to the scores.
            key_padding_mask: (B, Lk) boolean, True at padding.
            past_key: (B, Hkv, P, head_dim), a present_key of an earlier call; P may be 0.
            past_value: (B, Hkv, P, head_dim).
            need_weights: also return the weights.

        Returns:
            output (B, Lq, d_model); with need_weights then weights (B, H, Lq, Lk); with a past then present_key and
            present_value (B, Hkv, P + S, head_dim), keys after their norm and rotary positions.

        Raises:
            InputError: an input of the wrong shape or dtype, or only half of a past.
        """
        key = query if key is None else key
        value = key if value is None else value
        check_attention_inputs(self.config, query, key, value, attn_mask, key_padding_mask, past_key, past_value)

        q = self._split(self.query_projection(query), self.config.num_heads)
        k = self._split(self.key_projection(key), self.config.kv_heads)
        v = self._split(self.value_projection(value), self.config.kv_heads)
        q, k = self.query_norm(q), self.key_norm(k)

        past_length = 0 if past_key is None else past_key.shape[2]
        query_positions = torch.arange(q.shape[2], device=q.device) + past_length
        if self.config.rotary is not None:
            new_positions = torch.arange(k.shape[2], device=k.device) + past_length
            q = turn(q, *rotary_tables(self.config.rotary, query_positions, self.config.head_size, q.dtype))
            k = turn(k, *rotary_tables(self.config.rotary, new_positions, self.config.head_size, k.dtype))
        if past_key is not None and past_value is not None:
            k = torch.cat((past_key, k), dim=2)  # (B, Hkv, P, d) and (B, Hkv, S, d) -> (B, Hkv, Lk, d)
            v = torch.cat((past_value, v), dim=2)  # (B, Hkv, P, d) and (B, Hkv, S, d) -> (B, Hkv, Lk, d)

        # Causality alone, counted from the first token, is left to the core, which has a word for it.
        plain = attn_mask is None and key_padding_mask is None and past_key is None and self.config.window is None
        is_causal = self.config.is_causal and plain
        mask = None if plain else self._mask(query_positions, k.shape[2], attn_mask, key_padding_mask)

        scale, softcap = self.config.scale, self.config.softcap
        weights = None
        if self.implementation == "explicit" or softcap is not None or need_weights:
            mixed, weights = explicit_core(q, k, v, mask, is_causal=is_causal, scale=scale, softcap=softcap)
        else:
            mixed = sdpa_core(q, k, v, mask, is_causal=is_causal, scale=scale)
        joined = mixed.transpose(1, 2).flatten(2)  # (B, H, Lq, d) -> (B, Lq, H, d) -> (B, Lq, H·d)
        output: Tensor = self.output_projection(joined)  # (B, Lq, H·d) -> (B, Lq, d_model)

        results = [output]
        if need_weights and weights is not None:
            results.append(weights)
        if past_key is not None:
            results += [k, v]
        return output if len(results) == 1 else tuple(results)

    def _split(self, projected: Tensor, heads: int) -> Tensor:
        # (B, L, heads·d) -> (B, L, heads, d) -> (B, heads, L, d)
        batch, length, _ = projected.shape
        return projected.reshape(batch, length, heads, self.config.head_size).transpose(1, 2)

    def _mask(
        self, query_positions: Tensor, key_length: int, attn_mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        """Everything that limits or shifts attention, as one mask (B | 1, H | 1, Lq, Lk)."""
        keeps = []
        key_positions = torch.arange(key_length, device=query_positions.device)
        if self.config.is_causal:
            keeps.append(causal_keep(query_positions, key_positions))
        if self.config.window is not None:
            keeps.append(window_keep(query_positions, key_positions, self.config.window))
        if key_padding_mask is not None:
            keeps.append(padding_keep(key_padding_mask))
        bias = None
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                keeps.append(attn_mask)
            else:
                bias = attn_mask
        return combine_masks(keeps, bias, query_positions.shape[0])
