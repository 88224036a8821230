import pytest

from crosshead.results import PeakRecord
from crosshead.results.roofline import Roofline, roofline

PEAK = PeakRecord(precision="fp32", threads=2, gflop_s=100.0, backend="ort-cpu", gbyte_s=10.0)


def test_the_later_limit_is_the_one_that_counts() -> None:
    compute = roofline(1e-3, flops=8e7, moved_bytes=1e6, peak=PEAK)
    assert compute == pytest.approx(Roofline(80.0, 1.0, 0.8, "compute"))
    memory = roofline(1e-3, flops=1e6, moved_bytes=9e6, peak=PEAK)
    assert memory == pytest.approx(Roofline(1.0, 9.0, 0.9, "memory"))


def test_one_limit_alone_counts_as_well() -> None:
    assert roofline(1e-3, moved_bytes=1e6, peak=PEAK)[2:] == pytest.approx((0.1, "memory"))
    no_copy = PeakRecord(precision="fp32", threads=2, gflop_s=100.0, backend="ort-cuda")
    assert roofline(1e-3, flops=1e7, moved_bytes=1e6, peak=no_copy)[2:] == pytest.approx((0.1, "compute"))


def test_nothing_known_says_nothing() -> None:
    assert roofline(0.0, flops=1e9, moved_bytes=1e9, peak=PEAK) == Roofline()
    assert roofline(1e-3, peak=PEAK) == Roofline()
    assert roofline(1e-3, flops=1e7) == pytest.approx(Roofline(10.0))
    assert roofline(1e-3, flops=1e7, peak=PeakRecord(precision="fp32", threads=2))[2:] == (None, None)
