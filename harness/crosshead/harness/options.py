"""Options of the command line, each written once; verbs take those they need. Values are parsed here, in one place."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


Shapes = tuple[tuple[int, ...], ...]


class Sizes(click.ParamType[tuple[int, ...]]):
    """`1,8` -> (1, 8)."""

    name = "n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse, or fail in one line."""
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"expected whole numbers such as 1,8; got {value!r}", param, ctx)
        if min(sizes) < 1:
            self.fail(f"sizes start at 1; got {value!r}", param, ctx)
        return sizes


class NamedShapes(click.ParamType[tuple[str, Shapes]]):
    """`x=1x128x512,8x128x512` -> ("x", ((1, 128, 512), (8, 128, 512)))."""

    name = "name=1x128x512,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Shapes]:
        """Parse, or fail in one line."""
        if isinstance(value, tuple):
            return value
        name, equals, shapes = str(value).partition("=")
        try:
            parsed = tuple(tuple(int(size) for size in shape.split("x")) for shape in shapes.split(","))
        except ValueError:
            parsed = ()
        if not name or not equals or not parsed or min(map(min, parsed)) < 0:
            self.fail(f"expected name=1x128x512, several shapes apart by commas; got {value!r}", param, ctx)
        return name, parsed


class Assignment(click.ParamType[tuple[str, object]]):
    """`field=value` -> (field, value), the value read as a boolean, a number, none, or else text."""

    name = "field=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, object]:
        """Parse, or fail in one line."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"expected field=value; got {value!r}", param, ctx)
        return name, plain_value(text)


class MaybeNamed(click.ParamType[tuple[str | None, float]]):
    """`1e-3` -> (None, 0.001); `output=1e-3` -> ("output", 0.001)."""

    name = "[output=]x"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | None, float]:
        """Parse, or fail in one line."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).rpartition("=")
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not number >= 0.0 or (equals and not name):
            self.fail(f"expected a number from 0, or output=number; got {value!r}", param, ctx)
        return (name or None), number


def plain_value(text: str) -> bool | int | float | str | None:
    """Read a value from the command line: true/false (also on/off), none, a number, or text."""
    words: dict[str, bool | None] = {"true": True, "on": True, "false": False, "off": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def together(options: Sequence[Decorator]) -> Decorator:
    """Return one decorator that adds several options in the order given."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


EXPORT = together(
    [
        click.option("--form", "forms", multiple=True, help="standard or decomposed; repeatable.  [both]"),
        click.option("--opset", "opsets", type=int, multiple=True, help="Opset to export at; repeatable."),
        click.option(
            "--exporter",
            type=click.Choice(("dynamo", "torchscript")),
            default="dynamo",
            metavar="NAME",
            help="dynamo or torchscript.  [dynamo]",
        ),
        click.option("--precision", "precisions", multiple=True, help="fp32, fp16 or bf16; repeatable.  [as it comes]"),
        click.option("--set", "options", type=Assignment(), multiple=True, help="Argument of the block or factory."),
        click.option("--batch", "batches", type=Sizes(), default="1,8", show_default=True, help="Blocks: batch sizes."),
        click.option("--seq", "lengths", type=Sizes(), default="128", show_default=True, help="Blocks: token counts."),
        click.option("--shape", "shapes", type=NamedShapes(), multiple=True, help="Other sources: shapes of an input."),
        click.option("--inputs", multiple=True, metavar="SOURCE", help="Your cases: .npz, folder or x.py:function."),
        click.option("--keep-training-mode", is_flag=True, help="Do not switch the module to eval."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of weights, inputs and order."),
    ]
)

BACKENDS = together(
    [
        click.option("--backend", "backends", multiple=True, default=("all",), help="Backend; repeatable.  [all]"),
        click.option("--threads", type=int, help="Threads of every backend.  [cores]"),
        click.option(
            "--setting", "settings", type=Assignment(), multiple=True, help="e.g. optimization=basic, tf32=on."
        ),
        click.option(
            "--cell-timeout", "cell_timeout_s", type=float, default=120.0, help="Seconds for one answer.  [120]"
        ),
        click.option("--memory-limit", "memory_limit_gb", type=float, help="GB a worker may hold.  [what is free]"),
    ]
)

TOLERANCES = together(
    [
        click.option(
            "--rtol", "rtols", type=MaybeNamed(), multiple=True, help="numpy's allclose, not the derived rule."
        ),
        click.option("--atol", "atols", type=MaybeNamed(), multiple=True, help="The same; a part not given is 0."),
        click.option("--budget", "budgets", type=MaybeNamed(), multiple=True, help="Largest relative L2 error."),
    ]
)

SAVING = together(
    [
        click.option("--save-inputs", type=click.Path(path_type=Path), help="Folder for an .npz a case."),
        click.option("--save-outputs", type=click.Path(path_type=Path), help="Folder for an .npz a cell."),
    ]
)

STRESS = together(
    [
        click.option("--stress/--no-stress", "stress", default=True, help="Also small inputs that find faults.  [yes]"),
    ]
)

MEASURING = together(
    [
        click.option(
            "--time-budget",
            "time_budget_s",
            type=float,
            default=20.0,
            help="Seconds of measuring, warm-up too.  [20]",
        ),
        click.option("--growth", type=int, default=0, help="Calls of varying lengths, for memory.  [0]"),
        click.option("--processes", type=int, default=5, show_default=True, help="Worker processes a timed cell."),
    ]
)

OUTPUT = together(
    [
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            default=Path("results/runs"),
            help="Takes one folder a run.  [results/runs]",
        ),
        click.option("--strict", is_flag=True, help="Suspect, weak and void fail too."),
        click.option("--json", "as_json", is_flag=True, help="The record on stdout, nothing else."),
        click.option("--quiet", is_flag=True, help="Only the verdict."),
    ]
)
