"""The verb `fuzz` of the command line: its options, and what it prints."""

from typing import TYPE_CHECKING, Any

import click

from crosshead.harness.options import BACKENDS, EXPORT, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crosshead.harness.fuzz import Fuzzed


@click.command()
@click.argument("source", default="mha")
@click.option("--seconds", type=float, default=60.0, show_default=True, help="How long to search.")
@click.option("--tries", type=int, help="Draws at most, for the same search on any machine.")
@click.option("--zip", "zipped", is_flag=True, help="Also write each bundle as one file.")
@EXPORT
@BACKENDS
@OUTPUT
def fuzz(**given: Any) -> int:
    """Search for inputs on which a graph or a backend is off; shrink, explain and bundle what is found.

    Exit status: 0 nothing was found, 1 something was, 2 the request could not be carried out.
    """
    from crosshead.harness.cli import _plan, _write
    from crosshead.harness.fuzz import fuzz as carry_out
    from crosshead.harness.pipeline import silent
    from crosshead.harness.verdict import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS

    options: dict[str, Any] = {name: given[name] for name in ("seconds", "tries", "zipped")}
    plan = _plan(given)
    if given["quiet"]:
        done = carry_out(plan, progress=silent, **options)
    else:
        from crosshead.harness.progress import shown_progress

        with shown_progress() as progress:
            done = carry_out(plan, progress=progress, **options)
    _write(_report(done, given))
    if done.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAIL if done.record.finds else EXIT_PASS


def _report(done: "Fuzzed", given: "Mapping[str, Any]") -> bytes:
    """Return what goes to standard output."""
    if given["as_json"]:
        from crosshead.results.fuzz import encode_fuzz

        return encode_fuzz(done.record)
    if given["quiet"]:
        return f"{done.record.verdict or 'interrupted'}\n".encode()
    from rich.console import Console

    from crosshead.results.fuzz_text import render_fuzz

    console = Console()
    with console.capture() as captured:
        render_fuzz(done.record, console)
        console.out(f"results: {done.folder}", highlight=False)
    return captured.get().encode(console.encoding, errors="replace")
