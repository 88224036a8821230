"""Which cells a plan means: (artifact, backend, case), and which of them are timed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crosshead.export.artifact import Artifact
from crosshead.harness.errors import RequestError
from crosshead.results import CellRecord, Notice
from crosshead.runtimes import RUNTIMES, Available, Runtime, Settings, Unavailable, get_runtime


@dataclass(frozen=True)
class Cell:
    """One (artifact, case, backend, settings).

    Attributes:
        artifact: what is run; for a backend that executes the module, the artifact that carries its weights.
        runtime: the backend.
        case: name of a case that the artifact carries.
        settings: how it is run.
        timed: whether its latency is asked for.
        by_name: whether the backend was asked for by name (then what it cannot run is an error, not a line).
        source_folder: where a user's factory stands, for backends that execute the module.
        cache_folder: where a backend that compiles keeps what it made, for all processes of the run.
    """

    artifact: Artifact
    runtime: Runtime
    case: str
    settings: Settings
    timed: bool
    by_name: bool
    source_folder: Path | None = None
    cache_folder: Path | None = None

    @property
    def label(self) -> str:
        """`backend/artifact`, as in `CellRecord.label`."""
        return f"{self.runtime.name}/{self.artifact.id}"

    def record(self, **fields: object) -> CellRecord:
        """Return the cell's record with `fields` filled in (a status is needed)."""
        settings = {
            name: getattr(self.settings, name)
            for name in self.settings.__struct_fields__
            if name not in ("threads", "fake")
        }
        settings |= {f"fake.{name}": value for name, value in self.settings.fake.items()}
        return CellRecord(
            artifact=self.artifact.id,
            backend=self.runtime.name,
            case=self.case,
            threads=self.settings.threads,
            settings=settings,
            **fields,  # type: ignore[arg-type]  # checked by the record itself
        )


def choose_backends(names: Sequence[str]) -> tuple[list[tuple[Runtime, bool]], list[Notice]]:
    """Return the backends to use, each with whether it was asked for by name, and a notice for each one missing.

    Raises:
        UnknownBackendError: no backend of that name.
        RequestError: a backend asked for by name is not there.
    """
    chosen: list[tuple[Runtime, bool]] = []
    notices: list[Notice] = []
    for name in dict.fromkeys(names):
        if name != "all":
            runtime = get_runtime(name)
            found = runtime.probe()
            if isinstance(found, Unavailable):
                raise RequestError(f"backend {name} is not available here: {found.reason}; {found.remedy}")
            chosen.append((runtime, True))
    if "all" in names:
        for runtime in RUNTIMES:
            if not runtime.capabilities.in_all or any(runtime is other for other, _ in chosen):
                continue
            found = runtime.probe()
            if isinstance(found, Available):
                chosen.append((runtime, False))
            else:
                message = f"left out: {found.reason}; {found.remedy}"
                notices.append(Notice(code="backend-missing", message=message, where=runtime.name))
    order = [runtime.name for runtime in RUNTIMES]
    return sorted(chosen, key=lambda pair: order.index(pair[0].name)), notices


def make_cells(
    artifacts: Sequence[Artifact],
    backends: Iterable[tuple[Runtime, bool]],
    settings: Settings,
    *,
    source_folder: Path | None,
    cache_folder: Path | None = None,
    timed: bool,
) -> tuple[list[Cell], list[CellRecord]]:
    """Return the cells to run, and finished records for those that a backend declares it cannot take.

    A backend that executes the module gets one cell a case and precision, since the form of the graph means nothing
    to it.
    """
    cells: list[Cell] = []
    refused: list[CellRecord] = []
    for runtime, by_name in backends:
        modules_seen: set[tuple[str, str]] = set()
        for artifact in artifacts:
            for case in artifact.manifest.cases:
                if runtime.capabilities.executes == "module":
                    key = (artifact.manifest.precision, case.name)
                    if key in modules_seen or (artifact.manifest.source.factory is None and not by_name):
                        continue
                    modules_seen.add(key)
                cell = Cell(
                    artifact=artifact,
                    runtime=runtime,
                    case=case.name,
                    settings=settings,
                    timed=timed and (by_name or runtime.capabilities.timed_in_all),
                    by_name=by_name,
                    source_folder=source_folder,
                    cache_folder=cache_folder,
                )
                reason = refusal(cell)
                if reason is None:
                    cells.append(cell)
                else:
                    refused.append(cell.record(status="unsupported", reason=reason))
    return cells, refused


def refusal(cell: Cell) -> str | None:
    """Say why the backend declares that it cannot take the cell; None where it declares nothing of the kind."""
    can, manifest = cell.runtime.capabilities, cell.artifact.manifest
    if manifest.precision not in can.precisions:
        return f"{cell.runtime.name} takes {', '.join(can.precisions)}; the artifact is {manifest.precision}"
    if can.executes == "module":
        if manifest.source.factory is None:
            return f"{cell.runtime.name} runs PyTorch source; a bare .onnx has none"
        return None
    if can.opsets is not None and not can.opsets[0] <= manifest.opset <= can.opsets[1]:
        return f"{cell.runtime.name} takes opsets {can.opsets[0]} to {can.opsets[1]}; the artifact has {manifest.opset}"
    return None
