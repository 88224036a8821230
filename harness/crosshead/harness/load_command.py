"""The verb `load` of the command line: its options, and what it prints."""

from typing import Any

import click

from crosshead.harness.options import BACKENDS, EXPORT, OUTPUT, Sizes, together


class Rates(click.ParamType[tuple[float | None, ...]]):
    """`50,100` -> (50.0, 100.0); `auto` stands for a search, and becomes None."""

    name = "x,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float | None, ...]:
        """Parse, or fail in one line."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(None if part == "auto" else float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"expected requests a second such as 50,100, or auto; got {value!r}", param, ctx)


LOADS = together(
    [
        click.option("--concurrency", "clients", type=Sizes(), default=(), help="Closed loops: numbers of clients."),
        click.option(
            "--rate", "rates", type=Rates(), default=(), help="Open loops: requests/s, Poisson arrivals; auto searches."
        ),
        click.option("--objective", "objectives", multiple=True, help="e.g. p99=20ms; repeatable."),
        click.option(
            "--workers",
            type=int,
            help="Calls the server makes at once.  [1; with --concurrency as many as clients]",
        ),
        click.option(
            "--time-budget",
            "time_budget_s",
            type=float,
            default=60.0,
            help="Seconds of load, warm-up included.  [60]",
        ),
    ]
)


@click.command(context_settings={"default_map": {"batches": "1"}})
@click.argument("source", default="mha")
@LOADS
@EXPORT
@BACKENDS
@OUTPUT
def load(**given: Any) -> int:
    """Latency under concurrent and Poisson load; the largest rate that keeps an objective."""
    from crosshead.harness.cli import _plan, _write
    from crosshead.harness.load_plan import LoadPlan, read_objective
    from crosshead.harness.load_run import load as carry_out
    from crosshead.harness.load_verdict import load_exit_status
    from crosshead.harness.pipeline import silent

    rates = given["rates"]
    plan = LoadPlan(
        plan=_plan(given),
        clients=given["clients"],
        rates_per_s=tuple(rate for rate in rates if rate is not None),
        search=None in rates,
        objectives=tuple(read_objective(text) for text in given["objectives"]),
        workers=given["workers"],
    )
    if given["quiet"]:
        finished = carry_out(plan, silent)
    else:
        from crosshead.harness.progress import shown_progress

        with shown_progress() as progress:
            finished = carry_out(plan, progress)
    status = load_exit_status(
        finished.record, by_name=finished.by_name, strict=plan.plan.strict, interrupted=finished.interrupted
    )
    for cell in finished.record.cells:
        if cell.status == "unsupported" and cell.backend in finished.by_name:
            message = f"{cell.backend} was asked for by name and cannot serve {cell.artifact}, case {cell.case}"
            click.echo(f"crosshead: {message}: {cell.reason}", err=True)
    _write(_report(finished.record, str(finished.folder), given))
    return status


def _report(record: Any, folder: str, given: dict[str, Any]) -> bytes:
    """Return what goes to standard output."""
    if given["as_json"]:
        from crosshead.results.encoding import encode_record

        return encode_record(record)
    if given["quiet"]:
        return f"{record.verdict or 'interrupted'}\n".encode()
    from rich.console import Console

    from crosshead.results.load_terminal import render_load

    console = Console()
    with console.capture() as captured:
        render_load(record, console)
        console.out(f"results: {folder}", highlight=False)
    return captured.get().encode(console.encoding, errors="replace")
