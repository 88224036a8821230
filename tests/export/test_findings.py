"""Findings that need no graph: what a case's masks give away."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crosshead.export import cases_for, load_source
from crosshead.export._findings import masks_like_booleans

TROUBLES = Path(__file__).parent / "sources" / "troubles.py"
KEEP = np.tril(np.ones((6, 6), np.float32))


def found(mask: np.ndarray, role: str | None = "attn_mask") -> list[str]:
    loaded = load_source(f"{TROUBLES}:fully_masked_row")
    roles = {"attn_mask": role} if role is not None else {}
    loaded = replace(loaded, inputs=loaded.inputs | {"attn_mask": mask}, roles=roles)
    notices = masks_like_booleans(loaded, cases_for(loaded))
    assert {notice.code for notice in notices} <= {"mask-looks-boolean"}
    return [notice.message for notice in notices]


@pytest.mark.parametrize("mask", [KEEP, KEEP.astype(np.float16), np.ones((6, 6), np.float32)])
def test_a_floating_mask_of_0_and_1_is_told(mask: np.ndarray) -> None:
    (message,) = found(mask)
    assert f"mask 'attn_mask' is {mask.dtype.name} and holds only 0 and 1 (example)" in message
    assert "give booleans, or 0 and -inf" in message


@pytest.mark.parametrize("mask", [KEEP.astype(bool), KEEP - 1, np.zeros_like(KEEP), np.where(KEEP, 0, -np.inf)])
def test_masks_that_say_what_they_mean_are_not(mask: np.ndarray) -> None:
    assert not found(mask)


def test_an_input_of_another_role_is_not() -> None:
    assert not found(KEEP, None)
    assert not found(KEEP, "key")
