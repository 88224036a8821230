"""The position-wise feed-forward layer."""

from torch import Tensor, nn

from crosshead.model_def.checks import check_features
from crosshead.model_def.config import Activation, FeedForwardConfig


def _activation(name: Activation) -> nn.Module:
    if name == "relu":
        return nn.ReLU()
    if name == "silu":
        return nn.SiLU()
    return nn.GELU(approximate="tanh" if name == "gelu_tanh" else "none")


class FeedForward(nn.Module):
    """Two linear layers with an activation between, the same at every position.

        output = act(x W1 + b1) W2 + b2

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.3; GELU: Hendrycks and Gimpel 2016 (arXiv:1606.08415); SiLU:
    Elfwing et al. 2017 (arXiv:1702.03118). No dropout.

    Attributes:
        config: what is computed.
    """

    def __init__(self, config: FeedForwardConfig) -> None:
        super().__init__()
        self.config = config
        self.expand = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.activation = _activation(config.activation)
        self.contract = nn.Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Args:
            x: (B, L, d_model), floating point.

        Returns:
            (B, L, d_model).

        Raises:
            InputError: another rank or width.
        """
        check_features("x", x, self.config.d_model)
        hidden = self.activation(self.expand(x))  # (B, L, d_model) -> (B, L, d_ff)
        output: Tensor = self.contract(hidden)  # (B, L, d_ff) -> (B, L, d_model)
        return output
