"""A second judgement of fp16: against an oracle on inputs and weights that are rounded already.

Rounding the inputs costs an fp16 model most of its digits, and sums in fp16 hide under that. Against the graph's own
float64 value on rounded inputs and weights only the arithmetic shows, and PyTorch's arithmetic (sums in float32) is the
measure (docs/method.md, "fp16 and bf16").
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from numpy.typing import NDArray

from crosshead.export.artifact import Artifact, CaseRecord, FormError, Readable, Yardstick, unpack_arrays
from crosshead.export.error import relative_l2_both
from crosshead.harness.accuracy import NATIVE_BACKEND, Visit
from crosshead.harness.metrics import is_floating
from crosshead.harness.modes import MathModes
from crosshead.harness.padding import padded_positions, unpadded
from crosshead.results import CellRecord, OutputRecord

PASS_TIMES: Final = 3.0
"""Up to so many times PyTorch's own error the arithmetic is that of fp16 with sums in float32."""

ASK_TIMES: Final = 2.5
"""From here on (healthy backends: to 2.0) a math mode is looked for, and an error that one explains is told."""

FLOOR_SHARE: Final = 0.25
"""PyTorch's own error counts as at least this share of a unit roundoff: an output that is only copied has none."""


class HalfJudge:
    """Judges the outputs of fp16 artifacts a second time. Float64 outputs are kept, one set a case."""

    def __init__(self) -> None:
        self._oracles: dict[str, Mapping[str, NDArray[Any]] | None] = {}

    def filled(
        self, artifacts: Sequence[Artifact], source: Artifact, case: str, outputs: Mapping[str, Readable]
    ) -> list[Artifact]:
        """Write PyTorch's own error on rounded inputs and weights into the yardsticks of the fp16 artifacts.

        Args:
            artifacts: all artifacts of the run.
            source: the artifact whose module gave `outputs`.
            case: the case.
            outputs: what the module gave at its own precision, by output name.
        """
        want = self._oracle(source, case)
        if want is None:
            return list(artifacts)
        padded = padded_positions(source, case, outputs)
        native = {
            name: relative_l2_both(got, want[name], unpadded(padded.get(name)))[0]
            for name, got in outputs.items()
            if name in want and is_floating(got) and got.shape == want[name].shape
        }
        known = {name: error for name, error in native.items() if error < float("inf")}
        return [
            _with_native(artifact, case, known) if artifact.manifest.precision == "fp16" else artifact
            for artifact in artifacts
        ]

    def judged(self, visited: Visit, artifact: Artifact) -> CellRecord:
        """Return the record of a judged cell, its outputs doubted where their arithmetic is coarser than fp16's."""
        record = visited.record
        name, case = visited.cell.runtime.name, visited.cell.case
        if visited.outputs is None or name == NATIVE_BACKEND or artifact.manifest.precision != "fp16":
            return record
        want = self._oracle(artifact, case)
        if want is None:
            return record
        got = unpack_arrays(visited.outputs)
        padded = padded_positions(artifact, case, got)
        judged: list[OutputRecord] = []
        for output in record.outputs:
            yardstick = artifact.case(case).yardsticks.get(output.name)
            if (
                yardstick is None
                or yardstick.native_rounded is None
                or output.rule != "yardstick"
                or got[output.name].shape != want[output.name].shape
            ):
                judged.append(output)
                continue
            error, _ = relative_l2_both(got[output.name], want[output.name], unpadded(padded.get(output.name)))
            times = error / max(yardstick.native_rounded, FLOOR_SHARE * yardstick.unit_roundoff)
            told = msgspec.structs.replace(output, times_native=times)
            if output.verdict == "pass" and times > ASK_TIMES:
                told = self._doubted(told, times, MathModes(artifact, case, got, want))
            judged.append(told)
        return msgspec.structs.replace(record, outputs=judged)

    def _doubted(self, output: OutputRecord, times: float, modes: MathModes) -> OutputRecord:
        sentence = modes.sentence("the error")
        if times <= PASS_TIMES and sentence is None:
            return output
        reason = (
            f"on inputs and weights rounded to fp16 the error is {times:.2g} times PyTorch's own (limit {PASS_TIMES:g})"
        )
        reason += (
            f": {sentence}" if sentence is not None else ": its arithmetic is coarser than fp16 with sums in float32"
        )
        return msgspec.structs.replace(output, verdict="suspect", reason=reason)

    def _oracle(self, artifact: Artifact, case: str) -> Mapping[str, NDArray[Any]] | None:
        """Return the float64 outputs on rounded inputs and weights; None where there is no such measure.

        One graph stands for all of fp16, whose float64 verdicts say that they are one function.
        """
        manifest = artifact.manifest
        proved = manifest.graph.verdict in ("pass", "weak")
        if manifest.precision != "fp16" or not proved or artifact.case(case).noise:
            return None
        if case not in self._oracles:
            import onnx

            from crosshead.export.float64 import evaluate_float64

            try:
                model = onnx.load(artifact.model_path)
                self._oracles[case] = evaluate_float64(model, artifact.inputs(case))
            except FormError:
                self._oracles[case] = None
        return self._oracles[case]


def _with_native(artifact: Artifact, case: str, native: Mapping[str, float]) -> Artifact:
    def filled(record: CaseRecord) -> CaseRecord:
        yardsticks: dict[str, Yardstick] = {
            name: msgspec.structs.replace(yardstick, native_rounded=native.get(name, yardstick.native_rounded))
            for name, yardstick in record.yardsticks.items()
        }
        return msgspec.structs.replace(record, yardsticks=yardsticks) if record.name == case else record

    cases = tuple(map(filled, artifact.manifest.cases))
    return artifact.with_manifest(msgspec.structs.replace(artifact.manifest, cases=cases))
