"""Where backends are known not to give what the standard expects: one table, as data.

A deviation holds for every graph whose features meet one of its conditions. `KNOWN` is the whole of it: an entry is
added with the version in which it was seen and from where it is known, and a test shows it. An entry that no longer
shows is told by `crosshead conform`; it then gets its `fixed_in`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from crosshead.results import FeatureRecord

Value = bool | int | str
Condition = Mapping[str, Value | tuple[Value, ...]]
"""By a field of `FeatureRecord`, the value it must have, or those it may have; a list must hold the value."""


@dataclass(frozen=True)
class KnownDeviation:
    """One thing that a backend does not do as the standard says.

    Attributes:
        id: short, unique, stable.
        backend: its name.
        since: version of its library in which it was first seen; an older one may show it too, and then it counts as
            new.
        fixed_in: first version without it; empty while there is none.
        when: the conditions, one of which must hold.
        output: place of the output that is off among the operator's; None for all of them.
        sentence: what comes out, and what the standard expects.
        source: from where it is known: what was run, and a public report where there is one.
    """

    id: str
    backend: str
    since: str
    when: tuple[Condition, ...]
    sentence: str
    source: str
    output: int | None = None
    fixed_in: str = ""

    def covers(self, version: str, features: FeatureRecord) -> bool:
        """Whether it is to be expected of this version of the library on a graph with these features."""
        if _release(version) < _release(self.since) or (self.fixed_in and _release(version) >= _release(self.fixed_in)):
            return False
        return not features.expanded and any(_holds(condition, features) for condition in self.when)


KNOWN: Final = (
    KnownDeviation(
        id="ort-masked-scores-finite",
        backend="ort-cpu",
        since="1.32.0",
        when=(
            {"op": "ai.onnx::Attention", "opset": (23, 24), "qk_output": 2, "causal": True},
            {"op": "ai.onnx::Attention", "opset": (23, 24), "qk_output": 2, "mask": "bool"},
        ),
        output=3,
        sentence="with qk_matmul_output_mode 2, masked scores come out as the lowest finite number; the standard "
        "gives -inf. The other outputs are right",
        source="the standard's cases test_attention_4d_with_past_and_present_qk_matmul_bias_{3d,4d}_mask_causal; and "
        "its function body on graphs with every mask, with and without past, at opsets 23 and 24 (25 is right)",
    ),
    KnownDeviation(
        id="reference-mask-padded",
        backend="onnx-reference",
        since="1.23.2",
        when=({"op": "ai.onnx::Attention", "opset": 23, "mask_broadcast": "keys"},),
        sentence="a mask of shape (query, 1) or (…, query, 1) is padded along the keys instead of being broadcast: "
        "all keys but the first are masked out",
        source="the function body of Attention-23 on the same inputs; onnxruntime#12149",
    ),
    KnownDeviation(
        id="reference-scores-capped",
        backend="onnx-reference",
        since="1.23.2",
        when=({"op": "ai.onnx::Attention", "qk_output": 0, "softcap": True},),
        output=3,
        sentence="with qk_matmul_output_mode 0 and softcap, scores come out capped; the standard gives them as "
        "multiplied. The other outputs are right",
        source="the function bodies of Attention-23 to 25 on the same inputs; onnxruntime#26813",
    ),
)


def known_deviations(backend: str, version: str, features: FeatureRecord) -> list[KnownDeviation]:
    """Return what is known of a backend on a graph with these features.

    Args:
        backend: its name.
        version: of the library that computes, as its probe tells it.
        features: of one attention node; see `read_features`.
    """
    return [each for each in KNOWN if each.backend == backend and each.covers(version, features)]


def _holds(condition: Condition, features: FeatureRecord) -> bool:
    for field, wanted in condition.items():
        found = getattr(features, field)
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        if isinstance(found, list):
            if not set(found) & set(allowed):
                return False
        elif found not in allowed:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparing: `1.32.0.dev1` -> (1, 32, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
