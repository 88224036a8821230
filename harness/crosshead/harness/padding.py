"""Padded positions: which rows of an output are padding, so that they are told apart and decide nothing.

At a padded position an implementation may give anything: torch's own two paths through an encoder layer differ there by
whole numbers (pytorch#163640). Verdicts are had from the valid positions (docs/method.md, "Padded positions").
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, Readable, TensorSpec, open_arrays
from crosshead.export.error import errors_of
from crosshead.export.pair import Pair, in_memory
from crosshead.harness.metrics import is_floating
from crosshead.results import CellRecord, Notice, PaddedRecord

Positions = NDArray[np.bool_]
"""Shape (batch, seq); true is padding."""

FAR_TIMES = 100.0
"""Padded positions off by more than so many yardsticks are told; at valid ones that would fail by any rule."""

NOT_TOKENS = ("attn_mask", "key_padding_mask", "position_ids", "past_key", "past_value")
"""Roles of inputs that are no sequence of tokens, whatever their shape."""


def padded_positions(artifact: Artifact, case: str, outputs: Mapping[str, Readable]) -> dict[str, Positions]:
    """Return, by output name, which positions are padding; only for outputs that have some, and some that are not.

    An output has positions when its axes begin as those of the input whose role is `key_padding_mask`, (batch, seq),
    by name where they are dynamic. The mask speaks of the keys; that these are the output's own positions is known only
    where the graph takes one sequence. With several of that length, nothing is told apart.

    Args:
        artifact: manifest with roles.
        case: name of a case.
        outputs: the oracle's outputs, by name; only their shapes are looked at.
    """
    manifest = artifact.manifest
    masks = [spec for spec in manifest.inputs if manifest.roles.get(spec.name) == "key_padding_mask"]
    masks = [spec for spec in masks if len(spec.shape) == 2 and _sequences(manifest.inputs, manifest.roles, spec) == 1]
    if not masks:
        return {}
    inputs = open_arrays(artifact.inputs_path(case))
    found: dict[str, Positions] = {}
    for spec in manifest.outputs:
        for mask in masks:
            if spec.name not in outputs or len(spec.shape) > 3 or spec.shape[:2] != mask.shape:
                continue  # rank 4 is (batch, heads, …)
            padded = _padding(in_memory(inputs[mask.name]))
            if outputs[spec.name].shape[:2] == padded.shape and padded.any() and not padded.all():
                found[spec.name] = padded
    return found


def _sequences(inputs: tuple[TensorSpec, ...], roles: Mapping[str, str], mask: TensorSpec) -> int:
    """Count the inputs that hold tokens at the mask's positions; ids that go in side by side are one sequence."""
    over = [spec for spec in inputs if spec.shape[:2] == mask.shape and roles.get(spec.name) not in NOT_TOKENS]
    floating = [spec for spec in over if "float" in spec.dtype]
    return len(floating) or min(len(over), 1)


def _padding(mask: NDArray[np.generic]) -> Positions:
    """Return where a mask says padding: true; or, where it is added to the scores, -inf."""
    if mask.dtype.kind == "b":
        return mask.astype(np.bool_)
    return np.isneginf(mask.astype(np.float64)) if is_floating(mask) else np.zeros(mask.shape, np.bool_)


def unpadded(padded: Positions | None) -> Positions | None:
    """Return the positions that are no padding; None, which stands for all of them, where nothing is padded."""
    return None if padded is None else ~padded


def valid(array: NDArray[np.generic], padded: Positions | None) -> NDArray[np.generic]:
    """Return the valid positions of an output: (batch, seq, …) -> (positions, …); all of it where nothing is padded."""
    return array if padded is None else array[~padded]  # (B, S, …) -> (N, …)


def whole_index(index: list[int], padded: Positions) -> list[int]:
    """Return the index in an output of an element that is told by its index among the valid positions."""
    return [*map(int, np.argwhere(~padded)[index[0]]), *index[1:]]


def padded_record(got: Readable, want: Readable, padded: Positions) -> PaddedRecord:
    """Measure the padded positions of a floating output; `max_abs` leaves out what is not finite on either side."""
    pair = Pair(got, want, padded)
    largest, nonfinite = 0.0, 0
    for block in pair.blocks():
        there, wanted = block.got.astype(np.float64), block.want.astype(np.float64)
        finite = np.isfinite(there)
        nonfinite += int((~finite).sum())
        finite &= np.isfinite(wanted)
        largest = max(largest, float(np.abs(there[finite] - wanted[finite]).max(initial=0.0)))
    return PaddedRecord(positions=int(padded.sum()), max_abs=largest, rel_l2=errors_of(pair).whole, nonfinite=nonfinite)


def padded_notices(record: CellRecord) -> list[Notice]:
    """Say where a cell's padded positions would not have passed."""
    notices = []
    for output in record.outputs:
        there = output.padded
        if there is None or output.yardstick is None or there.rel_l2 <= FAR_TIMES * output.yardstick:
            continue
        message = (
            f"{there.positions} padded positions of output {output.name!r} differ from the oracle by up to "
            f"{there.max_abs:.3g}; runtimes may give anything there, and the verdict is that of the valid positions: "
            "leave padded positions out of whatever reads this output"
        )
        notices.append(Notice(code="padded-positions", message=message, where=f"{record.label} {record.case}"))
    return notices
