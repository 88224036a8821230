import pytest

from crosshead.harness.phases import OTHER, STEPS, Phases


class Clock:
    """A clock that stands until it is set forward."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_every_second_counts_for_one_phase() -> None:
    clock = Clock()
    phases = Phases(clock)
    clock.now_s += 1.0
    phases.step("loading mha")
    clock.now_s += 2.0
    phases.enter(OTHER)
    with phases.during("judge"):
        clock.now_s += 4.0
        with phases.during("record"):
            clock.now_s += 8.0
        clock.now_s += 16.0
    clock.now_s += 32.0
    assert phases.seconds() == {"other": 33.0, "judge": 20.0, "record": 8.0, "load": 2.0}
    assert list(phases.seconds()) == ["other", "judge", "record", "load"], "the longest first"


def test_a_phase_ends_with_what_it_raised() -> None:
    clock = Clock()
    phases = Phases(clock)

    def stopped() -> None:
        with phases.during("measure"):
            clock.now_s += 1.0
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    clock.now_s += 2.0
    assert phases.seconds() == {"other": 2.0, "measure": 1.0}


def test_what_was_found_out_afterwards_is_shared_out_and_never_more_than_there_is() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.during("visit_start"):
        clock.now_s += 10.0
        phases.share_out("visit_start", {"visit_import": 4.0, "visit_session": 1.0})
        clock.now_s += 1.0
        phases.share_out("visit_start", {"visit_import": 100.0})
    assert phases.seconds() == {"visit_import": 10.0, "visit_session": 1.0, "visit_start": 0.0, "other": 0.0}


def test_a_step_of_another_name_is_other() -> None:
    clock = Clock()
    phases = Phases(clock)
    phases.step("computing 1x128 in float64")
    clock.now_s += 1.0
    phases.step("brewing coffee")
    clock.now_s += 2.0
    assert phases.seconds() == {"other": 2.0, "float64": 1.0}
    assert OTHER not in STEPS.values()
