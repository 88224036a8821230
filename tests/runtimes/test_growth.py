from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosshead.export.artifact import Artifact, TensorSpec, pack_arrays
from crosshead.runtimes import InputError, Session, Settings, get_runtime, growth

QUERY = TensorSpec(name="query", dtype="float32", shape=("batch", "seq", 4))
MASK = TensorSpec(name="mask", dtype="bool", shape=("seq", "keys"))


@given(full=st.integers(2, 600), calls=st.integers(3, 200), seed=st.integers(0, 9))
def test_lengths_come_again_and_reach_the_full_one(full: int, calls: int, seed: int) -> None:
    shortest, order = growth.draw_lengths(full, calls, seed)
    counts = Counter(order)
    assert len(order) == calls
    assert full in counts
    assert min(counts.values()) >= 2
    assert 1 <= shortest < min(counts)
    assert max(counts) == full
    assert growth.draw_lengths(full, calls, seed) == (shortest, order)


def test_inputs_are_cut_along_their_lengths_alone() -> None:
    inputs = {"query": np.arange(2 * 8 * 4, dtype=np.float32).reshape(2, 8, 4), "mask": np.ones((8, 16), np.bool_)}
    axes = growth.length_axes([QUERY, MASK], inputs)
    assert axes == {"keys": 16, "seq": 8}
    short = growth.cut(inputs, [QUERY, MASK], axes, 4)
    assert (short["query"].shape, short["mask"].shape) == ((2, 2, 4), (2, 4))
    assert np.array_equal(short["query"], inputs["query"][:, :2])
    assert short["query"].flags.c_contiguous
    assert {array.size for array in growth.cut(inputs, [QUERY, MASK], axes, 1).values()} == {2 * 1 * 4, 1}


def test_where_only_first_axes_have_names_these_are_the_lengths() -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=("tokens", 4))
    assert growth.length_axes([spec], {"x": np.ones((7, 4), np.float32)}) == {"tokens": 7}


@pytest.mark.parametrize("shape", [(2, 4), ("batch", 4)])
def test_no_length_to_vary_is_refused(shape: tuple[int | str, ...]) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=shape)
    with pytest.raises(InputError, match="no input has a dynamic axis longer than 1"):
        growth.length_axes([spec], {"x": np.ones((1, 4), np.float32)})


def test_too_few_calls_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3 calls; got length 8, 2 calls"):
        growth.draw_lengths(8, 2, 0)


def test_what_is_read_is_what_was_there_before_and_after(linear: Artifact) -> None:
    readings = iter([(100, 7), (150, 9)])
    session: Session = get_runtime("ort-cpu").open(linear, Settings())
    with session:
        grown = growth.grow(session, linear.inputs("2x7"), calls=15, seed=0, memory=lambda: next(readings))
    assert (grown.rss_start_bytes, grown.rss_end_bytes, grown.idle_bytes) == (100, 150, 9)
    assert (grown.calls, grown.shapes, grown.axes) == (15, 5, ["seq"])
    assert min(grown.new_shape_call_s, grown.repeat_call_s) > 0


def test_memory_that_is_kept_shows(linear: Artifact) -> None:
    before, _ = growth.read_memory()
    kept = np.ones(40_000_000, np.uint8)
    assert growth.read_memory()[0] - before > 0.9 * kept.nbytes


def test_a_worker_that_leaks_grows_and_ort_does_not(linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    inputs.write_bytes(pack_arrays({"x": np.ones((1, 32, 4), np.float32)}))
    leaking = start_worker("fake", linear, Settings(fake={"zeros": True, "leak_bytes": 1 << 20})).grow(inputs, 60, 0)
    assert leaking.rss_end_bytes - leaking.rss_start_bytes > 55 << 20
    healthy = start_worker("ort-cpu", linear).grow(inputs, 60, 0)
    assert healthy.rss_end_bytes - healthy.rss_start_bytes < 20 << 20
    assert healthy.shapes == 20
