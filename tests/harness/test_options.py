"""What a person types, read in one place."""

from typing import Any

import click
import pytest

from crosshead.harness.options import Assignment, MaybeNamed, NamedShapes, Sizes


def read(kind: click.ParamType[Any], text: str) -> Any:
    return kind.convert(text, None, None)


def test_sizes() -> None:
    assert read(Sizes(), "1,8") == (1, 8)
    assert read(Sizes(), "128") == (128,)


def test_shapes() -> None:
    assert read(NamedShapes(), "x=1x128x512") == ("x", ((1, 128, 512),))
    assert read(NamedShapes(), "x=1x4,8x4") == ("x", ((1, 4), (8, 4)))
    assert read(NamedShapes(), "past=1x0x4") == ("past", ((1, 0, 4),))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n=16", 16),
        ("n=0.5", 0.5),
        ("n=true", True),
        ("n=off", False),
        ("n=none", None),
        ("n=rms", "rms"),
        ("n=a=b", "a=b"),
    ],
)
def test_assignments(text: str, value: object) -> None:
    assert read(Assignment(), text) == ("n", value)


def test_tolerances() -> None:
    assert read(MaybeNamed(), "1e-3") == (None, 1e-3)
    assert read(MaybeNamed(), "output=1e-3") == ("output", 1e-3)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Sizes(), "1,x"),
        (Sizes(), "0"),
        (NamedShapes(), "1x2"),
        (NamedShapes(), "x=1xa"),
        (NamedShapes(), "x="),
        (Assignment(), "novalue"),
        (MaybeNamed(), "-1"),
        (MaybeNamed(), "nan"),
        (MaybeNamed(), "=1"),
    ],
)
def test_nonsense_is_refused_with_what_came(kind: click.ParamType[Any], text: str) -> None:
    with pytest.raises(click.BadParameter, match="got"):
        read(kind, text)
