"""How many planted faults are caught, how many of them named right, and how many healthy cells raise an alarm?

    .venv/bin/python -m benchmarks.faults [--polygraphy] [--seed N] [WORD ...]

Examines all of `tests/faults/table.py` as `crosshead compare` does, or what has one of the words in its name
("math-mode", "healthy", "bf16"). `make test` runs a part of it.

With `--polygraphy` the same outputs are judged by the default comparison of Polygraphy as well
(`SimpleCompareFunc`: rtol 1e-5, atol 1e-5, element by element), against the same float64 oracle: on the cases alone,
which is what Polygraphy is usually given, and on the stress set too, which was made for another judge. It is no
dependency; install it with `.venv/bin/python -m pip install polygraphy==0.53.6`.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tests.faults.bench import Finding, Subject, chosen, examine
from tests.faults.table import HEALTHY, PLANTED

from crosshead.export.artifact import Artifact, unpack_arrays
from crosshead.runtimes import messages

Arrays = Mapping[str, NDArray[Any]]
Same = Callable[[Arrays, Arrays], bool]
KINDS: Final = ("graph", "kernel", "math-mode", "nondeterminism", "data")
PRECISIONS: Final = ("fp32", "fp16", "bf16")


@dataclass
class Other:
    """What the other comparison says of one subject's outputs.

    Attributes:
        same: the comparison.
        backends: those that are examined; what else runs is PyTorch, for the yardstick.
        cases: by artifact, backend and case: whether it calls the outputs the same.
        stressed: likewise, of the stress set.
    """

    same: Same | None
    backends: tuple[str, ...]
    cases: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    stressed: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def watch(self, opened: messages.Open, run: messages.Run) -> None:
        """Judge one run, unless its inputs are none of the artifact's cases: those are the laws' own."""
        if self.same is None or opened.runtime not in self.backends:
            return
        artifact = Artifact.load(Path(opened.artifact))
        manifest = artifact.manifest
        for found, cases in ((self.cases, manifest.cases), (self.stressed, manifest.stress_cases)):
            for case in cases:
                key = (artifact.id, opened.runtime, case.name)
                if key not in found and artifact.inputs_path(case.name).resolve() == Path(run.inputs):
                    found[key] = self.same(unpack_arrays(Path(run.outputs)), artifact.expected(case.name))


@dataclass
class Counts:
    """Of one kind of fault, or of the healthy cells of one precision; all of `of`.

    Attributes:
        of: how many there are.
        caught: of how many anything was called wrong.
        named: faults of which every cause that was named is of their kind.
        other: how many the other comparison calls wrong, on the cases.
        other_stressed: likewise, on the cases and the stress set together; of healthy cells, too, although right
            implementations may differ there (at padded positions, beyond fp16).
    """

    of: int = 0
    caught: int = 0
    named: int = 0
    other: int = 0
    other_stressed: int = 0


def main() -> None:
    """Examine and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--polygraphy", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs")
    given = parser.parse_args()
    same = _polygraphy() if given.polygraphy else None
    counts: dict[str, Counts] = defaultdict(Counts)
    began = time.perf_counter()
    with _quietly():
        for subject in chosen((*PLANTED, *HEALTHY), given.words):
            other = Other(same, subject.backends)
            started = time.perf_counter()
            finding = examine(subject, other.watch, given.seed)
            assert finding.moved is not False, f"{subject.name} changes nothing that is computed"
            count(counts, subject, finding, other)
            show(subject, finding, other, time.perf_counter() - started)
    show_counts(counts, time.perf_counter() - began, with_other=same is not None)


def count(counts: dict[str, Counts], subject: Subject, finding: Finding, other: Other) -> None:
    """Add what was found of one subject."""
    if subject.kind == "healthy":
        found = counts[f"healthy {subject.precision}"]
        found.of += finding.cells
        found.caught += len(finding.accused)
        found.other += len(_differing(other.cases))
        found.other_stressed += len(_differing(other.cases) | _differing(other.stressed))
        return
    found = counts[subject.kind]
    found.of += 1
    found.caught += finding.caught
    found.named += finding.kinds == (subject.kind,)
    found.other += bool(_differing(other.cases))
    found.other_stressed += bool(_differing(other.cases) or _differing(other.stressed))


def _differing(found: Mapping[tuple[str, str, str], bool]) -> set[tuple[str, str]]:
    """Return artifact and backend of every output that is not called the same."""
    return {(artifact, backend) for (artifact, backend, _), same in found.items() if not same}


def show(subject: Subject, finding: Finding, other: Other, spent_s: float) -> None:
    """Print one line."""
    healthy = subject.kind == "healthy"
    right = not finding.caught if healthy else finding.kinds == (subject.kind,)
    said = ", ".join(finding.kinds) or ("nothing is wrong" if not finding.caught else "no cause")
    by = f"; by {', '.join(finding.evidence[:2])}" if finding.evidence else ""
    wrong = sum(not same for same in other.cases.values())
    theirs = "" if other.same is None else f"; Polygraphy: {wrong} of {len(other.cases)} cases differ"
    print(f"{'  ' if right else '! '}{subject.name:56} {said}{by}{theirs} ({spent_s:.1f} s)", flush=True)


def show_counts(counts: Mapping[str, Counts], spent_s: float, *, with_other: bool) -> None:
    """Print the two tables."""
    faults = {kind: counts[kind] for kind in KINDS if kind in counts}
    healthy = {name: counts[f"healthy {name}"] for name in PRECISIONS if f"healthy {name}" in counts}
    head = f"{'caught':>8}{'named':>8}" + (f"{'Polygraphy':>12}{'+ stress':>10}" if with_other else "")
    print(f"\n{'planted faults':16}{'there':>7}{head}")
    for kind, found in (*faults.items(), ("all", _sum(faults))):
        theirs = f"{found.other:12}{found.other_stressed:10}" if with_other else ""
        print(f"{kind:16}{found.of:7}{found.caught:8}{found.named:8}{theirs}")
    head = f"{'alarms':>8}{'':8}" + (f"{'Polygraphy':>12}{'+ stress':>10}" if with_other else "")
    print(f"\n{'healthy cells':16}{'there':>7}{head}")
    for precision, found in (*healthy.items(), ("all", _sum(healthy))):
        theirs = f"{found.other:12}{found.other_stressed:10}" if with_other else ""
        print(f"{precision:16}{found.of:7}{found.caught:8}{'':8}{theirs}")
    print(f"\n{spent_s:.0f} s")


def _sum(counts: Mapping[str, Counts]) -> Counts:
    return Counts(
        *(sum(getattr(each, name) for each in counts.values()) for name in Counts.__dataclass_fields__)  # in order
    )


def _polygraphy() -> Same:
    try:
        comparator = import_module("polygraphy.comparator")
        logger = import_module("polygraphy.logger").G_LOGGER
    except ImportError:
        sys.exit("polygraphy is not installed; .venv/bin/python -m pip install polygraphy==0.53.6")
    logger.module_severity = logger.CRITICAL
    compare = comparator.SimpleCompareFunc()

    def same(got: Arrays, want: Arrays) -> bool:
        """Whether its default comparison calls all outputs the same; both as float32, since it takes no bfloat16."""
        results = [
            comparator.IterationResult({name: _single(array) for name, array in arrays.items()}, runner_name=runner)
            for runner, arrays in (("backend", got), ("oracle", want))
        ]
        return all(bool(each) for each in compare(*results).values())

    return same


def _single(array: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32) if array.dtype.kind not in "iub" else array


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch's exporter and NumPy from filling the screen: NaN and Inf are planted here."""
    import logging
    import warnings

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


if __name__ == "__main__":
    main()
