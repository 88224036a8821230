"""The stress set on one backend: each case run, and judged by the rows that count (docs/method.md)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from crosshead.export.apart import Rows, apart_rows, counted
from crosshead.export.artifact import Arrays, Artifact, CaseRecord, Precision, TensorSpec
from crosshead.export.error import relative_l2, relative_l2_row
from crosshead.harness.accuracy import NATIVE_BACKEND, failure_record
from crosshead.harness.cells import Cell, refusal
from crosshead.harness.examine import Findings, Subject
from crosshead.harness.judge import ILL_CONDITIONED, Tolerances, judge_output
from crosshead.harness.metrics import is_floating
from crosshead.harness.padding import padded_record
from crosshead.harness.runner import Runner
from crosshead.results import CellRecord, Notice, OutputRecord, scrub
from crosshead.runtimes import Available, BackendError, WorkerError, get_runtime

PADDED: Final = "padded"
OVERFLOW: Final = "NaN or Inf in PyTorch too"
EVERY_ROW: Final = "nothing to judge: every row is told apart"
OTHER_SHAPE: Final = "left out: it would be compiled anew for the shape of this case"

MOST_LOST_WORKERS: Final = 3
"""After so many workers were lost on its cases, a backend is asked no more of them."""


class StressStage:
    """The stage of an examination; it keeps what the source framework gave, by which other backends are judged."""

    def __init__(self) -> None:
        """Prepare; nothing is known of the source framework yet."""
        self._native: dict[Precision, dict[str, Arrays]] = {}

    def __call__(self, subject: Subject) -> Findings:
        """Run and judge all cases of the artifact.

        Raises:
            BackendError, WorkerError: the source framework's own error cannot be had.
        """
        cases = subject.artifact.manifest.stress_cases
        if not cases:
            return Findings()
        answers = _answers(subject.runner, subject.artifact, cases)
        precision = subject.artifact.manifest.precision
        outputs = {name: answer for name, answer in answers.items() if isinstance(answer, dict)}
        is_native = subject.cell.runtime.name == NATIVE_BACKEND
        if is_native:
            self._native[precision] = outputs
        elif precision not in self._native:
            self._native[precision] = _native_outputs(subject)
        native = self._native[precision]
        artifact = _filled(subject.artifact, native)
        records = []
        for case in artifact.manifest.stress_cases:
            cell = replace(subject.cell, artifact=artifact, case=case.name)
            answer = answers.get(case.name)
            if isinstance(answer, Exception):
                records.append(_unanswered(cell, answer))
            elif isinstance(answer, str):
                records.append(cell.record(status="unsupported", reason=answer))
            elif answer is not None:
                judged = judge_stress(
                    artifact, case, answer, native.get(case.name, {}), subject.tolerances, use_native=not is_native
                )
                records.append(cell.record(status="ok", outputs=judged))
        notices = []
        if len(answers) < len(cases):
            message = f"{len(cases) - len(answers)} cases of the stress set were not asked: workers were lost on others"
            notices.append(Notice(code="not-examined", message=message, where=subject.cell.label))
        return Findings(stress=records, notices=notices, artifacts={artifact.id: artifact})


Answer = Arrays | Exception | str
"""Outputs by name; or what the backend or its worker said; or why it was not asked."""


def _answers(runner: Runner, artifact: Artifact, cases: Sequence[CaseRecord]) -> dict[str, Answer]:
    """Run all cases. One that the backend refuses costs nothing more; a lost worker is replaced a few times."""
    answers: dict[str, Answer] = {}
    lost = 0
    shapes = _compiled_once(runner, artifact, cases)
    for case in cases:
        if case.name in shapes:
            answers[case.name] = OTHER_SHAPE
            continue
        try:
            answers[case.name] = runner.run_file(artifact.inputs_path(case.name))
        except BackendError as error:
            answers[case.name] = error
        except WorkerError as error:
            answers[case.name] = error
            lost += 1
            if lost >= MOST_LOST_WORKERS:
                break
    return answers


def _compiled_once(runner: Runner, artifact: Artifact, cases: Sequence[CaseRecord]) -> set[str]:
    """Return, for a backend that compiles for a shape, the cases of all other shapes than the commonest one."""
    if not runner.cell.runtime.capabilities.compiles:
        return set()
    shapes = {
        case.name: tuple(sorted((name, array.shape) for name, array in artifact.inputs(case.name).items()))
        for case in cases
    }
    (commonest, _), *_ = Counter(shapes.values()).most_common(1)
    return {name for name, shape in shapes.items() if shape != commonest}


def _unanswered(cell: Cell, error: Exception) -> CellRecord:
    """Return the record of a case that gave no outputs: what a backend refuses here it does not take."""
    if isinstance(error, WorkerError):
        return failure_record(cell, error)
    return cell.record(status="unsupported", reason=scrub(" ".join(str(error).split())))


def _native_outputs(subject: Subject) -> dict[str, Arrays]:
    """Run the cases on the source framework, where it is here and has a module to run."""
    artifact = subject.artifact
    runtime = get_runtime(NATIVE_BACKEND)
    cell = replace(subject.cell, runtime=runtime)
    known = all(
        yardstick.native is not None
        for case in artifact.manifest.stress_cases
        for yardstick in case.yardsticks.values()
    )
    if known or refusal(cell) is not None or not isinstance(runtime.probe(), Available):
        return {}
    folder = subject.scratch / "native"
    folder.mkdir()
    with Runner(cell, subject.limits, folder) as runner:
        answers = _answers(runner, artifact, artifact.manifest.stress_cases)
    return {name: answer for name, answer in answers.items() if isinstance(answer, dict)}


def _filled(artifact: Artifact, native: Mapping[str, Arrays]) -> Artifact:
    """Return the artifact with the source framework's own error in the yardsticks of its cases, on disk too."""
    records = []
    for case in artifact.manifest.stress_cases:
        outputs = native.get(case.name, {})
        expected = artifact.expected(case.name) if outputs else {}
        yardsticks = dict(case.yardsticks)
        for name, yardstick in case.yardsticks.items():
            got, want = outputs.get(name), expected.get(name)
            if got is None or want is None or got.shape != want.shape or not is_floating(got):
                continue
            rows = _apart(want.shape, case, _overflow(got, want))
            errors = [measure(counted(got, rows), counted(want, rows)) for measure in (relative_l2, relative_l2_row)]
            if np.isfinite(errors).all():
                yardsticks[name] = msgspec.structs.replace(yardstick, native=errors[0], native_row=errors[1])
        records.append(msgspec.structs.replace(case, yardsticks=yardsticks))
    if tuple(records) == artifact.manifest.stress_cases:
        return artifact
    return artifact.with_manifest(msgspec.structs.replace(artifact.manifest, stress_cases=tuple(records)))


def _overflow(native: NDArray[np.generic] | None, want: NDArray[np.generic]) -> Rows | None:
    """Return the rows (all axes but the last) where the source framework itself is not finite and the oracle is."""
    if native is None or not is_floating(native) or native.shape != want.shape or want.ndim < 2:
        return None
    lost = ~np.isfinite(native.astype(np.float64)) & np.isfinite(want.astype(np.float64))
    return np.asarray(lost.any(axis=-1)) if lost.any() else None


def _apart(shape: tuple[int, ...], case: CaseRecord, overflow: Rows | None) -> Rows | None:
    """Return all rows of an output that decide nothing."""
    rows = apart_rows(shape, case.apart)
    if overflow is None or rows is None:
        return overflow if rows is None else rows
    return overflow | rows.reshape(rows.shape + (1,) * (overflow.ndim - rows.ndim))  # (B, L) -> (B, L, 1 …)


def judge_stress(
    artifact: Artifact,
    case: CaseRecord,
    outputs: Arrays,
    native: Arrays,
    tolerances: Tolerances,
    *,
    use_native: bool,
) -> list[OutputRecord]:
    """Judge the outputs of one case by the rows that count.

    Rows where right implementations may differ are measured apart: padded ones, queries without a key, what is beyond
    fp16, and where the source framework itself overflows. A tolerance that a person asked for can excuse an output
    here, and not fail it: these inputs are not theirs.

    Args:
        artifact: carries the case.
        case: its record, the source framework's own error filled in.
        outputs: what the backend gave.
        native: what the source framework gave; empty where it is not known.
        tolerances: what a person asked for in place of the derived rule.
        use_native: whether the source framework's own error counts.
    """
    expected = artifact.expected(case.name)
    records = []
    for spec in artifact.manifest.outputs:
        if spec.name not in outputs:
            reason = f"the backend gave no output of this name; it gave: {', '.join(outputs) or 'none'}"
            records.append(OutputRecord(name=spec.name, verdict="fail", rule="exact", reason=reason))
            continue
        got, want = outputs[spec.name], expected[spec.name]
        overflow = _overflow(native.get(spec.name), want)
        record = _judged(spec, case, got, want, _apart(want.shape, case, overflow), tolerances, use_native=use_native)
        records.append(_told_apart(record, case, got, want, overflow))
    return records


def _judged(
    spec: TensorSpec,
    case: CaseRecord,
    got: NDArray[np.generic],
    want: NDArray[np.generic],
    rows: Rows | None,
    tolerances: Tolerances,
    *,
    use_native: bool,
) -> OutputRecord:
    yardstick = case.yardsticks.get(spec.name)
    if yardstick is not None and max(yardstick.native or 0.0, yardstick.native_row or 0.0) > ILL_CONDITIONED:
        use_native = False  # the oracle leaves digits; that the source framework loses them excuses nobody

    def judge(**more: object) -> OutputRecord:
        return judge_output(
            spec.name,
            got,
            want,
            expected_dtype=spec.dtype,
            yardstick=yardstick,
            use_native=use_native,
            padded=rows,
            **more,  # type: ignore[arg-type]  # a tolerance, or nothing
        )

    record = judge()
    asked = tolerances.of(spec.name)
    if record.verdict != "pass" and asked.given:
        excused = judge(tolerance=asked)
        record = excused if excused.verdict == "pass" else record
    if rows is not None and bool(rows.all()) and record.verdict == "pass":
        record = msgspec.structs.replace(record, reason=EVERY_ROW)
    return msgspec.structs.replace(record, histogram=None)


def _told_apart(
    record: OutputRecord, case: CaseRecord, got: NDArray[np.generic], want: NDArray[np.generic], overflow: Rows | None
) -> OutputRecord:
    """Fill in what stands in the rows that decide nothing, by the reason."""
    if got.shape != want.shape:
        return msgspec.structs.replace(record, padded=None)
    found = {each.reason: apart_rows(want.shape, [each]) for each in case.apart} | {OVERFLOW: overflow}
    apart = {reason: padded_record(got, want, rows) for reason, rows in found.items() if rows is not None}
    return msgspec.structs.replace(record, padded=apart.pop(PADDED, None), apart=apart)
