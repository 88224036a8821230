"""Outputs that are read in blocks: the figures are those of whole arrays, and only a few blocks are in memory."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from crosshead.export import error, pair
from crosshead.export.artifact import Readable, open_arrays, write_arrays
from crosshead.export.pair import Pair
from crosshead.harness import quantiles
from crosshead.harness.metrics import measure_error
from crosshead.harness.padding import padded_record
from crosshead.results import HistogramRecord, UlpRecord, WorstElement

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]

NUMBERS = st.floats(width=16, allow_subnormal=False) | st.sampled_from([0.0, 1.0, math.inf, -math.inf, math.nan])


def plainly(got: NDArray[Any], want: NDArray[Any]) -> dict[str, Any]:
    """Return what `measure_error` does, from whole arrays by NumPy's own functions (no formula is shared)."""
    info = ml_dtypes.finfo(got.dtype)  # type: ignore[no-untyped-call]  # NumPy's fields, and bfloat16 as well
    wide = got.astype(np.float64)
    found: dict[str, Any] = {"nan": int(np.isnan(wide).sum()), "expected_nan": int(np.isnan(want).sum())}
    found |= {"inf": int(np.isinf(wide).sum()), "expected_inf": int(np.isinf(want).sum())}
    if not want.size:
        return found | {"max_abs": 0.0, "max_rel": 0.0, "rel_l2": 0.0, "rel_l2_row": 0.0}
    same = (wide == want) | (np.isnan(wide) & np.isnan(want))
    finite = np.isfinite(wide) & np.isfinite(want)
    away = np.where(same, 0.0, np.where(finite, np.abs(np.where(finite, wide, 0) - np.where(finite, want, 0)), np.inf))
    scale = np.where(finite, np.maximum(np.abs(want), float(info.smallest_normal)), 1.0)
    at = np.unravel_index(away.argmax(), away.shape)
    sizes = np.where(np.isfinite(want), np.abs(want), 0.0)
    rows = (-1, want.shape[-1] if want.ndim else 1)
    moved = np.linalg.norm(away.reshape(rows), axis=-1)
    norms = np.linalg.norm(np.where(same & ~finite, 0.0, sizes).reshape(rows), axis=-1)
    floor = float(np.linalg.norm(norms)) / math.sqrt(len(norms))
    found["max_abs"], found["max_rel"] = float(away.max()), float((away / scale).max())
    found["rel_l2"] = ratio(float(np.linalg.norm(moved)), float(np.linalg.norm(norms)))
    found["rel_l2_row"] = max(ratio(float(m), max(float(n), floor)) for m, n in zip(moved, norms, strict=True))
    found["worst"] = WorstElement(index=[int(i) for i in at], got=float(wide[at]), want=float(want[at]))
    if finite.all():
        units = np.exp2(np.frexp(np.maximum(np.abs(want), float(info.smallest_normal)))[1] - 1.0) * float(info.eps)
        steps = np.minimum(away / units, np.finfo(np.float64).max)
        median, p99 = np.quantile(steps, [0.5, 0.99])
        lengths = float(np.linalg.norm(wide)), float(np.linalg.norm(want))
        cosine = float(np.vdot(wide / (lengths[0] or 1.0), want / (lengths[1] or 1.0)))
        found["cosine_distance"] = max(0.0, 1.0 - cosine) if all(lengths) else float(any(lengths))
        noise = float(np.linalg.norm(away))
        found["snr_db"] = 20 * math.log10(lengths[1] / noise) if noise and lengths[1] else None
        found["ulp"] = UlpRecord(median=float(median), p99=float(p99), max=float(steps.max()))
        found["argmax_agreement"] = argmax_agreement(wide, want)
    positive = away[np.isfinite(away) & (away > 0)]
    decades = np.floor(np.log10(positive)).astype(int)
    edges = list(range(decades.min(), decades.max() + 2)) if decades.size else []
    counts = [int((decades == decade).sum()) for decade in edges[:-1]]
    found["histogram"] = HistogramRecord(edges_log10=edges, counts=counts, zeros=int((away == 0).sum()))
    return found


def ratio(moved: float, norm: float) -> float:
    return moved / norm if norm else math.inf if moved else 0.0


def argmax_agreement(got: NDArray[Any], want: NDArray[Any]) -> float | None:
    if want.ndim == 0 or want.shape[-1] < 2 or (want < 0).any():
        return None
    sums = want.sum(axis=-1)
    rows = np.abs(sums - 1) < 1e-6
    if not rows.any() or not (rows | (sums == 0)).all():
        return None
    return float((got.argmax(axis=-1) == want.argmax(axis=-1))[rows].mean())


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for name, value in wanted.items():
            assert_same(found[name], value, f"{where}/{name}")
    elif isinstance(wanted, float) and isinstance(found, float):
        slack = {"/cosine_distance": 1e-14, "/snr_db": 1e-11}.get(where, 0.0)
        assert found == pytest.approx(wanted, rel=1e-12, abs=slack, nan_ok=True), where
    else:
        assert found == wanted, where


@st.composite
def outputs(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw an output and its oracle: anything, ordinary numbers with some error, or distributions."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    match draw(st.sampled_from(["anything", "ordinary", "distributions"])):
        case "anything":
            want = draw(hnp.arrays(np.float64, shape, elements=NUMBERS))
        case "ordinary":
            want = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 2))
        case _:
            want = np.asarray(rng.random(shape) + 0.1)
            want = want / want.sum(axis=-1, keepdims=True) if want.ndim and want.size else want
    noise = 1 + draw(st.sampled_from([0.0, 1e-3, 0.3])) * rng.standard_normal(shape)
    return np.asarray(want * noise).astype(draw(st.sampled_from(DTYPES))), want


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streaming")


def stored(folder: Path, got: NDArray[Any], want: NDArray[Any]) -> tuple[Readable, Readable]:
    write_arrays(folder / "pair.npz", {"got": got, "want": want})
    opened = open_arrays(folder / "pair.npz")
    return opened["got"], opened["want"]


@pytest.mark.filterwarnings("ignore:overflow|invalid|divide")
@given(outputs=outputs(), data=st.data())
@settings(max_examples=200, deadline=None)
def test_blocks_give_the_figures_of_whole_arrays(
    outputs: tuple[NDArray[Any], NDArray[Any]], data: st.DataObject, folder: Path
) -> None:
    kept = None
    if outputs[1].ndim > 1 and data.draw(st.booleans()):
        kept = data.draw(hnp.arrays(np.bool_, outputs[1].shape[:2]))
    wanted = plainly(*(side if kept is None else side[kept] for side in outputs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "BLOCK", data.draw(st.sampled_from([1, 3, 7, 1 << 18])))
        patch.setattr(pair, "SMALL", data.draw(st.sampled_from([0, 1 << 22])))
        patch.setattr(error, "_ROWS_KEPT", data.draw(st.sampled_from([0, 1 << 20])))
        patch.setattr(quantiles, "KEPT", data.draw(st.sampled_from([0, 1 << 21])))
        sides = stored(folder, *outputs) if data.draw(st.booleans()) else outputs
        found = measure_error(*sides, kept)
    assert_same(msgspec.to_builtins(found), msgspec.to_builtins(wanted))


@given(outputs=outputs(), block=st.sampled_from([1, 3, 7, 64]), data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_follow_each_other_and_rows_end_where_they_end(
    outputs: tuple[NDArray[Any], NDArray[Any]], block: int, data: st.DataObject
) -> None:
    got, want = outputs
    kept = data.draw(hnp.arrays(np.bool_, want.shape[:2])) if want.ndim > 1 and data.draw(st.booleans()) else None
    whole = want if kept is None else want[kept]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "BLOCK", block)
        sides = Pair(got, want, kept)
        blocks = list(sides.blocks())
    assert (sides.shape, sides.size) == (whole.shape, whole.size)
    joined = np.concatenate([each.want.ravel() for each in blocks]) if blocks else np.empty(0)
    assert joined.tobytes() == whole.tobytes()
    rows = sum(len(each.want) for each in blocks if each.ends)
    assert rows == sides.rows
    assert all(each.want.size <= block for each in blocks)
    assert sides.identical() == (got.dtype == want.dtype and all(b.got.tobytes() == b.want.tobytes() for b in blocks))


def test_two_shapes_make_no_pair() -> None:
    with pytest.raises(ValueError, match=r"expected one shape, got \(2,\), \(3,\)"):
        Pair(np.zeros(2), np.zeros(3))


def test_padded_positions_are_measured_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    want = rng.standard_normal((2, 5, 3))
    got = want.copy()
    padded = np.array([[False, True, False, False, True], [True, False, False, False, False]])
    got[0, 1, 2] += 1.0
    got[1, 0] = [np.nan, np.inf, 0.0]
    whole = padded_record(got, want, padded)
    assert (whole.positions, whole.nonfinite, whole.rel_l2) == (3, 2, math.inf)
    assert whole.max_abs == max(abs(got[0, 1, 2] - want[0, 1, 2]), abs(want[1, 0, 2]))
    monkeypatch.setattr(pair, "BLOCK", 2)
    assert padded_record(got, want, padded) == whole


@given(
    numbers=hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1e300) | st.sampled_from([0.0, 1.0, 2.5])),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    blocks=st.integers(1, 5),
)
@settings(deadline=None)
def test_the_bounded_quantile_is_the_exact_one(numbers: NDArray[np.float64], shares: list[float], blocks: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "KEPT", 0)
        found = quantiles.quantiles(lambda: np.array_split(numbers, blocks), numbers.size, shares)
    assert found == pytest.approx(list(np.quantile(numbers, shares)), rel=1e-15, abs=0.0)


JUDGE = """
import sys, threading, time
from pathlib import Path
import numpy as np
from crosshead.export import pair
from crosshead.export.artifact import open_arrays
from crosshead.harness.judge import Tolerance, judge_output
import ml_dtypes

pair.BLOCK, pair.SMALL = 1 << 15, 1 << 16
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def judge(path):
    arrays = open_arrays(path)
    return judge_output("y", arrays["got"], arrays["want"], expected_dtype="float32", yardstick=None, use_native=False)

judge(Path(sys.argv[1]))  # imports, and what an allocator keeps
base = peak = resident()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.001)
watcher = threading.Thread(target=watch)
watcher.start()
record = judge(Path(sys.argv[2]))
done = True
watcher.join()
print(peak - base, record.rel_l2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
@pytest.mark.parametrize("shape", [(2048, 4096), (1 << 22, 2)])
def test_comparing_a_large_output_takes_less_than_one_copy_of_it(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for name, sizes in (("small", (300, 400)), ("large", shape)):
        want = rng.standard_normal(sizes)
        write_arrays(tmp_path / f"{name}.npz", {"got": want.astype(np.float32), "want": want})
    command = [sys.executable, "-c", JUDGE, str(tmp_path / "small.npz"), str(tmp_path / "large.npz")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    output_bytes = 4 * math.prod(shape)
    assert int(said[0]) < output_bytes, f"{int(said[0]) / output_bytes:.2f} copies of an output of 32 MiB"
    assert float(said[1]) < 2.0**-24
