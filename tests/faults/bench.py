"""The fault bench: run a planted fault, or a healthy cell, through the project's own path, and say what was found."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from tests.faults.graph_edits import GraphEdit
from tests.faults.in_process import Watch, exported_as, in_process, unwatched

from crosshead.export.artifact import Artifact, Form, Precision
from crosshead.harness import Plan, compare
from crosshead.results import Cause, RunRecord
from crosshead.runtimes import Settings

SMALL: Mapping[str, Mapping[str, Any]] = {
    "attention": {"d_model": 64, "num_heads": 4},
    "encoder": {"d_model": 64, "num_heads": 4, "d_ff": 96},
    "feed-forward": {"d_model": 64, "d_ff": 96},
}
"""Widths of the bench, by what a block is built of."""

Write = Callable[[Path], tuple[Path, Path]]
Kind = Cause | Literal["healthy"]


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        label: tells it from others of its kind.
        source: a block, or `path.py:factory`.
        kind: the kind of cause that is to be named, or that there is nothing to name.
        options: fields of the block.
        forms: forms of the graph.
        precision: of the graph.
        backends: what runs it.
        fault: the fault of the `fake` backend.
        edit: the fault of the export.
        write: writes a bare `.onnx` and its inputs, in the place of `source`.
        seq: number of tokens.
        keep_training_mode: leave the module in training mode.
        sentence: what is wrong.
    """

    label: str
    source: str
    kind: Kind = "healthy"
    options: Mapping[str, Any] = field(default_factory=dict)
    forms: tuple[Form, ...] = ("standard",)
    precision: Precision = "fp32"
    backends: tuple[str, ...] = ("fake",)
    fault: str = ""
    edit: GraphEdit | None = None
    write: Write | None = None
    seq: int = 9
    keep_training_mode: bool = False
    sentence: str = ""

    @property
    def name(self) -> str:
        """What it is called; no two have the same."""
        return f"{self.kind}: {self.label}"


@dataclass(frozen=True)
class Finding:
    """What the project says about a subject.

    Attributes:
        kinds: the kinds of cause that it names, each once.
        evidence: what was called wrong, in few words: artifacts, cells, stress cases, laws, agreements.
        accused: of whom: artifacts, and backends on them, each once.
        cells: how many cells were judged.
        moved: whether the edit of the graph changes what it computes on some input of the examination; None where
            there is none.
        record: the whole record.
    """

    kinds: tuple[Cause, ...]
    evidence: tuple[str, ...]
    accused: tuple[str, ...]
    cells: int
    moved: bool | None
    record: RunRecord

    @property
    def caught(self) -> bool:
        """Whether anything was called wrong."""
        return bool(self.evidence)


def examine(subject: Subject, watch: Watch = unwatched, seed: int = 0) -> Finding:
    """Export, check the graph, run, judge, and name the cause, as `crosshead compare` does.

    Args:
        subject: what is examined.
        watch: shown every run of a backend.
        seed: of weights and inputs.
    """
    edited: list[tuple[onnx.ModelProto, onnx.ModelProto]] = []

    def edit(model: onnx.ModelProto) -> onnx.ModelProto:
        assert subject.edit is not None
        edited.append((model, subject.edit.apply(model)))
        return edited[-1][1]

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crosshead-faults-")))
        source, inputs = (subject.source, None) if subject.write is None else subject.write(folder)
        stack.enter_context(in_process(watch))
        if subject.edit is not None:
            stack.enter_context(exported_as(edit))
        plan = Plan(
            source=str(source),
            inputs=inputs,
            options=subject.options,
            backends=subject.backends,
            forms=subject.forms,
            precisions=() if subject.write is not None else (subject.precision,),
            batches=(2,),
            lengths=(subject.seq,),
            threads=1,
            seed=seed,
            out=folder / "runs",
            settings=Settings(fake={"fault": subject.fault} if subject.fault else {}),
            keep_training_mode=subject.keep_training_mode,
        )
        finished = compare(plan)
        record = finished.record
        artifacts = [Artifact.load((finished.folder / each.path).parent) for each in record.artifacts]
        moved = any(_moves(*pair, artifacts[0]) for pair in edited) if edited else None
    kinds = tuple(dict.fromkeys(cause.kind for cause in record.causes))
    found = list(_evidence(record))
    evidence, accused = (tuple(dict.fromkeys(each)) for each in zip(*found, strict=True)) if found else ((), ())
    return Finding(kinds, evidence, accused, len(record.cells), moved, record)


def _moves(right: onnx.ModelProto, edited: onnx.ModelProto, artifact: Artifact) -> bool:
    """Whether a graph and its edited copy give other bits on an input that the artifact carries."""
    before, after = (ReferenceEvaluator(model) for model in (right, edited))
    for case in (*artifact.manifest.cases, *artifact.manifest.stress_cases):
        inputs = artifact.inputs(case.name)
        with np.errstate(all="ignore"):  # the stress set goes beyond what float32 holds
            pairs = zip(before.run(None, inputs), after.run(None, inputs), strict=True)
        if any(np.asarray(a).tobytes() != np.asarray(b).tobytes() for a, b in pairs):
            return True
    return False


def _evidence(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Give everything that is called wrong, in few words, and of whom."""
    yield from ((f"graph {each.graph.verdict}", each.id) for each in record.artifacts if each.graph.verdict == "fail")
    for where, cells in (("case", record.cells), ("stress", record.stress)):
        for cell in cells:
            said: list[str] = [cell.status] if cell.status == "failed" else []
            said += [output.verdict for output in cell.outputs if output.verdict != "pass"]
            yield from ((f"{where} {cell.case} {each}", cell.label) for each in said)
    yield from (
        (f"law {law.law} {law.verdict}", f"{law.backend}/{law.artifact}")
        for law in record.laws
        if law.verdict != "pass"
    )
    for each in record.agreements:
        if each.verdict != "pass":
            yield from ((f"agreement {each.a} {each.b}", side) for side in (each.a, each.b))


def small(layer: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a block at the widths of the bench."""
    return {**SMALL[layer], **options}


def chosen(subjects: Iterable[Subject], words: Iterable[str]) -> list[Subject]:
    """Return the subjects whose names hold one of the words, or all of them where there is no word."""
    return [each for each in subjects if not words or any(word in each.name for word in words)]
