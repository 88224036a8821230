"""The verb `conform` of the command line: its options, and what it prints."""

from typing import TYPE_CHECKING, Any

import click

from crosshead.harness.options import BACKENDS, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crosshead.harness.conformity import Conformed


@click.command()
@click.option("--match", default="attention", show_default=True, help="Cases with this in their name.")
@BACKENDS
@click.option("--rtol", type=float, help="Of every output.  [1e-3; more in bf16 and fp16]")
@click.option("--atol", type=float, help="Of every output.  [1e-7; more in proportion to what is expected]")
@OUTPUT
def conform(**given: Any) -> int:
    """Run the ONNX standard's own attention cases on every backend that executes graphs.

    Exit status: 1 where a result is off in a way that is not known; with --strict, a known one too.
    """
    import math

    from crosshead.harness.cli import _settings, _write
    from crosshead.harness.conformity import ConformPlan
    from crosshead.harness.conformity import conform as carry_out
    from crosshead.harness.pipeline import silent

    direct = ("match", "backends", "threads", "rtol", "atol", "cell_timeout_s", "out", "strict")
    fields = {name: given[name] for name in direct}
    limit_gb = given["memory_limit_gb"]
    if limit_gb is not None:
        if not math.isfinite(limit_gb):
            raise click.UsageError(f"--memory-limit: expected a number of GB, got {limit_gb}")
        fields["memory_limit_bytes"] = int(limit_gb * 1e9)
    plan = ConformPlan(**fields, settings=_settings(given["settings"]))
    if given["quiet"]:
        done = carry_out(plan, silent)
    else:
        from crosshead.harness.progress import shown_progress

        with shown_progress() as progress:
            done = carry_out(plan, progress)
    _write(_report(done, given))
    return done.exit_status(strict=plan.strict)


def _report(done: "Conformed", given: "Mapping[str, Any]") -> bytes:
    """Return what goes to standard output."""
    if given["as_json"]:
        from crosshead.results import encode_conformity

        return encode_conformity(done.record)
    if given["quiet"]:
        return f"{done.record.verdict or 'interrupted'}\n".encode()
    from rich.console import Console

    from crosshead.results import render_conformity

    console = Console()
    with console.capture() as captured:
        render_conformity(done.record, console)
        console.out(f"results: {done.folder}", highlight=False)
    return captured.get().encode(console.encoding, errors="replace")
