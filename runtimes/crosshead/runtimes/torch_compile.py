"""`torch-compile`: the same module as `torch-eager`, through `torch.compile` with its own compiler, inductor.

Compiling takes seconds to half a minute, so it happens in `Session.compile`, before the first call that counts, and
is reported by itself. Compiling is lazy in torch: it takes a call, and that one call of the module is in the seconds.

Every shape is compiled for by itself (`dynamic=False`): what is timed is the best that inductor makes of the case at
hand, not code for all lengths. Where torch cannot follow the module's Python it cuts the graph and runs the rest
eagerly; graphs and cuts are in the details. A module of which nothing was compiled is refused, since its times would
be those of `torch-eager`.

Compiled code lies in the worker's cache folder (`TORCHINDUCTOR_CACHE_DIR`). Workers of one run share it: the first
to come compiles, the others read what it made, and the details say which it was.
"""

import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crosshead.export.artifact import Artifact
from crosshead.runtimes.base import Array, Available, Capabilities, Session, Settings, Unavailable
from crosshead.runtimes.errors import BackendError
from crosshead.runtimes.torch_eager import TorchEager, TorchSession

if TYPE_CHECKING:
    from torch import nn

_NO_LINE = "no message"


class TorchCompile(TorchEager):
    """The backend."""

    name: ClassVar[str] = "torch-compile"
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="module", precisions=("fp32", "fp16", "bf16"), in_all=False, compiles=True, calls_at_once=True
    )

    def probe(self) -> Available | Unavailable:
        """Look for torch, and for what inductor needs beside it: a C++ compiler and Python's headers."""
        found = super().probe()
        if isinstance(found, Unavailable):
            return found
        compiler = compiler_name()
        if shutil.which(compiler) is None:
            remedy = f"install {compiler} (e.g. apt-get install g++), or set CXX to a C++ compiler"
            return Unavailable(reason=f"there is no C++ compiler {compiler!r}", remedy=remedy)
        if sys.platform == "linux" and not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            return Unavailable(
                reason="Python's headers (Python.h) are not installed", remedy="e.g. apt-get install python3-dev"
            )
        return Available(version=found.version, detail=f"inductor, on the CPU, with {Path(compiler).name}")

    def import_library(self) -> None:
        """Import torch and its compiler, which come in separately.

        Raises:
            BackendError: torch is not installed.
        """
        super().import_library()
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401  # else the first compilation would import it

    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> Session:
        return _CompiledSession(artifact, self.load(artifact, settings, source_folder))


def compiler_name() -> str:
    """Return the C++ compiler that inductor will call."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return os.environ.get("CXX", usual)


class _CompiledSession(TorchSession):
    def __init__(self, artifact: Artifact, module: "nn.Module") -> None:
        import torch
        from torch._dynamo import config

        super().__init__(artifact, module)
        settings: Any = config  # its attributes are made at run time
        settings.suppress_errors = False  # nothing falls back to eager in silence
        settings.fail_on_recompile_limit_hit = True
        self._callee = torch.compile(module, dynamic=False)
        self._compiled: dict[tuple[tuple[int, ...], ...], float] = {}
        self._counted: dict[str, int] = {}

    def _compile(self, inputs: Mapping[str, Array]) -> float | None:
        key = tuple(inputs[spec.name].shape for spec in self._artifact.manifest.inputs)
        if key in self._compiled:
            return None
        before = _counts()
        step = self._call(inputs)
        started = time.perf_counter()
        try:
            step()
        except Exception as error:
            raise BackendError(f"torch.compile: {describe(error)}") from error
        self._compiled[key] = time.perf_counter() - started
        self._counted = {name: count - before[name] for name, count in _counts().items()}
        if not self._counted["graphs"]:
            raise BackendError(
                "torch.compile compiled nothing of this module, which would run as under torch-eager; "
                "see TORCH_LOGS=graph_breaks"
            )
        return self._compiled[key]

    def _details(self) -> dict[str, str]:
        details = super()._details() | {"compiler": "inductor", "dynamic": "False"}
        if self._counted:
            graphs, cached = self._counted["graphs"], self._counted["cached"]
            details["graphs"] = str(graphs)
            details["graph_breaks"] = str(self._counted["breaks"])
            details["from_cache"] = f"{cached} of {graphs} graphs"
        return details


def _counts() -> dict[str, int]:
    """Return what torch has counted in this process so far."""
    from torch._dynamo.utils import counters

    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "cached": counters["inductor"]["fxgraph_cache_hit"],
    }


def describe(error: BaseException) -> str:
    """Return the innermost cause of an error that `torch.compile` raised, in one line.

    Dynamo and inductor wrap what went wrong several times over, and a C++ compiler's complaint comes after the whole
    command that was run.
    """
    from torch._inductor.exc import CppCompileError

    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, CppCompileError):
            return f"{Path(error.cmd[0]).name}: {_first_line(error.output, 'error')}"
        error = getattr(error, "inner_exception", None) or error.__cause__ or error
    return f"{type(error).__name__}: {_first_line(str(error))}"


def _first_line(text: str, word: str = "") -> str:
    """Return the first line with that word in it, else the first that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if word in line), next(iter(lines), _NO_LINE))
