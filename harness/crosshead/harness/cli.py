"""The command line. Heavy imports wait until a verb does its work: `crosshead --help` must answer at once."""

import errno
import gc
import io
import math
import os
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from crosshead.harness.conform_command import conform
from crosshead.harness.diagnose_command import diagnose
from crosshead.harness.fuzz_command import fuzz
from crosshead.harness.load_command import load
from crosshead.harness.options import BACKENDS, EXPORT, MEASURING, OUTPUT, SAVING, STRESS, TOLERANCES

if TYPE_CHECKING:
    from crosshead.harness.pipeline import Finished, Progress
    from crosshead.harness.plan import Plan
    from crosshead.runtimes import Settings

EXIT_USAGE = 2

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@click.group(context_settings=_CONTEXT, no_args_is_help=True)
@click.version_option(package_name="crosshead", message="crosshead %(version)s")
def cli() -> None:
    """Export an attention block to ONNX, run it on every backend here, compare numbers and latency.

    SOURCE is a built-in block (mha, gqa, encoder-layer, …), path/to/file.py:factory, package.module:factory,
    model.onnx, or a folder of artifacts exported before.

    Exit status: 0 all pass, 1 a verdict failed, 2 the request could not be carried out.
    """


@cli.command()
@click.argument("source", default="mha")
@EXPORT
@BACKENDS
@TOLERANCES
@STRESS
@SAVING
@MEASURING
@OUTPUT
def run(**given: Any) -> int:
    """Export, compare, measure, record and report: the main job."""
    return _carry_out("run", given)


@cli.command()
@click.argument("source", default="mha")
@EXPORT
@OUTPUT
def export(**given: Any) -> int:
    """Export to ONNX and check the graph in float64."""
    return _carry_out("export", given)


@cli.command()
@click.argument("source", default="mha")
@click.argument("against", required=False)
@EXPORT
@BACKENDS
@TOLERANCES
@STRESS
@SAVING
@OUTPUT
def compare(**given: Any) -> int:
    """Compare outputs of every backend with a float64 oracle, or two .onnx files with each other."""
    return _carry_out("compare", given)


@cli.command()
@click.argument("source", default="mha")
@EXPORT
@BACKENDS
@MEASURING
@OUTPUT
def bench(**given: Any) -> int:
    """Measure latency of every backend, each in processes of its own."""
    return _carry_out("bench", given)


cli.add_command(load)
cli.add_command(conform)
cli.add_command(diagnose)
cli.add_command(fuzz)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="A list on stdout, nothing else.")
def backends(as_json: bool) -> int:
    """Say which backends are here, which are missing, and the command that adds them."""
    from crosshead.harness.backends import show_backends

    show_backends(as_json)
    return 0


def _carry_out(verb: str, given: Mapping[str, Any]) -> int:
    from crosshead.harness import pipeline as verbs
    from crosshead.harness.verdict import exit_status

    plan = _plan(given)
    do: Callable[[Plan, Progress], Finished] = getattr(verbs, verb)
    if given["quiet"]:
        finished = do(plan, verbs.silent)
    else:
        from crosshead.harness.progress import shown_progress

        with shown_progress() as progress:
            finished = do(plan, progress)
    status = exit_status(
        finished.record, by_name=finished.by_name, strict=plan.strict, interrupted=finished.interrupted
    )
    for cell in finished.record.cells:
        if cell.status == "unsupported" and cell.backend in finished.by_name:
            _say(
                f"{cell.backend} was asked for by name and cannot run {cell.artifact}, case {cell.case}: {cell.reason}"
            )
    _write(_report(finished, given))
    return status


def _report(finished: "Finished", given: Mapping[str, Any]) -> bytes:
    """Return what goes to standard output."""
    if given["as_json"]:
        from crosshead.results import encode_run

        return encode_run(finished.record)
    if given["quiet"]:
        return f"{finished.record.verdict or 'interrupted'}\n".encode()
    from rich.console import Console

    from crosshead.results import render_run

    console = Console()
    with console.capture() as captured:
        render_run(finished.record, console)
        console.out(f"results: {finished.folder}", highlight=False)
    return captured.get().encode(console.encoding, errors="replace")


def _write(report: bytes) -> None:
    """Write to standard output; a reader that leaves early has seen what it wanted, and changes no verdict.

    Raises:
        OSError: the output cannot be written for another reason.
    """
    if sys.stdout is None:
        return
    try:
        if isinstance(getattr(sys.stdout, "buffer", None), io.BufferedIOBase):
            sys.stdout.buffer.write(report)
        else:
            sys.stdout.write(report.decode())
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it ends


def _plan(given: Mapping[str, Any]) -> "Plan":
    """Make the plan; what a verb does not take keeps the plan's default."""
    from crosshead.harness.plan import Plan

    direct = [
        name for name in Plan.__struct_fields__ if name in given and name not in ("options", "shapes", "settings")
    ]
    fields: dict[str, Any] = {name: given[name] for name in direct}
    fields["options"] = dict(given["options"])
    fields["shapes"] = dict(given["shapes"])
    if given.get("memory_limit_gb") is not None:
        if not math.isfinite(given["memory_limit_gb"]):
            raise click.UsageError(f"--memory-limit: expected a number of GB, got {given['memory_limit_gb']}")
        fields["memory_limit_bytes"] = int(given["memory_limit_gb"] * 1e9)
    fields["settings"] = _settings(given.get("settings", ()))
    fields["tolerances"] = _tolerances(given)
    return Plan(**fields)


def _settings(pairs: tuple[tuple[str, Any], ...]) -> "Settings":
    import msgspec

    from crosshead.runtimes import Settings

    known = [name for name in Settings.__struct_fields__ if name not in ("threads", "fake")]
    plain = {name: value for name, value in pairs if not name.startswith("fake.")}
    fake = {name.removeprefix("fake."): value for name, value in pairs if name.startswith("fake.")}
    for name in plain:
        if name not in known:
            raise click.UsageError(f"there is no setting {name!r}; settings: {', '.join(known)}, fake.*")
    hints = typing.get_type_hints(Settings)
    for name, value in plain.items():
        try:
            msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            choices = typing.get_args(hints[name])
            expected = f"one of {', '.join(choices)}" if choices else "on or off"
            raise click.UsageError(f"--setting {name}: expected {expected}, got {value!r}") from error
    return Settings(**plain, fake=fake)


def _tolerances(given: Mapping[str, Any]) -> Any:
    from crosshead.harness.judge import Tolerance, Tolerances

    fields: dict[str | None, dict[str, float]] = {}
    for option, kind in (("rtols", "rtol"), ("atols", "atol"), ("budgets", "budget")):
        for output, value in given.get(option, ()):
            fields.setdefault(output, {})[kind] = value
    by_output = {output: Tolerance(**kinds) for output, kinds in fields.items() if output is not None}
    return Tolerances(default=Tolerance(**fields.get(None, {})), by_output=by_output)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status; an error is one line on standard error.

    Being told to end (SIGTERM, SIGHUP) counts as Ctrl-C: what is finished is kept, and nothing is left behind.
    """
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _interrupt)
    status = _main(arguments)
    gc.freeze()  # the interpreter's last collection would go through all that PyTorch made: a second, for nothing
    sys.exit(status)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _main(arguments: list[str] | None) -> int:
    try:
        status = cli.main(args=arguments, prog_name="crosshead", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        return _refuse(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return _refuse("interrupted", status=130)
    except MemoryError as error:
        return _refuse(f"the sizes asked for do not fit into memory ({error}); give smaller ones")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            traceback.print_exc()
        return _refuse(f"cannot write: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001  # the last line of defence: status 1 would say that a verdict failed
        from crosshead.harness.errors import USER_ERRORS

        if isinstance(error, USER_ERRORS):
            return _refuse(str(error))
        traceback.print_exc()
        return _refuse(f"internal error: {type(error).__name__}: {error}; please report it with the lines above")
    return status if isinstance(status, int) else 0


def _refuse(message: str, status: int = EXIT_USAGE) -> int:
    _say(message)
    return status


def _say(message: str) -> None:
    click.echo(f"crosshead: {' '.join(message.split())}", err=True)
