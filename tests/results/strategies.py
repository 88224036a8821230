"""Hypothesis strategies for records, made from the types of their fields, and one run to render."""

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from crosshead.results import (
    SCHEMA,
    ArtifactRecord,
    CellRecord,
    ComparisonRecord,
    EnvironmentRecord,
    GraphRecord,
    LatencyRecord,
    OutputRecord,
    PlanRecord,
    RunRecord,
)


def records(record: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any instance of a record type; its numbers may be infinite or NaN, and its text anything that UTF-8 can hold."""
    hints = typing.get_type_hints(record)
    fields = {name: st.just(SCHEMA) if name == "schema" else _values(kind) for name, kind in hints.items()}
    return st.builds(record, **fields)


def _values(kind: Any) -> st.SearchStrategy[Any]:
    union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    members = typing.get_args(kind) if union else (kind,)
    # Where a field takes text as well, "NaN" is text: such a field holds finite numbers only.
    floats = st.floats(allow_nan=False, allow_infinity=False) if str in members else st.floats()
    simple: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(2**53), 2**53),
        float: floats,
        str: st.text(max_size=8) | st.sampled_from(["NaN", "Infinity", "/home/jane/x.onnx"]),
        type(None): st.none(),
    }
    return st.one_of(*(simple[member] if member in simple else _compound(member) for member in members))


def _compound(kind: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(_values(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.text(max_size=4), _values(arguments[1]), max_size=2)
    assert issubclass(kind, msgspec.Struct)
    return records(kind)


def plan(**fields: Any) -> PlanRecord:
    known: dict[str, Any] = {
        "source": "mha",
        "backends": ["torch-eager", "ort-cpu"],
        "forms": ["standard", "decomposed"],
        "precisions": ["fp32"],
        "cases": ["1x128"],
        "threads": 2,
        "processes": 5,
        "time_budget_s": 20.0,
        "seed": 0,
    }
    return PlanRecord(**(known | fields))


def environment(**fields: Any) -> EnvironmentRecord:
    known: dict[str, Any] = {
        "os": "Linux",
        "kernel": "6.1.0",
        "machine": "x86_64",
        "cpu_model": "Some Processor 9000",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "python": "3.11.7",
        "versions": {"onnxruntime": "1.32.0", "torch": "2.13.0"},
    }
    return EnvironmentRecord(**(known | fields))


def artifact(
    form: str = "standard", opset: int = 23, graph: GraphRecord | None = None, **fields: Any
) -> ArtifactRecord:
    known: dict[str, Any] = {
        "id": f"mha-{form}-{opset}-fp32",
        "path": f"artifacts/mha-{form}-{opset}-fp32/model.onnx",
        "sha256": "00",
        "source": "mha",
        "exporter": "torch.onnx",
        "exporter_version": "2.13.0",
        "opset": opset,
        "form": form,
        "precision": "fp32",
        "ops": {"::Attention": 1, "::MatMul": 4, "::Add": 4},
        "graph": graph or GraphRecord(verdict="pass", rel_l2=1.1e-16, literal_sensitivity=0.0, parameters_equal=True),
    }
    return ArtifactRecord(**(known | fields))


def output(**fields: Any) -> OutputRecord:
    known: dict[str, Any] = {
        "name": "output",
        "verdict": "pass",
        "rule": "yardstick",
        "max_abs": 1.2e-6,
        "rel_l2": 3.8e-7,
        "times_expected": 0.93,
        "yardstick": 4.1e-7,
    }
    return OutputRecord(**(known | fields))


def latency(median_s: float = 1.42e-3, **fields: Any) -> LatencyRecord:
    known: dict[str, Any] = {
        "median_s": median_s,
        "ci_low_s": 0.99 * median_s,
        "ci_high_s": 1.013 * median_s,
        "p90_s": 1.1 * median_s,
        "missing_samples": {"p99": 359, "p999": 4503},
        "samples": 100,
        "processes": 5,
        "process_medians_s": [median_s] * 5,
        "first_call_s": 9.1e-3,
        "session_s": 0.25,
        "import_s": 0.5,
    }
    return LatencyRecord(**(known | fields))


def cell(
    backend: str = "ort-cpu", artifact: str = "mha-standard-23-fp32", case: str = "1x128", **fields: Any
) -> CellRecord:
    known: dict[str, Any] = {
        "artifact": artifact,
        "backend": backend,
        "case": case,
        "threads": 2,
        "status": "ok",
        "outputs": [output()],
    }
    return CellRecord(**(known | fields))


def run(**fields: Any) -> RunRecord:
    known: dict[str, Any] = {
        "id": "2026-11-30T20-15-03-mha",
        "crosshead": "0.1.0",
        "started": "2026-11-30T20:15:03+00:00",
        "finished": True,
        "verdict": "pass",
        "plan": plan(),
        "environment": environment(),
    }
    return RunRecord(**(known | fields))


def full_run(**fields: Any) -> RunRecord:
    """A run with a baseline, a faster cell, one that fails, and one each of failed, unsupported and void."""
    eager = cell("torch-eager", latency=latency(1.81e-3))
    fast = cell("ort-cpu", latency=latency(1.42e-3))
    wrong = output(verdict="fail", rel_l2=float("inf"), times_expected=4.2e5, reason="NaN where the oracle has none")
    decomposed = "mha-decomposed-18-fp32"
    known: dict[str, Any] = {
        "verdict": "fail",
        "artifacts": [artifact(), artifact("decomposed", 18)],
        "cells": [
            eager,
            fast,
            cell("onnx-reference", outputs=[wrong]),
            cell("fake", status="failed", reason="killed by signal 11 (SIGSEGV)", outputs=[]),
            cell("openvino", status="unsupported", reason="no kernel for Attention [fp16]", outputs=[]),
            cell("ort-cpu", decomposed, status="void", reason="the machine was disturbed", latency=latency(9.99e-3)),
        ],
        "comparisons": [
            ComparisonRecord(
                a=eager.label, b=fast.label, case="1x128", ratio=1.275, ci_low=1.25, ci_high=1.3, verdict="slower"
            )
        ],
    }
    return run(**(known | fields))
