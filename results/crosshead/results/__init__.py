"""Records, statistics, the store and reports. Free of torch; NumPy, SciPy and rich are imported when they are used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crosshead.results._cgroup import cpu_quota
    from crosshead.results._conformity_summary import conformity_summary
    from crosshead.results._conformity_table import render_conformity
    from crosshead.results._rows import baseline
    from crosshead.results.conformity import (
        CONFORM_SCHEMA,
        ConformBackend,
        ConformCase,
        ConformRecord,
        ConformResult,
        ConformRule,
        ConformStatus,
        ConformStore,
        DisagreementRecord,
        FeatureRecord,
        KnownRecord,
        decode_conformity,
        encode_conformity,
    )
    from crosshead.results.diagnosis import (
        BundleRecord,
        CulpritRecord,
        DiagnosisRecord,
        DiagnosisStore,
        RungRecord,
        SmallestRecord,
        TensorRecord,
        decode_diagnosis,
        encode_diagnosis,
    )
    from crosshead.results.diagnosis_text import diagnosis_summary, render_diagnosis
    from crosshead.results.disturbances import sample_notices
    from crosshead.results.encoding import decode_record, decode_run, encode_record, encode_run
    from crosshead.results.environment import CpuTimes, environment_notices, read_environment
    from crosshead.results.errors import ResultsError, StoreError, VersionError
    from crosshead.results.fuzz import (
        FUZZ_SCHEMA,
        FindRecord,
        FuzzRecord,
        FuzzStore,
        SearchedRecord,
        decode_fuzz,
        encode_fuzz,
    )
    from crosshead.results.fuzz_text import fuzz_summary, render_fuzz
    from crosshead.results.gpus import read_gpus
    from crosshead.results.latency import latency_record
    from crosshead.results.load_markdown import (
        load_summary,
    )
    from crosshead.results.load_point import (
        LoadSamples,
    )
    from crosshead.results.load_records import (
        LOAD_SCHEMA,
        KeptRecord,
        LoadCellRecord,
        LoadPlanRecord,
        LoadPointRecord,
        LoadRecord,
        ObjectiveRecord,
        ObjectiveResult,
        SaturationRecord,
        SpreadRecord,
    )
    from crosshead.results.load_store import (
        LoadStore,
        read_load,
        read_load_samples,
    )
    from crosshead.results.load_terminal import (
        render_load,
    )
    from crosshead.results.markdown import summary
    from crosshead.results.percentiles import percentile_or_missing, samples_needed
    from crosshead.results.privacy import scrub, scrub_record
    from crosshead.results.records import (
        SCHEMA,
        AgreementRecord,
        ArtifactRecord,
        Cause,
        CauseRecord,
        CellRecord,
        CellStatus,
        ComparisonRecord,
        EnvironmentRecord,
        GivenRecord,
        GpuRecord,
        GraphRecord,
        GraphResult,
        GrowthRecord,
        HistogramRecord,
        LatencyRecord,
        LawRecord,
        NoiseRecord,
        Notice,
        OutputRecord,
        OutputResult,
        PaddedRecord,
        PeakRecord,
        PlanRecord,
        ProviderRecord,
        RatioResult,
        Rule,
        RunRecord,
        RunResult,
        SurroundingsRecord,
        UlpRecord,
        WorstElement,
    )
    from crosshead.results.statistics import compare_latency, median, median_interval
    from crosshead.results.store import RunStore, new_run_id, read_run, read_samples, read_turns
    from crosshead.results.terminal import render_backends, render_run
    from crosshead.results.turns import TurnRow

__all__ = [
    "CONFORM_SCHEMA",
    "FUZZ_SCHEMA",
    "LOAD_SCHEMA",
    "SCHEMA",
    "AgreementRecord",
    "ArtifactRecord",
    "BundleRecord",
    "Cause",
    "CauseRecord",
    "CellRecord",
    "CellStatus",
    "ComparisonRecord",
    "ConformBackend",
    "ConformCase",
    "ConformRecord",
    "ConformResult",
    "ConformRule",
    "ConformStatus",
    "ConformStore",
    "CpuTimes",
    "CulpritRecord",
    "DiagnosisRecord",
    "DiagnosisStore",
    "DisagreementRecord",
    "EnvironmentRecord",
    "FeatureRecord",
    "FindRecord",
    "FuzzRecord",
    "FuzzStore",
    "GivenRecord",
    "GpuRecord",
    "GraphRecord",
    "GraphResult",
    "GrowthRecord",
    "HistogramRecord",
    "KeptRecord",
    "KnownRecord",
    "LatencyRecord",
    "LawRecord",
    "LoadCellRecord",
    "LoadPlanRecord",
    "LoadPointRecord",
    "LoadRecord",
    "LoadSamples",
    "LoadStore",
    "NoiseRecord",
    "Notice",
    "ObjectiveRecord",
    "ObjectiveResult",
    "OutputRecord",
    "OutputResult",
    "PaddedRecord",
    "PeakRecord",
    "PlanRecord",
    "ProviderRecord",
    "RatioResult",
    "ResultsError",
    "Rule",
    "RunRecord",
    "RunResult",
    "RunStore",
    "RungRecord",
    "SaturationRecord",
    "SearchedRecord",
    "SmallestRecord",
    "SpreadRecord",
    "StoreError",
    "SurroundingsRecord",
    "TensorRecord",
    "TurnRow",
    "UlpRecord",
    "VersionError",
    "WorstElement",
    "baseline",
    "compare_latency",
    "conformity_summary",
    "cpu_quota",
    "decode_conformity",
    "decode_diagnosis",
    "decode_fuzz",
    "decode_record",
    "decode_run",
    "diagnosis_summary",
    "encode_conformity",
    "encode_diagnosis",
    "encode_fuzz",
    "encode_record",
    "encode_run",
    "environment_notices",
    "fuzz_summary",
    "latency_record",
    "load_summary",
    "median",
    "median_interval",
    "new_run_id",
    "percentile_or_missing",
    "read_environment",
    "read_gpus",
    "read_load",
    "read_load_samples",
    "read_run",
    "read_samples",
    "read_turns",
    "render_backends",
    "render_conformity",
    "render_diagnosis",
    "render_fuzz",
    "render_load",
    "render_run",
    "sample_notices",
    "samples_needed",
    "scrub",
    "scrub_record",
    "summary",
]

_HOMES = {
    "_conformity_summary": ["conformity_summary"],
    "_conformity_table": ["render_conformity"],
    "_cgroup": ["cpu_quota"],
    "_rows": ["baseline"],
    "conformity": [
        "CONFORM_SCHEMA",
        "ConformBackend",
        "ConformCase",
        "ConformRecord",
        "ConformResult",
        "ConformRule",
        "ConformStatus",
        "ConformStore",
        "DisagreementRecord",
        "FeatureRecord",
        "KnownRecord",
        "decode_conformity",
        "encode_conformity",
    ],
    "diagnosis": [
        "BundleRecord",
        "CulpritRecord",
        "DiagnosisRecord",
        "DiagnosisStore",
        "RungRecord",
        "SmallestRecord",
        "TensorRecord",
        "decode_diagnosis",
        "encode_diagnosis",
    ],
    "diagnosis_text": ["diagnosis_summary", "render_diagnosis"],
    "fuzz": ["FUZZ_SCHEMA", "FindRecord", "FuzzRecord", "FuzzStore", "SearchedRecord", "decode_fuzz", "encode_fuzz"],
    "fuzz_text": ["fuzz_summary", "render_fuzz"],
    "disturbances": ["sample_notices"],
    "encoding": ["decode_record", "decode_run", "encode_record", "encode_run"],
    "environment": ["CpuTimes", "environment_notices", "read_environment"],
    "errors": ["ResultsError", "StoreError", "VersionError"],
    "gpus": ["read_gpus"],
    "latency": ["latency_record"],
    "load_markdown": ["load_summary"],
    "load_point": ["LoadSamples"],
    "load_records": [
        "LOAD_SCHEMA",
        "KeptRecord",
        "LoadCellRecord",
        "LoadPlanRecord",
        "LoadPointRecord",
        "LoadRecord",
        "ObjectiveRecord",
        "ObjectiveResult",
        "SaturationRecord",
        "SpreadRecord",
    ],
    "load_store": ["LoadStore", "read_load", "read_load_samples"],
    "load_terminal": ["render_load"],
    "markdown": ["summary"],
    "percentiles": ["percentile_or_missing", "samples_needed"],
    "privacy": ["scrub", "scrub_record"],
    "statistics": ["compare_latency", "median", "median_interval"],
    "store": ["RunStore", "new_run_id", "read_run", "read_samples", "read_turns"],
    "terminal": ["render_backends", "render_run"],
    "turns": ["TurnRow"],
}
"""Which module holds which name; `records` holds the others."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "records")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
