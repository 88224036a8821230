"""Every known deviation shows, on each graph that meets its condition, and nowhere else on a grid of graphs."""

import itertools
import re
from importlib.metadata import version
from typing import Any

import numpy as np
from tests.harness.conformity.graphs import Arrays, Graph, reference

from crosshead.harness.conformity import KNOWN, known_deviations, read_features
from crosshead.harness.conformity.judging import Tolerance, judge_outputs
from crosshead.results import FeatureRecord

ONNX, ORT = version("onnx"), version("onnxruntime")
GRID = [
    Graph(opset, mask, boolean, causal, past, mode, softcap)
    for opset, (mask, boolean), causal, past, mode, softcap in itertools.product(
        (23, 24, 25),
        (("", False), ("LT", False), ("BHLT", True), ("L1", False), ("BHL1", True)),
        (False, True),
        (False, True),
        (None, 0, 2, 3),
        (False, True),
    )
]


def features(graph: Graph) -> FeatureRecord:
    (found,) = read_features(graph.model())
    return found


def off(got: Arrays, graph: Graph) -> list[int]:
    """Return the places of the outputs that are not what the function body gives."""
    places = {"Y": 0, "present_key": 1, "present_value": 2, "scores": 3}
    return [places[each.output] for each in judge_outputs(got, graph.expected(), Tolerance()) if each.reason]


def expected_off(backend: str, release: str, graph: Graph) -> set[int | None]:
    return {known.output for known in known_deviations(backend, release, features(graph))}


def ort(graph: Graph) -> Arrays | None:
    """Run on ONNX Runtime; None where it refuses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    model = graph.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    names = [value.name for value in model.graph.output]
    try:
        return dict(zip(names, session.run(names, graph.inputs()), strict=True))
    except Exception as error:
        if not re.search("inconsistent (total|q)_sequence_length", str(error)):
            raise
        return None


def test_the_reference_evaluator_is_off_where_it_is_known_to_be_and_nowhere_else() -> None:
    shown = 0
    for graph in GRID:
        wrong, known = off(reference(graph.model(), graph.inputs()), graph), expected_off("onnx-reference", ONNX, graph)
        if None in known:  # the mask: output, and scores after it
            assert 0 in wrong, graph
        else:
            assert set(wrong) == known, graph
        shown += bool(known)
    assert shown > 20


def test_onnx_runtime_is_off_where_it_is_known_to_be_and_nowhere_else() -> None:
    shown = refused = 0
    for graph in GRID:
        got = ort(graph)
        if got is None:
            refused += 1
            assert graph.mask.endswith("1"), graph
            continue
        known = expected_off("ort-cpu", ORT, graph)
        assert set(off(got, graph)) == known, graph
        shown += bool(known)
    assert shown > 20
    assert refused > 20


def test_ids_are_unique_and_every_entry_says_what_and_from_where() -> None:
    assert len({known.id for known in KNOWN}) == len(KNOWN)
    for known in KNOWN:
        assert re.fullmatch(r"[a-z0-9-]+", known.id)
        assert known.when
        assert known.sentence
        assert known.source
        for condition in known.when:
            assert set(condition) <= set(FeatureRecord.__struct_fields__)


def example(**fields: Any) -> FeatureRecord:
    return FeatureRecord(op="ai.onnx::Attention", opset=23, qk_output=0, softcap=True, **fields)


def test_versions_before_it_was_seen_and_after_it_was_mended_are_left_out() -> None:
    def ids(release: str) -> list[str]:
        return [known.id for known in known_deviations("onnx-reference", release, example())]

    assert ids("1.22.0") == []
    assert ids("1.23.2") == ids("1.23.10") == ids("2.0.0rc1") == ["reference-scores-capped"]
    (known,) = [known for known in KNOWN if known.id == "reference-scores-capped"]
    mended = type(known)(**{**vars(known), "fixed_in": "1.24.0"})
    assert mended.covers("1.23.9", example())
    assert not mended.covers("1.24.0", example())
    assert not mended.covers("", example())


def test_a_function_body_and_another_backend_have_nothing_of_it() -> None:
    assert known_deviations("onnx-reference", "1.23.2", example(expanded=True)) == []
    assert known_deviations("fake", "1.23.2", example()) == []


def test_the_function_body_is_what_it_is_held_against() -> None:
    graph = Graph(mask="LT")
    expected, inputs = graph.expected(), graph.inputs()
    scores = inputs["Q"] @ inputs["K"].swapaxes(-1, -2) / np.sqrt(inputs["Q"].shape[-1]) + inputs["mask"]
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(expected["Y"], weights @ inputs["V"], rtol=1e-5)
