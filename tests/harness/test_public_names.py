"""The public names of the harness: sorted, complete, and each one really there."""

import crosshead.harness as room


def test_public_names_are_sorted_and_there() -> None:
    assert room.__all__ == sorted(room.__all__)
    assert set(room.__all__) == set(room._HOMES)
    for name in room.__all__:
        assert getattr(room, name).__module__.startswith("crosshead.harness.")
