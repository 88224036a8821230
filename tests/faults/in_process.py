"""Workers without processes: the harness as it is, on sessions that live in this process. For the fault bench alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import onnx
import onnx_ir as ir
import torch

from crosshead.export import build
from crosshead.export.forms import lower as right_lower
from crosshead.harness import accuracy
from crosshead.runtimes import Worker, messages
from crosshead.runtimes.worker import _KINDS
from crosshead.runtimes.worker_main import Server

if TYPE_CHECKING:
    from crosshead.runtimes.errors import BackendError

_Reply = TypeVar("_Reply")
Watch = Callable[[messages.Open, messages.Run], None]
Edit = Callable[[onnx.ModelProto], onnx.ModelProto]


def unwatched(opened: messages.Open, run: messages.Run) -> None:
    """Look at nothing."""


class _InProcess(Worker):
    """A worker whose requests are answered where they are asked, by what answers them in a worker process."""

    watch: Watch = staticmethod(unwatched)
    _server: Server | None = None
    _request: messages.Request | None = None

    def boot(self) -> None:
        self._server = Server()

    def close(self) -> None:
        if not self._closed and self._server is not None and self._opened is not None:
            self._server.answer(messages.Close())
        self._closed = True

    def start(self) -> None:
        if self._server is None:
            self.boot()
        self._open_deadline = 1.0
        self._send(self._open)

    def _check_usable(self) -> None:
        assert self._server is not None
        assert not self._closed

    def _send(self, request: messages.Request) -> None:
        self._request = request

    def _receive(self, kind: type[_Reply], deadline: float, doing: str) -> _Reply:
        assert self._server is not None
        assert self._request is not None
        request, self._request = self._request, None
        with redirect_stderr(StringIO()):  # a worker's goes to a file, and is read only when it is lost
            reply = self._server.answer(request)
        if isinstance(reply, messages.Failed):
            error: BackendError = _KINDS[reply.kind](reply.message)
            raise error
        assert isinstance(reply, kind)
        if isinstance(request, messages.Run):
            self.watch(self._open, request)
        return reply


@contextmanager
def in_process(watch: Watch = unwatched) -> Iterator[None]:
    """Let the harness work without worker processes.

    Args:
        watch: shown every run that went well: what was opened, and where inputs and outputs lie.
    """
    worker = type("InProcess", (_InProcess,), {"watch": staticmethod(watch)})
    with mock.patch.object(accuracy, "Worker", worker), _torch_as_it_was():
        yield


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Put back what the PyTorch backend forces in the process that it runs in."""
    fast_path, threads = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    precision, state = torch.get_float32_matmul_precision(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(state)


@contextmanager
def exported_as(edit: Edit) -> Iterator[None]:
    """Let the exporter make an edit to every graph that it lowers, before it is checked and written."""

    def lower(*arguments: Any) -> ir.Model:
        return ir.from_proto(edit(ir.to_proto(right_lower(*arguments))))

    with mock.patch.object(build, "lower", lower):
        yield
