"""The job: make the standard's cases, run them on every backend, judge, record."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crosshead.harness.accuracy import Limits
from crosshead.harness.cells import choose_backends
from crosshead.harness.conformity.asking import Asker, LostBackendError
from crosshead.harness.conformity.judging import Judged, Tolerance, judge_outputs, same
from crosshead.harness.conformity.known import KnownDeviation, known_deviations
from crosshead.harness.conformity.request import ConformPlan
from crosshead.harness.conformity.standard_cases import CASE, StandardCase, StandardCases, make_cases
from crosshead.harness.errors import RequestError
from crosshead.harness.pipeline import Progress, silent
from crosshead.harness.plan import default_threads
from crosshead.harness.verdict import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS
from crosshead.results import (
    ConformBackend,
    ConformCase,
    ConformRecord,
    ConformResult,
    ConformStore,
    DisagreementRecord,
    KnownRecord,
    Notice,
    RunResult,
    conformity_summary,
    new_run_id,
    read_environment,
    scrub,
)
from crosshead.runtimes import (
    RUNTIMES,
    Available,
    BackendError,
    PlacementError,
    Runtime,
    UnsupportedError,
    WorkerError,
)

if TYPE_CHECKING:
    from crosshead.export.artifact import Arrays

_LEFT_OUT_NAMED = 3


@dataclass(frozen=True)
class Conformed:
    """What it leaves.

    Attributes:
        record: as it stands in `conform.json`.
        folder: the results folder.
        interrupted: whether the person stopped it (Ctrl-C); what was finished is in the record.
    """

    record: ConformRecord
    folder: Path
    interrupted: bool

    def exit_status(self, *, strict: bool) -> int:
        """Return 1 where something is off that is not known (`strict`: that is known, too), 130 where stopped."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        failed = self.record.verdict == "fail" or (strict and self.record.verdict == "suspect")
        return EXIT_FAIL if failed else EXIT_PASS


def conform(plan: ConformPlan, progress: Progress = silent) -> Conformed:
    """Run the standard's own cases on every backend.

    Raises:
        RequestError, RuntimesError, ResultsError: the request cannot be carried out; one line.
    """
    return _Conformity(plan, progress).carry_out()


class _Conformity:
    """One such run under way."""

    def __init__(self, plan: ConformPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._tolerance = Tolerance(plan.rtol, plan.atol)
        threads = plan.threads if plan.threads is not None else default_threads()
        self._settings = msgspec.structs.replace(plan.settings, threads=threads)
        self._results: dict[str, dict[str, ConformResult]] = {}
        self._wrong: dict[tuple[str, str], Arrays] = {}
        self._cases: Sequence[StandardCase] = ()
        self._versions: dict[str, str] = {}

    def carry_out(self) -> Conformed:
        backends, notices = _graph_backends(self._plan.backends)
        self._versions = {runtime.name: _version_of(runtime) for runtime, _ in backends}
        now, began = datetime.now(UTC), time.perf_counter()
        record = ConformRecord(
            id="",
            crosshead=version("crosshead"),
            started=now.isoformat(timespec="seconds"),
            standard=f"onnx {version('onnx')}",
            match=self._plan.match,
            threads=self._settings.threads,
            rule=self._tolerance.rule(),
            environment=read_environment(_libraries(self._versions)),
            notices=notices,
        )
        store = ConformStore.create(self._plan.out, new_run_id(now, "conform"))
        interrupted = False
        try:
            with tempfile.TemporaryDirectory(prefix="crosshead-") as scratch:
                record = self._work(backends, record, store, Path(scratch))
        except KeyboardInterrupt:
            interrupted = True
            stopped = Notice(code="interrupted", message="stopped before the end", where="conform")
            record = self._filled(msgspec.structs.replace(record, notices=[*record.notices, stopped]))
        except BaseException:
            if not self._results:
                store.discard()
            raise
        wall_s = time.perf_counter() - began
        record = store.update(msgspec.structs.replace(record, wall_s=wall_s, finished=not interrupted))
        store.write_summary(conformity_summary(record))
        return Conformed(record, store.path, interrupted)

    def _work(
        self, backends: Sequence[tuple[Runtime, bool]], record: ConformRecord, store: ConformStore, scratch: Path
    ) -> ConformRecord:
        self._progress("making the standard's cases")
        folder = scratch / "cases"
        folder.mkdir()
        found = make_cases(self._plan.match, folder)
        self._cases = found.cases
        if not found.cases:
            name, why = next(iter(found.left_out.items()))
            raise RequestError(f"none of the {len(found.left_out)} cases found can be run here: {name}: {why}")
        record = msgspec.structs.replace(record, notices=[*record.notices, *_left_out(found)])
        limits = Limits(self._plan.cell_timeout_s, self._plan.memory_limit_bytes)
        for runtime, by_name in backends:
            own = scratch / runtime.name
            own.mkdir()
            with Asker(runtime, self._settings, limits, own) as asker:
                for index, case in enumerate(self._cases):
                    self._progress(f"{runtime.name}: {len(self._cases)} cases", index / len(self._cases))
                    result = self._ask(asker, runtime.name, case, by_name)
                    self._results.setdefault(case.name, {})[runtime.name] = result
            record = store.update(self._filled(record))
        return msgspec.structs.replace(record, verdict=_verdict(record))

    def _ask(self, asker: Asker, backend: str, case: StandardCase, by_name: bool) -> ConformResult:
        artifact = case.artifact()
        try:
            got = asker.outputs(artifact)
        except LostBackendError as error:
            if by_name and isinstance(error.cause, BackendError):
                raise RequestError(f"{backend} does not run a graph of one Identity: {error.cause}") from error
            return _failure(backend, case, error.cause)
        except (BackendError, WorkerError) as error:
            return _failure(backend, case, error)
        judged = judge_outputs(got, artifact.expected(CASE), self._tolerance)
        off = [each for each in judged if each.reason]
        if not off:
            return _result(backend, max(judged, key=lambda each: each.times_tolerance), "pass")
        self._wrong[case.name, backend] = got
        deviations = known_deviations(backend, self._versions[backend], case.features)
        covered = {each.output: _covering(deviations, case, each.output) for each in off}
        new = [each for each in off if covered[each.output] is None]
        shown = max(new or off, key=lambda each: each.times_tolerance)
        deviation = covered[shown.output]
        return _result(backend, shown, "wrong", known="" if deviation is None else deviation.id)

    def _filled(self, record: ConformRecord) -> ConformRecord:
        """Return the record with all that was found so far."""
        cases = [
            ConformCase(name=case.name, features=case.features, results=list(self._results.get(case.name, {}).values()))
            for case in self._cases
        ]
        return msgspec.structs.replace(
            record,
            cases=cases,
            backends=[_counted(name, told, cases) for name, told in self._versions.items()],
            disagreements=[each for case in self._cases for each in self._disagreements(case)],
            known=_known_records(self._versions, cases),
        )

    def _disagreements(self, case: StandardCase) -> list[DisagreementRecord]:
        """Return the pairs of backends that ran a case and do not give the same, one of them wrong at least."""
        ran = [each for each in self._results.get(case.name, {}).values() if each.status in ("pass", "wrong")]
        found = []
        for a, b in combinations(ran, 2):
            wrong = [each for each in (a, b) if each.status == "wrong"]
            if len(wrong) == 2:
                first, second = (self._wrong[case.name, each.backend] for each in wrong)
                if same(first, second, case.artifact().expected(CASE), self._tolerance):
                    continue
            supported = {(1, True): b.backend, (1, False): a.backend}.get((len(wrong), a.status == "wrong"), "")
            known = wrong[0].known if wrong and all(each.known for each in wrong) else ""
            if wrong:
                found.append(
                    DisagreementRecord(case=case.name, a=a.backend, b=b.backend, supported=supported, known=known)
                )
        return found


def _graph_backends(names: Sequence[str]) -> tuple[list[tuple[Runtime, bool]], list[Notice]]:
    """Return the backends that execute graphs, each with whether it was asked for by name, and notices."""
    chosen, notices = choose_backends(names)
    graph = {runtime.name for runtime in RUNTIMES if runtime.capabilities.executes == "graph"}
    for runtime, by_name in chosen:
        if by_name and runtime.name not in graph:
            raise RequestError(
                f"{runtime.name} runs PyTorch source, and the standard's cases are graphs; backends that run graphs: "
                f"{', '.join(sorted(graph))}"
            )
    kept = [pair for pair in chosen if pair[0].name in graph]
    if not kept:
        raise RequestError("no backend here runs graphs; `crosshead backends` says what is missing")
    return kept, [notice for notice in notices if notice.where in graph]


def _version_of(runtime: Runtime) -> str:
    found = runtime.probe()
    return found.version if isinstance(found, Available) else ""


def _libraries(backends: dict[str, str]) -> dict[str, str]:
    found = {}
    for name in ("crosshead", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "ml-dtypes"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found | {name: told for name, told in backends.items() if told and told not in found.values()}


def _left_out(found: StandardCases) -> list[Notice]:
    if not found.left_out:
        return []
    some = [f"{name} ({why})" for name, why in list(found.left_out.items())[:_LEFT_OUT_NAMED]]
    more = ", …" if len(found.left_out) > _LEFT_OUT_NAMED else ""
    message = f"{len(found.left_out)} cases were left out, which are not of plain tensors: {', '.join(some)}{more}"
    return [Notice(code="case-left-out", message=message, where=found.standard)]


def _failure(backend: str, case: StandardCase, error: BackendError | WorkerError) -> ConformResult:
    reason = scrub(" ".join(str(error).split()))
    if isinstance(error, UnsupportedError | PlacementError):
        if case.features.op.rpartition(":")[2] not in reason and case.features.dtype not in reason:
            reason = f"{reason} ({case.features.op})"
        return ConformResult(backend=backend, status="unsupported", reason=reason)
    tail = scrub(error.stderr_tail) if isinstance(error, WorkerError) else ""
    return ConformResult(backend=backend, status="failed", reason=reason, stderr_tail=tail)


def _result(backend: str, judged: Judged, status: str, known: str = "") -> ConformResult:
    return ConformResult(
        backend=backend,
        status="pass" if status == "pass" else "wrong",
        known=known,
        reason=judged.reason,
        output=judged.output,
        times_tolerance=judged.times_tolerance,
        max_abs=judged.max_abs,
        rel_l2=judged.rel_l2,
        off=judged.off,
        elements=judged.elements,
        worst=judged.worst,
    )


def _covering(deviations: Sequence[KnownDeviation], case: StandardCase, output: str) -> KnownDeviation | None:
    """Return the known deviation that explains that an output is off."""
    place = case.outputs.get(output)
    return next((each for each in deviations if each.output is None or each.output == place), None)


def _counted(name: str, told: str, cases: Sequence[ConformCase]) -> ConformBackend:
    results = [result for case in cases for result in case.results if result.backend == name]
    count = {status: sum(result.status == status for result in results) for status in _STATUSES}
    return ConformBackend(
        name=name,
        version=told,
        passed=count["pass"],
        wrong=count["wrong"],
        unsupported=count["unsupported"],
        failed=count["failed"],
        known=sum(bool(result.known) for result in results),
        left=len(cases) - len(results),
    )


_STATUSES = ("pass", "wrong", "unsupported", "failed")


def _known_records(versions: dict[str, str], cases: Sequence[ConformCase]) -> list[KnownRecord]:
    """Return the known deviations that some case meets the condition of, with the cases that show them or do not."""
    found: dict[str, KnownRecord] = {}
    for case in cases:
        for result in case.results:
            for each in known_deviations(result.backend, versions[result.backend], case.features):
                record = found.setdefault(
                    each.id,
                    KnownRecord(
                        id=each.id, backend=each.backend, since=each.since, message=each.sentence, source=each.source
                    ),
                )
                if result.known == each.id:
                    record.seen.append(case.name)
                elif result.status == "pass":
                    record.gone.append(case.name)
    return list(found.values())


def _verdict(record: ConformRecord) -> RunResult:
    if any(each.wrong + each.failed > each.known for each in record.backends):
        return "fail"
    judged = any(each.passed for each in record.backends)
    return "pass" if judged and not any(each.known for each in record.backends) else "suspect"
