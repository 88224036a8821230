import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crosshead.export.artifact import Artifact, unpack_arrays
from crosshead.runtimes import Available, BackendError, Session, Settings, Unavailable, get_runtime
from crosshead.runtimes import torch_compile as backend

torch: Any = pytest.importorskip("torch")
pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

CLAMPED = """
import torch
from torch import nn

class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).clamp(-100.0, 100.0)  # a kernel of its own, and the same values

def linear():
    return Clamped(), {"x": torch.zeros(2, 5, 4)}
"""


@pytest.fixture
def open_with(
    monkeypatch: pytest.MonkeyPatch, from_source: Any, source_folder: Path
) -> Iterator[Callable[[Any], Session]]:
    """Return a function that opens the linear layer with a compiler of the test's own, in this process."""
    from torch._dynamo import config

    settings: Any = config
    torch_compile = torch.compile

    def opened(compiler: Any) -> Session:
        def compile_with(module: Any, *, dynamic: bool) -> Any:
            assert dynamic is False
            return torch_compile(module, backend=compiler, dynamic=dynamic)

        monkeypatch.setattr(torch, "compile", compile_with)
        torch.compiler.reset()
        return get_runtime("torch-compile").open(from_source(), Settings(), str(source_folder))

    with settings.patch(suppress_errors=False, fail_on_recompile_limit_hit=True):  # puts back what the session sets
        yield opened
        torch.compiler.reset()


def test_a_session_compiles_once_a_shape_and_then_runs(
    assert_close: Any, open_with: Any, linear: Artifact, from_source: Any
) -> None:
    inputs, others = linear.inputs("2x7"), linear.inputs("1x5")
    with open_with("eager") as session:
        assert "graphs" not in session.details()
        assert session.compile(inputs) > 0
        assert session.compile(inputs) is None
        assert_close(session.run(inputs)["y"], linear.expected("2x7")["y"], rtol=1e-5, atol=1e-6)
        details = session.details()
        assert session.compile(others) > 0
        session.bind(others)()
    assert (details["compiler"], details["dynamic"]) == ("inductor", "False")
    assert (details["graphs"], details["graph_breaks"], details["from_cache"]) == ("1", "0", "0 of 1 graphs")


def test_a_compiler_that_fails_is_told_in_one_line_by_its_innermost_cause(open_with: Any, linear: Artifact) -> None:
    def broken(graph: Any, examples: Any) -> Any:
        try:
            raise OSError("no space left\nTraceback of 40 lines")
        except OSError as error:
            raise RuntimeError("kernel 3 was not written") from error

    with (
        open_with(broken) as session,
        pytest.raises(BackendError, match=r"^torch\.compile: OSError: no space left$"),
    ):
        session.compile(linear.inputs("2x7"))


def test_a_cpp_compilers_complaint_is_found_behind_its_command() -> None:
    from torch._inductor.exc import CppCompileError

    output = "In file included from main.cpp:\nmain.cpp:3:10: fatal error: omp.h: No such file or directory\n  3 | #inc"
    error = RuntimeError("outer")
    error.__cause__ = CppCompileError(["/usr/bin/g++", "main.cpp", "-O3"], output)
    assert backend.describe(error) == "g++: main.cpp:3:10: fatal error: omp.h: No such file or directory"


def test_an_error_without_words_is_told_by_its_kind() -> None:
    assert backend.describe(NotImplementedError()) == "NotImplementedError: no message"


def test_a_module_of_which_nothing_was_compiled_is_refused(
    monkeypatch: pytest.MonkeyPatch, open_with: Any, from_source: Any, source_folder: Path, linear: Artifact
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, *, dynamic: module)  # as TORCH_COMPILE_DISABLE=1 does
    session = get_runtime("torch-compile").open(from_source(), Settings(), str(source_folder))
    with session, pytest.raises(BackendError, match="compiled nothing of this module"):
        session.compile(linear.inputs("2x7"))


def test_it_is_left_out_of_all() -> None:
    capabilities = get_runtime("torch-compile").capabilities
    assert (capabilities.in_all, capabilities.compiles, capabilities.executes) == (False, True, "module")


def test_probe_asks_for_a_cpp_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = get_runtime("torch-compile").probe()
    assert isinstance(found, Unavailable)
    assert found.reason == "there is no C++ compiler 'no-such-compiler'"
    assert "g++" in found.remedy


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the headers come with Python")
def test_probe_asks_for_pythons_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", sys.executable)  # anything that is there
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    found = get_runtime("torch-compile").probe()
    assert isinstance(found, Unavailable)
    assert "Python.h" in found.reason
    (tmp_path / "Python.h").touch()
    assert isinstance(get_runtime("torch-compile").probe(), Available)


@pytest.mark.slow
@pytest.mark.skipif(isinstance(get_runtime("torch-compile").probe(), Unavailable), reason="there is no C++ compiler")
def test_workers_share_what_the_first_compiled_and_leave_nothing(
    assert_close: Any,
    monkeypatch: pytest.MonkeyPatch,
    from_source: Any,
    source_folder: Path,
    start_worker: Any,
    tmp_path: Path,
) -> None:
    (source_folder / "model.py").write_text(CLAMPED)
    artifact = from_source()
    cache, outputs, temporary = tmp_path / "cache", tmp_path / "out.npz", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    first = start_worker("torch-compile", artifact, source_folder=source_folder, cache_folder=cache)
    ran = first.run(artifact.inputs_path("2x7"), outputs)
    assert ran.compile_s is not None
    assert ran.compile_s > 10 * ran.call_s > 0
    assert ran.details["from_cache"] == "0 of 1 graphs"
    assert first.run(artifact.inputs_path("2x7"), outputs).compile_s is None
    assert_close(unpack_arrays(outputs)["y"], artifact.expected("2x7")["y"], rtol=1e-5, atol=1e-6)
    first.close()
    assert list(cache.rglob("*.so")), "what was compiled stays for the next"

    second = start_worker("torch-compile", artifact, source_folder=source_folder, cache_folder=cache)
    warm = second.warm_up(artifact.inputs_path("2x7"), 0.2)
    assert warm.compile_s is not None
    assert 0 < warm.first_call_s < warm.compile_s < ran.compile_s
    assert second.run(artifact.inputs_path("2x7"), outputs).details == {}
    second.close()
    assert not list(temporary.iterdir())


def test_a_worker_without_a_shared_folder_deletes_its_own(
    monkeypatch: pytest.MonkeyPatch, from_source: Any, source_folder: Path, start_worker: Any, tmp_path: Path
) -> None:
    artifact = from_source()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = start_worker("torch-compile", artifact, source_folder=source_folder)
    assert list(tmp_path.glob("crosshead-cache-*/tmp"))
    worker.close()
    assert not list(tmp_path.glob("crosshead-*"))
