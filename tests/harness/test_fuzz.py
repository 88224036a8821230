"""The search finds what plain cases miss, finds nothing on healthy backends, and is the same for the same seed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.graph_edits import GRAPH_EDITS
from tests.faults.in_process import exported_as, in_process

from crosshead.export.artifact import Artifact
from crosshead.export.stress_draws import StressDraws
from crosshead.harness import Plan
from crosshead.harness import fuzz as module
from crosshead.harness.errors import RequestError
from crosshead.harness.fuzz import Fuzzed, fuzz
from crosshead.results.fuzz import decode_fuzz
from crosshead.runtimes import Settings

SMALL: dict[str, Any] = {"d_model": 64, "num_heads": 4}


def search(tmp_path: Path, source: str, *, fault: str = "", tries: int = 60, **fields: Any) -> Fuzzed:
    fields = {"options": SMALL, "batches": (2,), "lengths": (9,), "threads": 1, **fields}
    plan = Plan(
        source=source,
        backends=fields.pop("backends", ("fake",)),
        settings=Settings(fake={"fault": fault} if fault else {}),
        out=tmp_path / "runs",
        **fields,
    )
    with in_process():
        return fuzz(plan, seconds=120.0, tries=tries)


@pytest.mark.parametrize("block", ["mha-causal", "mha-padded", "cross-attention"])
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, block: str) -> None:
    done = search(tmp_path, block, backends=("ort-cpu", "onnx-reference"), tries=40)
    assert done.record.finds == []
    assert done.record.verdict == "nothing-found"
    assert max(each.inputs for each in done.record.searched) > 10


@pytest.mark.parametrize(
    ("fault", "source", "form", "node"),
    [
        ("softmax-no-max", "mha", "decomposed", "node_scaled_dot_product_attention_probabilities"),
        ("padding-leak", "mha-padded", "standard", "node_scaled_dot_product_attention"),
    ],
)
def test_a_fault_that_plain_cases_miss_is_found(
    tmp_path: Path, fault: str, source: str, form: Any, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHRINK_BUDGET_S", 1.0)
    done = search(tmp_path, source, fault=fault, forms=(form,))
    (find,) = done.record.finds
    assert (find.backend, find.cause, find.node) == ("fake", "kernel", node)
    assert (done.folder / find.folder / "bundle" / "reproduce.py").is_file()
    written = decode_fuzz((done.folder / "fuzz.json").read_bytes())
    assert [each.number for each in written.finds] == [find.number]
    assert (done.folder / "fuzz.md").is_file()


def test_a_wrong_graph_that_plain_cases_miss_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINK_BUDGET_S", 1.0)
    edit = GRAPH_EDITS["softcap-after-mask"]
    with exported_as(edit.apply):
        options = SMALL | dict(edit.options)
        done = search(tmp_path, edit.block, options=options, forms=("decomposed",), backends=("ort-cpu",), tries=200)
    (find,) = done.record.finds
    assert (find.backend, find.cause) == ("", "graph")


def test_a_search_that_is_stopped_keeps_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module._Fuzz, "_explained", stop)
    done = search(tmp_path, "mha", fault="tf32", forms=("decomposed",))
    assert done.interrupted
    assert [find.backend for find in decode_fuzz((done.folder / "fuzz.json").read_bytes()).finds] == ["fake"]


def test_draws_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    done = search(tmp_path, "mha-padded", backends=("onnx-reference",), forms=("standard",), tries=1)
    artifact = Artifact.load(next((done.folder / "artifacts").iterdir()))
    first, again, other = (StressDraws(artifact, seed) for seed in (3, 3, 4))
    for number in range(20):
        one, two = first.draw(number), again.draw(number)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert one.idea == two.idea
            assert all(np.array_equal(one.inputs[name], two.inputs[name], equal_nan=True) for name in one.inputs)
    ideas = [{draw.idea for number in range(20) if (draw := each.draw(number))} for each in (first, other)]
    assert ideas[0] != ideas[1]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(RequestError, match="above 0"):
        fuzz(Plan(), seconds=0.0)
