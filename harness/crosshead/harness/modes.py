"""Which math mode explains an error, in one clause with figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, FormError

if TYPE_CHECKING:
    from crosshead.export.float64.emulation import ModeShare

EXPLAINED_SHARE: Final = 0.25
"""A math mode explains an error when so much of its energy is gone once the mode's own error is taken away."""

CORRELATION: Final = 0.5
"""And when the two errors point the same way to this cosine."""

TIE_SHARE: Final = 0.05
"""Modes that explain as much as the best one to within this share cannot be told apart."""

NAMES: Final[Mapping[str, str]] = {
    "tf32": "factors rounded to 10 bits of mantissa (TF32)",
    "tf32-truncated": "factors cut to 10 bits of mantissa (TF32 by truncation)",
    "bf16": "factors rounded to bfloat16",
    "fp16": "factors rounded to float16 (10 bits of mantissa)",
    "fp16-accumulation": "sums in float16",
    "fp16-accumulation-pairwise": "sums in float16, by pairs",
}


@dataclass(frozen=True)
class MathModes:
    """One error, held against the error that each math mode makes. The graph is evaluated at the first look.

    Attributes:
        artifact: its graph is what was run.
        case: the inputs.
        got: the backend's outputs, by name.
        want: the graph in float64 on the same inputs and weights; None to evaluate it.
    """

    artifact: Artifact
    case: str
    got: Mapping[str, NDArray[Any]]
    want: Mapping[str, NDArray[Any]] | None = None

    @cached_property
    def shares(self) -> "list[ModeShare]":
        """How much each mode explains, the best first; empty where the graph has no float64."""
        import onnx

        from crosshead.export.float64 import evaluate_float64
        from crosshead.export.float64.emulation import explain_by_mode

        model, inputs = onnx.load(self.artifact.model_path), self.artifact.inputs(self.case)
        try:
            want = evaluate_float64(model, inputs) if self.want is None else self.want
            return explain_by_mode(self.got, want, model, inputs)
        except FormError:
            return []

    def sentence(self, error: str) -> str | None:
        """Say which mode explains the error; None where none does.

        Args:
            error: what it is called, e.g. `the error of 72 yardsticks`.
        """
        if not self.shares:
            return None
        best = self.shares[0]
        if best.explained < EXPLAINED_SHARE or best.correlation < CORRELATION:
            return None
        close = [share.mode for share in self.shares if best.explained - share.explained <= TIE_SHARE]
        told = " or ".join(NAMES.get(mode, mode) for mode in close)
        return (
            f"products formed with {told} explain {best.explained:.0%} of {error} (correlation {best.correlation:.2f})"
        )
