"""The encoder layer: self-attention and a feed-forward layer, each inside a residual branch with a LayerNorm."""

from torch import Tensor, nn

from crosshead.model_def.attention import Implementation, MultiHeadAttention
from crosshead.model_def.config import EncoderConfig
from crosshead.model_def.feedforward import FeedForward


class EncoderLayer(nn.Module):
    """One layer of a transformer encoder.

        post-norm:  h = LN1(x + attention(x))         output = LN2(h + feed_forward(h))
        pre-norm:   h = x + attention(LN1(x))         output = h + feed_forward(LN2(h))

    Post-norm: Vaswani et al. 2017 (arXiv:1706.03762), section 3.1. Pre-norm: Xiong et al. 2020, "On Layer
    Normalization in the Transformer Architecture" (arXiv:2002.04745). LayerNorm: Ba et al. 2016 (arXiv:1607.06450).
    No dropout. A fully masked row still passes through its residual.

    Attributes:
        config: what is computed.
    """

    def __init__(self, config: EncoderConfig, implementation: Implementation = "sdpa") -> None:
        super().__init__()
        self.config = config
        self.attention = MultiHeadAttention(config.attention, implementation)
        self.feed_forward = FeedForward(config.feed_forward)
        self.attention_norm = nn.LayerNorm(config.attention.d_model, eps=config.norm_eps)
        self.feed_forward_norm = nn.LayerNorm(config.attention.d_model, eps=config.norm_eps)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """Apply the layer.

        Args:
            x: (B, L, d_model), floating point.
            attn_mask: as for `MultiHeadAttention`, with Lq = Lk = L.
            key_padding_mask: (B, L) boolean, True at padding.

        Returns:
            (B, L, d_model).

        Raises:
            InputError: an input of the wrong shape or dtype.
        """
        if self.config.norm_first:
            hidden = x + self._attend(self.attention_norm(x), attn_mask, key_padding_mask)
            mixed: Tensor = self.feed_forward(self.feed_forward_norm(hidden))
            return hidden + mixed
        hidden = self.attention_norm(x + self._attend(x, attn_mask, key_padding_mask))
        output: Tensor = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return output

    def _attend(self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> Tensor:
        attended: Tensor = self.attention(x, attn_mask=attn_mask, key_padding_mask=key_padding_mask)
        return attended
