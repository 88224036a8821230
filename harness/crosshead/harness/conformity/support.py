"""Which of two backends the standard supports, where they differ on a graph of the user's."""

from collections.abc import Mapping, Sequence

from crosshead.export.artifact import Artifact
from crosshead.harness.conformity.features import ATTENTION_OPS, read_features
from crosshead.harness.conformity.known import KnownDeviation, known_deviations
from crosshead.results import AgreementRecord, CellRecord, FeatureRecord, Notice
from crosshead.runtimes import Available, get_runtime


def support_notices(
    cells: Sequence[CellRecord], agreements: Sequence[AgreementRecord], artifacts: Mapping[str, Artifact]
) -> list[Notice]:
    """Explain what fails by what is known of backends on graphs with the same features.

    Args:
        cells: those with a failing output are looked at.
        agreements: so are both sides of those that fail.
        artifacts: by id; graphs without an attention operator have no such features.

    Returns:
        A notice for each (backend, artifact) that fails and is known to deviate there.
    """
    labels = {cell.label: None for cell in cells if any(output.verdict == "fail" for output in cell.outputs)}
    differing = {label: None for each in agreements if each.verdict == "fail" for label in (each.a, each.b)}
    notices = []
    seen: dict[str, list[FeatureRecord]] = {}
    for label in labels | differing:
        backend, _, identity = label.partition("/")
        if identity not in artifacts or get_runtime(backend).capabilities.executes != "graph":
            continue
        if identity not in seen:
            seen[identity] = artifact_features(artifacts[identity])
        for known in expected_deviations(backend, seen[identity]):
            message = f"{known.sentence} ({known.source})"
            if label in differing:
                message = f"where backends disagree here, the standard supports the other one: {message}"
            notices.append(Notice(code="known-deviation", message=message, where=label))
    return notices


def artifact_features(artifact: Artifact) -> list[FeatureRecord]:
    """Return the features of each attention operator in an artifact's graph; weights are not read."""
    if not any(name.rpartition(":")[2] in ATTENTION_OPS for name in artifact.manifest.ops):
        return []
    import onnx

    return read_features(onnx.load(artifact.model_path, load_external_data=False))


def expected_deviations(backend: str, features: Sequence[FeatureRecord]) -> list[KnownDeviation]:
    """Return what is known of a backend, as it is installed here, on graphs with these features."""
    found = get_runtime(backend).probe()
    if not isinstance(found, Available):
        return []
    each = (known for one in features for known in known_deviations(backend, found.version, one))
    return list({known.id: known for known in each}.values())
