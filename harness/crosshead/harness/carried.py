"""The cases that an artifact carries, held against its graph before anything is run: manifests get edited."""

import numpy as np

from crosshead.export.artifact import Artifact, ArtifactError, CaseRecord, Readable, input_fault, open_arrays
from crosshead.export.pair import Pair
from crosshead.harness.metrics import is_floating


def check_cases(artifact: Artifact) -> None:
    """Refuse an artifact whose cases could not be run, or whose outputs nothing would judge.

    Raises:
        ArtifactError: inputs that do not fit the graph, an output without an expectation, or one without a yardstick
            where its expectation would have one; in one line.
    """
    for case in artifact.manifest.all_cases:
        where = f"artifact {artifact.id}, case {case.name}"
        fault = input_fault(artifact.manifest.inputs, open_arrays(artifact.inputs_path(case.name)))
        if fault:
            raise ArtifactError(f"{where}: {fault}; export again")
        for name, expected in artifact.stored_expected(case.name).items():
            if _lacks_yardstick(case, name, expected):
                raise ArtifactError(
                    f"{where}: output {name!r} has no yardstick, so nothing would judge its rounding; export again"
                )


def _lacks_yardstick(case: CaseRecord, name: str, expected: Readable) -> bool:
    """Whether a yardstick is missing: there is none only where the oracle is zero, or NaN or Inf is in it."""
    if name in case.yardsticks or not is_floating(expected):
        return False
    blocks = [(np.isfinite(block.want).all(), block.want.any()) for block in Pair(expected, expected).blocks()]
    return all(finite for finite, _ in blocks) and any(some for _, some in blocks)
