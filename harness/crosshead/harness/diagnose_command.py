"""The verb `diagnose` of the command line: its options, and what it prints."""

from typing import TYPE_CHECKING, Any

import click

from crosshead.harness.options import BACKENDS, EXPORT, OUTPUT, STRESS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crosshead.harness.diagnose import Diagnosed


@click.command()
@click.argument("source", default="mha")
@click.option("--against", help="A second backend, to find what sets the two apart; or a second .onnx file.")
@click.option("--zip", "zipped", is_flag=True, help="Also write the bundle as one file.")
@EXPORT
@BACKENDS
@STRESS
@OUTPUT
def diagnose(**given: Any) -> int:
    """Say why something fails: what takes the error away, the node, the smallest input, a bundle to hand on.

    SOURCE is that of compare, or the folder of an earlier run.

    Exit status: 0 nothing wrong was found, 1 a fault was, 2 the request could not be carried out.
    """
    from crosshead.harness.cli import _plan, _write
    from crosshead.harness.diagnose import diagnose as carry_out
    from crosshead.harness.pipeline import silent
    from crosshead.harness.verdict import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS

    against = given["against"]
    second_file = against if against is not None and against.endswith(".onnx") else None
    plan = _plan({**given, "against": second_file})
    backend = against if second_file is None else None
    if given["quiet"]:
        done = carry_out(plan, against=backend, zipped=given["zipped"], progress=silent)
    else:
        from crosshead.harness.progress import shown_progress

        with shown_progress() as progress:
            done = carry_out(plan, against=backend, zipped=given["zipped"], progress=progress)
    _write(_report(done, given))
    if done.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAIL if done.found else EXIT_PASS


def _report(done: "Diagnosed", given: "Mapping[str, Any]") -> bytes:
    """Return what goes to standard output."""
    if given["as_json"]:
        from crosshead.results.diagnosis import encode_diagnosis

        return encode_diagnosis(done.record)
    if given["quiet"]:
        return f"{done.record.message}\n".encode()
    from rich.console import Console

    from crosshead.results.diagnosis_text import render_diagnosis

    console = Console()
    with console.capture() as captured:
        render_diagnosis(done.record, console)
        console.out(f"results: {done.folder}", highlight=False)
    return captured.get().encode(console.encoding, errors="replace")
