import msgspec
import pytest

from crosshead.export.artifact import Artifact
from crosshead.runtimes import SessionClosedError, Settings, UnsupportedError, get_runtime
from crosshead.runtimes.base import Capabilities
from crosshead.runtimes.onnx_reference import OnnxReference


def test_a_closed_session_refuses_every_call(linear: Artifact) -> None:
    inputs = linear.inputs("1x5")
    with get_runtime("fake").open(linear, Settings()) as session:
        session.run(inputs)
    session.close()  # twice is allowed
    for call in (session.run, session.bind, session.copies, session.prove):
        with pytest.raises(SessionClosedError, match="open the artifact again"):
            call(inputs)
    for ask in (session.placement, session.details):
        with pytest.raises(SessionClosedError, match="open the artifact again"):
            ask()


def test_a_precision_that_is_not_declared_is_refused(linear: Artifact) -> None:
    class Fp32Only(OnnxReference):
        capabilities = Capabilities(executes="graph", precisions=("fp32",))

    half = Artifact(linear.folder, msgspec.structs.replace(linear.manifest, precision="fp16"))
    with pytest.raises(UnsupportedError, match="onnx-reference takes fp32; artifact linear is fp16"):
        Fp32Only().open(half, Settings())


def test_hooks_that_a_backend_leaves_out_answer_nothing(linear: Artifact) -> None:
    with get_runtime("onnx-reference").open(linear, Settings()) as session:
        assert session.prove(linear.inputs("1x5")) is None
        assert session.copies(linear.inputs("1x5")) is None
        assert session.details() == {}


def test_settings_survive_the_wire() -> None:
    settings = Settings(threads=3, optimization="basic", spinning=False, fake={"sleep_s": 0.5})
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
