"""The stage on y = x W and y = cumsum(x W), with backends that are functions in NumPy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tests.harness.conftest import WEIGHT

from crosshead.export.artifact import Arrays, Artifact
from crosshead.harness import laws
from crosshead.harness.accuracy import Limits, Visit
from crosshead.harness.cells import Cell
from crosshead.harness.examine import Subject
from crosshead.harness.judge import Tolerances
from crosshead.harness.laws import ask_laws
from crosshead.results import LawRecord
from crosshead.runtimes import BackendError, Settings, WorkerError, get_runtime

Array = NDArray[Any]
Backend = Callable[[Array], Array]
U = 2.0**-24


class Computed:
    """In the place of a runner."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls = 0

    def outputs(self, inputs: Arrays) -> Arrays:
        self.calls += 1
        return {"y": self._backend(np.asarray(inputs["x"]))}


@pytest.fixture
def ask(write_linear: Callable[..., Artifact], tmp_path: Path) -> Callable[..., dict[str, LawRecord]]:
    """A function that asks every law of a backend, and returns the records by law."""

    def asked(backend: Backend, *, runtime: str = "onnx-reference", summed: bool = False) -> dict[str, LawRecord]:
        artifact = write_linear(tmp_path)
        if summed:
            _sum_over_tokens(artifact)
        cell = Cell(artifact, get_runtime(runtime), "2x5", Settings(), timed=False, by_name=True)
        visited = Visit(cell, cell.record(status="ok"), outputs=tmp_path)
        subject = Subject(
            artifact=artifact,
            cell=cell,
            visits=(visited,),
            runner=Computed(backend),  # type: ignore[arg-type]  # all that is asked of it is outputs
            limits=Limits(1.0, None),
            scratch=tmp_path,
            tolerances=Tolerances(),
            seed=0,
        )
        return {law.law: law for law in ask_laws(subject).laws}

    return asked


def _sum_over_tokens(artifact: Artifact) -> None:
    """Let y = cumsum(x W) over the tokens."""
    model = onnx.load(artifact.model_path)
    model.graph.node[0].output[0] = "product"
    model.graph.node.append(helper.make_node("CumSum", ["product", "axis"], ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "axis"))
    artifact.model_path.write_bytes(model.SerializeToString())


def right(x: Array) -> Array:
    return np.asarray(x @ WEIGHT)


def leaking(share: float) -> Backend:
    """Every token sees a share of the last one."""
    return lambda x: np.asarray(right(x) + np.float32(share) * right(x[:, -1:]))


def leaking_once(share: float) -> Backend:
    """One number of the first token sees a share of the last token."""

    def backend(x: Array) -> Array:
        y = right(x)
        y[:, 0, 0] += np.float32(share) * y[:, -1, 0]
        return y

    return backend


def test_a_right_backend_keeps_every_law_that_there_is(ask: Callable[..., dict[str, LawRecord]]) -> None:
    laws = ask(right)
    assert set(laws) == {
        "same-input-twice",
        "call-independence",
        "batch-independence",
        "causality",
        "shorter-prefix",
        "token-permutation",
    }
    assert {law.verdict for law in laws.values()} == {"pass"}
    assert all(law.violation is not None and law.violation <= law.limit for law in laws.values())
    assert {law.reason for law in laws.values()} == {""}


def test_a_breach_says_by_how_much_and_that_the_graph_keeps_the_law(ask: Callable[..., dict[str, LawRecord]]) -> None:
    law = ask(leaking(1e-2))["causality"]
    assert law.verdict == "fail"
    assert law.violation is not None
    assert law.violation > 1e3
    assert "outputs do not move when later tokens do: output 'y' breaks that by" in law.reason
    assert law.reason.endswith("the graph keeps it in float64")


def test_a_small_breach_is_doubted_on_a_backend_that_nobody_measured(ask: Callable[..., dict[str, LawRecord]]) -> None:
    small = leaking_once(8 * U)
    assert ask(small)["causality"].verdict == "fail"
    doubted = ask(small, runtime="torch-compile")["causality"]
    assert doubted.verdict == "suspect"
    assert "yardsticks" in doubted.reason
    assert ask(leaking(1e-2), runtime="torch-compile")["causality"].verdict == "fail"


def test_a_backend_that_compiles_is_asked_at_no_other_size(ask: Callable[..., dict[str, LawRecord]]) -> None:
    laws = ask(right, runtime="torch-compile")
    assert laws["batch-independence"].violation is None
    assert laws["batch-independence"].reason == (
        "not asked: it is asked at other sizes, for which this backend would compile"
    )
    assert laws["causality"].violation == 0.0


def test_a_law_that_the_graph_breaks_itself_does_not_apply(ask: Callable[..., dict[str, LawRecord]]) -> None:
    law = ask(lambda x: np.asarray(right(x).cumsum(axis=1, dtype=np.float32)), summed=True)["token-permutation"]
    assert law.verdict == "pass"
    assert law.violation is None
    assert law.reason.startswith("does not apply: the graph itself breaks it in float64 as well, by ")


def test_rounding_in_another_order_is_no_breach(ask: Callable[..., dict[str, LawRecord]]) -> None:
    def another_order(x: Array) -> Array:
        return np.asarray(
            right(x) * np.float32(1 + 8 * U * (x.shape[0] == 1))
        )  # a kernel of its own for a batch of one

    assert ask(another_order)["batch-independence"].verdict == "pass"
    assert ask(lambda x: right(x) * np.float32(1 + 1e-4 * (x.shape[0] == 1)))["batch-independence"].verdict == "fail"


def test_what_a_backend_differs_from_itself_by_excuses_as_much(ask: Callable[..., dict[str, LawRecord]]) -> None:
    rng = np.random.default_rng(0)

    def noisy(x: Array) -> Array:
        signs = rng.choice([-1.0, 1.0], size=(*x.shape[:2], 3)).astype(np.float32)
        return np.asarray(right(x) + np.float32(1e-3) * signs)

    laws = ask(noisy)
    assert laws["same-input-twice"].verdict == "suspect"
    assert "the same inputs gave outputs up to" in laws["same-input-twice"].reason
    assert {law.verdict for name, law in laws.items() if name != "same-input-twice"} == {"pass"}


def test_a_backend_that_remembers_is_asked_nothing_else(ask: Callable[..., dict[str, LawRecord]]) -> None:
    before: list[Array] = []

    def stale(x: Array) -> Array:
        before.append(right(x))
        return before[-2] if len(before) > 1 and before[-2].shape == before[-1].shape else before[-1]

    laws = ask(stale)
    assert set(laws) == {"same-input-twice", "call-independence"}
    assert laws["call-independence"].verdict == "fail"


def test_what_a_backend_refuses_is_not_asked_and_a_lost_worker_is_doubted(
    ask: Callable[..., dict[str, LawRecord]],
) -> None:
    def picky(x: Array) -> Array:
        if x.shape[0] == 3:
            raise BackendError("no batch of 3")
        if x.shape[1] == 3:
            raise WorkerError("killed by SIGSEGV")
        return right(x)

    laws = ask(picky)
    assert laws["batch-independence"].reason == "not asked: no batch of 3"
    assert laws["batch-independence"].verdict == "pass"
    assert laws["shorter-prefix"].verdict == "suspect"
    assert "the worker was lost while it was asked: killed by SIGSEGV" in laws["shorter-prefix"].reason
    assert laws["token-permutation"].verdict == "pass"


def test_no_law_is_asked_of_a_large_output(
    ask: Callable[..., dict[str, LawRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "MOST_ELEMENTS", 29)  # y of the case 2x5 holds 2 x 5 x 3
    found = ask(right)
    assert len(found) > 1
    reason = "not asked: an output of the smallest case holds 30 elements; up to 29 are asked about"
    assert {law.reason for law in found.values()} == {reason}
    assert {law.violation for law in found.values()} == {None}
