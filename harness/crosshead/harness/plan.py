"""What is asked for, as one frozen record: the same for the command line and for Python."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

from crosshead.export.artifact import Form, Precision
from crosshead.export.forms import Exporter
from crosshead.harness.errors import RequestError
from crosshead.harness.judge import Tolerances
from crosshead.runtimes.base import Settings

DEFAULT_SOURCE = "mha"
OFFERED_PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "bf16")
DEFAULT_FORMS: tuple[Form, ...] = ("standard", "decomposed")

FEWEST_GROWTH_CALLS = 10

Shape = tuple[int, ...]
Option = bool | int | float | str | None


def default_threads() -> int:
    """Return how many cores this process may use: affinity, then the quota of its control group."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    from crosshead.results import cpu_quota

    quota = cpu_quota()
    return max(1, min(count, int(quota)) if quota is not None else count)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request to `run`, `export`, `compare` or `bench`.

    Attributes:
        source: block name, `path.py:factory`, `package.module:factory`, `model.onnx`, or a folder holding artifacts.
        against: a second `.onnx` file to hold against the first (`compare old.onnx new.onnx`).
        options: keyword arguments for the block or factory (`--set`).
        backends: names, or `all`.
        exporter: which of torch's exporters captures a module.
        forms: forms to export; empty means those of `DEFAULT_FORMS` that the exporter offers. Ignored for a bare
            `.onnx`.
        opsets: opsets to export at; empty means each form's default. A form is exported at those it offers.
        precisions: what a module is cast to; empty leaves it as it came. A graph that was made before keeps its own.
        batches, lengths: for built-in blocks; every pair is a case.
        shapes: for other sources: by input name, one shape for every case, or one shape for all of them.
        inputs: where cases of a person's own come from: `.npz`, folders `test_data_set_N`, `file.py:function` (see
            `crosshead.export.user_cases`). They come beside the usual cases of a module, and in the place of what would
            be drawn for a bare `.onnx`.
        threads: threads of every backend; None means the cores there are.
        processes: worker processes a timed cell.
        time_budget_s: seconds of measuring, all cells together, warm-ups included (up to half of it).
        cell_timeout_s: longest wait for one answer of a worker.
        memory_limit_bytes: largest resident size of a worker; None means what the machine can spare.
        growth: calls with varying lengths, for how memory grows; 0 means that it is not asked.
        seed: for weights, inputs and the order of turns.
        out: folder that takes one folder a run.
        settings: how backends run; its `threads` is replaced by the field above.
        tolerances: a person's own, in place of the derived rule.
        strict: suspect, weak and void count as failures.
        keep_training_mode: leave a module in training mode.
        stress: whether `run` and `compare` also run the stress set.
        save_inputs: folder that takes the inputs of every case as an `.npz`.
        save_outputs: folder that takes what every cell gave as an `.npz`.
    """

    source: str = DEFAULT_SOURCE
    against: str | None = None
    options: Mapping[str, Option] = {}
    backends: tuple[str, ...] = ("all",)
    exporter: Exporter = "dynamo"
    forms: tuple[Form, ...] = ()
    opsets: tuple[int, ...] = ()
    precisions: tuple[Precision, ...] = ()
    batches: tuple[int, ...] = (1, 8)
    lengths: tuple[int, ...] = (128,)
    shapes: Mapping[str, tuple[Shape, ...]] = {}
    inputs: Path | str | tuple[Path | str, ...] | None = None
    threads: int | None = None
    processes: int = 5
    time_budget_s: float = 20.0
    cell_timeout_s: float = 120.0
    memory_limit_bytes: int | None = None
    growth: int = 0
    seed: int = 0
    out: Path = Path("results/runs")
    settings: Settings = Settings()
    tolerances: Tolerances = Tolerances()
    strict: bool = False
    keep_training_mode: bool = False
    stress: bool = True
    save_inputs: Path | None = None
    save_outputs: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what can be seen to be wrong before anything heavy is imported.

        Raises:
            RequestError: in one line.
        """
        for name in ("processes", "time_budget_s", "cell_timeout_s", "threads", "memory_limit_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise RequestError(f"{name} must be a number above 0, got {value}")
        if self.growth and self.growth < FEWEST_GROWTH_CALLS:
            raise RequestError(f"growth must be 0 or at least {FEWEST_GROWTH_CALLS} calls, got {self.growth}")
        for name in ("batches", "lengths"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1:
                raise RequestError(f"{name} must be whole numbers from 1, got {list(sizes)}")
        if not self.backends:
            raise RequestError("no backend was asked for; give --backend NAME, or leave it out for all")
        if self.exporter not in get_args(Exporter):
            raise RequestError(f"exporter {self.exporter!r} is not offered; offered: {', '.join(get_args(Exporter))}")
        for precision in self.precisions:
            if precision not in OFFERED_PRECISIONS:
                raise RequestError(f"precision {precision!r} is not offered; offered: {', '.join(OFFERED_PRECISIONS)}")

    @property
    def given_inputs(self) -> tuple[Path | str, ...]:
        """Every source of cases that was given."""
        given = self.inputs
        return () if given is None else given if isinstance(given, tuple) else (given,)

    @property
    def source_kind(self) -> Literal["onnx", "folder", "module"]:
        """Which way the source goes: a graph as it is, artifacts made before, or a module to export."""
        if self.source.endswith(".onnx"):
            return "onnx"
        if ":" not in self.source and Path(self.source).is_dir():
            return "folder"
        return "module"

    def resolved_settings(self) -> Settings:
        """Return the settings with the number of threads filled in."""
        threads = self.threads if self.threads is not None else default_threads()
        return msgspec.structs.replace(self.settings, threads=threads)

    def form_opsets(self) -> list[tuple[Form, int]]:
        """Return each form with each opset it is to be exported at.

        Raises:
            FormError: an opset that none of the forms offers, a form with none of the opsets, or a form that the
                exporter's graph does not take.
        """
        from crosshead.export.forms import DEFAULT_OPSETS, EXPORTER_FORMS, FORM_OPSETS, check_form

        forms = self.forms or tuple(form for form in DEFAULT_FORMS if form in EXPORTER_FORMS[self.exporter])
        for form in forms:
            check_form(form, DEFAULT_OPSETS.get(form, 0), self.exporter)
        if not self.opsets:
            return [(form, DEFAULT_OPSETS[form]) for form in forms]
        pairs = [(form, opset) for form in forms for opset in self.opsets if opset in FORM_OPSETS[form]]
        for opset in self.opsets:
            if all(opset != offered for _, offered in pairs):
                check_form(forms[-1], opset)
        for form in self.forms:
            if all(form != offered for offered, _ in pairs):
                check_form(form, self.opsets[0])
        return pairs
