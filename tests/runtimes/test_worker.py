import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest

from crosshead.export.artifact import Artifact, unpack_arrays
from crosshead.runtimes import (
    CAN_PAUSE,
    BackendError,
    InputError,
    PlacementError,
    SessionClosedError,
    Settings,
    UnsupportedError,
    WorkerCrashedError,
    WorkerError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerTimeoutError,
)
from crosshead.runtimes import worker as worker_module

needs_pause = pytest.mark.skipif(not CAN_PAUSE, reason="idle workers can be stopped on Linux only")


def fake(**behaviour: object) -> Settings:
    return Settings(fake=behaviour)


def is_gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether the process ended; one that nobody has waited for yet counts."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_worker_runs_warms_up_and_measures(
    assert_close: Any, linear: Artifact, start_worker: Any, tmp_path: Path
) -> None:
    worker = start_worker("ort-cpu", linear, Settings(threads=2))
    opened = worker.opened()
    assert worker.opened() is opened
    assert opened.import_s > 0
    assert opened.session_s > 0
    assert opened.peak_rss_bytes > 10e6
    assert opened.versions["onnxruntime"]
    assert opened.details["intra_op_threads"] == "2"
    assert opened.details["OMP_NUM_THREADS"] == "2"
    ran = worker.run(linear.inputs_path("2x7"), tmp_path / "out.npz")
    assert ran.call_s > 0
    assert ran.placement is not None
    assert ran.placement.providers["CPUExecutionProvider"].flops_share == 1.0
    got = unpack_arrays(tmp_path / "out.npz")["y"]
    assert_close(got, linear.expected("2x7")["y"], rtol=1e-5, atol=1e-6)
    warm = worker.warm_up(linear.inputs_path("2x7"), 2.0)
    assert warm.first_call_s > 0
    assert warm.calls > 1
    assert warm.calls_per_sample > 1  # a call of microseconds
    assert warm.host_to_device_s is None
    measured = worker.measure(0.01, 0.05, min_samples=5)
    assert len(measured.samples_s) >= 5
    assert min(measured.samples_s) > 0
    assert measured.peak_rss_bytes >= measured.rss_bytes > 0


def test_an_interpreter_can_come_up_before_anything_is_loaded(linear: Artifact) -> None:
    with worker_module.Worker("fake", linear.folder, Settings()) as worker:
        worker.boot()
        assert worker.pid is not None
        with pytest.raises(WorkerError, match="not started"):
            worker.opened()
        with pytest.raises(WorkerError, match="started before"):
            worker.boot()
        worker.start()
        assert worker.started
        assert worker.opened().session_s > 0
        with pytest.raises(WorkerError, match="started before"):
            worker.start()


def test_a_worker_that_only_came_up_is_ended(linear: Artifact) -> None:
    with worker_module.Worker("fake", linear.folder, Settings()) as worker:
        worker.boot()
        pid = worker.pid
    assert is_gone(pid or 0)


def test_another_artifact_takes_the_place_of_the_one_that_is_open(
    assert_close: Any, linear: Artifact, make_artifact: Any, typed_value: Any, start_worker: Any, tmp_path: Path
) -> None:
    node = onnx.helper.make_node("Neg", ["x"], ["y"])
    shape = ("batch", "seq", 4)
    negative = make_artifact(
        onnx.helper.make_graph(
            [node], "negative", [typed_value("x", "float32", shape)], [typed_value("y", "float32", shape)]
        )
    )
    worker = start_worker("onnx-reference", linear)
    pid = worker.pid
    worker.open_other(negative.folder)
    worker.run(linear.inputs_path("2x7"), tmp_path / "out.npz")
    assert_close(unpack_arrays(tmp_path / "out.npz")["y"], np.negative(linear.inputs("2x7")["x"]))
    with pytest.raises(BackendError):
        worker.open_other(tmp_path)
    worker.open_other(linear.folder)
    worker.run(linear.inputs_path("2x7"), tmp_path / "out.npz")
    assert_close(unpack_arrays(tmp_path / "out.npz")["y"], linear.expected("2x7")["y"], rtol=1e-3, atol=1e-6)
    assert worker.pid == pid


def test_measured_times_are_those_of_the_call(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear, fake(sleep_s=0.02))
    warm = worker.warm_up(linear.inputs_path("1x5"), 0.2)
    assert warm.calls_per_sample == 1
    assert statistics.median(worker.measure(0.0, 0.1).samples_s) >= 0.02


def test_measuring_needs_a_warm_up(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear)
    with pytest.raises(BackendError, match="WarmUp has to come before Measure"):
        worker.measure(0.0, 0.01)


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ({"ending": "segfault"}, WorkerCrashedError, "while a run, the worker was ended by SIGSEGV"),
        ({"ending": "abort"}, WorkerCrashedError, "was ended by SIGABRT"),
        ({"ending": "kill"}, WorkerCrashedError, r"was ended by SIGKILL \(when memory runs out"),
        ({"ending": "exit", "exit_status": 7}, WorkerCrashedError, "exited with status 7"),
        ({"rubbish": "no json\n"}, WorkerProtocolError, "answered with something that is no message: 'no json'"),
        ({"rubbish": '{"type":"closed"}\n'}, WorkerProtocolError, "answered Closed; expected Ran"),
        (
            {"ending": "segfault", "at": "open"},
            WorkerCrashedError,
            "while loading the artifact, the worker was ended by",
        ),
    ],
)
def test_a_worker_that_ends_or_babbles(
    linear: Artifact, start_worker: Any, tmp_path: Path, behaviour: dict[str, object], kind: type, message: str
) -> None:
    worker = start_worker("fake", linear, fake(**behaviour))
    with pytest.raises(kind, match=message):
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert is_gone(worker.pid)
    with pytest.raises(SessionClosedError, match="start another one"):
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")


@pytest.mark.parametrize("at", ["open", "call"])
def test_a_hanging_worker_is_killed(linear: Artifact, start_worker: Any, tmp_path: Path, at: str) -> None:
    worker = start_worker("fake", linear, fake(ending="hang", at=at), timeout_s=1.5)
    with pytest.raises(WorkerTimeoutError, match=r"gave no answer within 1.5 s, and was killed"):
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert is_gone(worker.pid)


def test_a_hungry_worker_is_killed(linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    worker = start_worker("fake", linear, fake(eat_bytes=8 << 30), memory_limit_bytes=300 << 20)
    with pytest.raises(WorkerMemoryError, match=r"held \d+ MiB, over its limit of 300 MiB, and was killed"):
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert is_gone(worker.pid)


def test_a_leak_shows_in_what_is_measured(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear, fake(leak_bytes=1 << 20, sleep_s=0.001))
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    first = worker.measure(0.0, 0.0, min_samples=5)
    second = worker.measure(0.0, 0.0, min_samples=50)
    assert second.rss_bytes - first.rss_bytes > 40 << 20


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ({"raises": "the /opt/lib/kernel.so gave up"}, BackendError, "^RuntimeError: the kernel.so gave up$"),
        ({"memory_error": True}, BackendError, "^out of memory: asked for$"),
        ({"stdout": "chatter\n"}, None, ""),
    ],
)
def test_a_worker_that_only_complains_lives_on(
    linear: Artifact, start_worker: Any, tmp_path: Path, behaviour: dict[str, object], kind: type | None, message: str
) -> None:
    worker = start_worker("fake", linear, fake(**behaviour))
    if kind is not None:
        with pytest.raises(kind, match=message):
            worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert (tmp_path / "out.npz").exists()


def test_an_input_that_does_not_fit_is_told_apart(linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 5, 3), np.float32))
    worker = start_worker("fake", linear)
    with pytest.raises(InputError, match=r"input 'x': expected shape \(batch, seq, 4\), got \(1, 5, 3\)"):
        worker.run(tmp_path / "in.npz", tmp_path / "out.npz")
    with pytest.raises(BackendError, match=r"cannot read missing.npz"):
        worker.run(tmp_path / "missing.npz", tmp_path / "out.npz")


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ({"unsupported": "no kernel for Mul of bf16"}, UnsupportedError, "^no kernel for Mul of bf16$"),
        ({"wrong_placement": True}, PlacementError, "OtherProvider"),
        ({"typo": 1}, BackendError, "has no option 'typo'"),
    ],
)
def test_a_refusal_to_open_closes_the_worker(
    linear: Artifact, start_worker: Any, behaviour: dict[str, object], kind: type, message: str
) -> None:
    worker = start_worker("fake", linear, fake(**behaviour))
    with pytest.raises(kind, match=message):
        worker.opened()
    assert is_gone(worker.pid)


def test_unknown_backend_and_missing_artifact(linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="there is no backend 'fakes'; did you mean 'fake'"):
        start_worker("fakes", linear).opened()
    missing = Artifact(tmp_path / "gone", linear.manifest)
    with pytest.raises(BackendError, match=r"gone is no artifact: manifest.json cannot be read"):
        start_worker("fake", missing).opened()


def test_the_tail_of_the_error_output_is_told_without_paths(
    linear: Artifact, start_worker: Any, tmp_path: Path
) -> None:
    worker = start_worker("fake", linear, fake(stderr="kernel at /opt/secret/lib.so died", ending="abort"))
    with pytest.raises(WorkerCrashedError) as caught:
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert "kernel at lib.so died" in caught.value.stderr_tail
    assert "secret" not in caught.value.stderr_tail


def test_files_beside_the_user_do_not_stand_in_for_libraries(
    linear: Artifact, start_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "onnx", "export", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('nobody imports this')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert start_worker("fake", linear).opened().session_s > 0


def test_two_workers_start_side_by_side(linear: Artifact, start_worker: Any) -> None:
    workers = [start_worker("fake", linear, fake(slow_start_s=0.5)) for _ in range(2)]
    assert {worker.opened().details["OMP_NUM_THREADS"] for worker in workers} == {"1"}
    assert len({worker.pid for worker in workers}) == 2


def test_huge_pages_are_a_setting(linear: Artifact, start_worker: Any) -> None:
    with_pages, without = start_worker("fake", linear), start_worker("fake", linear, Settings(huge_pages=False))
    assert without.opened().details["GLIBC_TUNABLES"] == ""
    if sys.platform == "linux":
        assert with_pages.opened().details["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_a_deadline_runs_from_the_start_but_an_answer_that_is_there_counts(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear, timeout_s=3.0)
    time.sleep(3.5)
    assert worker.opened().session_s > 0


@needs_pause
def test_a_paused_worker_stands_still_and_wakes_for_a_request(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("ort-cpu", linear, Settings(threads=2))
    worker.warm_up(linear.inputs_path("2x7"), 0.1)
    worker.pause()
    worker.pause()
    process = psutil.Process(worker.pid)
    assert process.status() == psutil.STATUS_STOPPED
    before = process.cpu_times()
    time.sleep(0.3)
    assert process.cpu_times() == before
    assert worker.measure(0.0, 0.01).samples_s
    worker.pause()
    worker.resume()
    assert process.status() != psutil.STATUS_STOPPED


@needs_pause
def test_a_paused_worker_is_closed_at_once(linear: Artifact, start_worker: Any) -> None:
    opened, opening = start_worker("fake", linear), start_worker("fake", linear, fake(ending="hang", at="open"))
    opened.opened()
    for worker in (opened, opening):
        worker.pause()
        worker.close()
        worker.close()
        assert is_gone(worker.pid)


def test_close_ends_a_wait_in_another_thread(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear, fake(ending="hang", at="open"))
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            worker.opened()
        except SessionClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    worker.close()
    thread.join(10.0)
    assert len(errors) == 1
    assert is_gone(worker.pid)


def test_a_worker_is_started_once_and_before_it_is_asked(linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    worker = worker_module.Worker("fake", linear.folder, Settings())
    assert worker.pid is None
    assert worker.stderr_tail() == ""
    with pytest.raises(WorkerError, match=r"call start\(\) first"):
        worker.opened()
    worker.start()
    with pytest.raises(WorkerError, match="make another one"):
        worker.start()
    worker.close()
    never_started = worker_module.Worker("fake", linear.folder, Settings())
    never_started.close()


def test_an_interrupted_request_leaves_no_answer_to_be_mistaken(
    linear: Artifact, start_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start_worker("fake", linear)
    worker.opened()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_next_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    with pytest.raises(WorkerProtocolError, match="never fetched"):
        worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    assert is_gone(worker.pid)


def test_nothing_stays_on_disk(
    linear: Artifact, start_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker = start_worker("fake", linear, fake(stderr="text"))
    worker.run(linear.inputs_path("1x5"), tmp_path / "out.npz")
    worker.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exited with status 0"), (3, "exited with status 3"), (-11, "was ended by SIGSEGV"), (-99, "signal 99")],
)
def test_how_a_process_ended_is_said(status: int, words: str) -> None:
    assert words in worker_module.describe_status(status)


def test_the_terminals_interrupt_does_not_reach_a_worker(linear: Artifact, start_worker: Any) -> None:
    worker = start_worker("fake", linear)
    worker.opened()
    assert os.getsid(worker.pid) == worker.pid
    assert os.getpgid(worker.pid) == worker.pid


PARENT = """
import os, signal, sys, time
from pathlib import Path
from crosshead.runtimes import Settings, Worker
artifact = Path(sys.argv[1])
idle, paused = Worker("fake", artifact, Settings()), Worker("fake", artifact, Settings())
hanging = Worker("fake", artifact, Settings(fake={"ending": "hang", "at": "open"}))
for worker in (idle, paused, hanging):
    worker.start()
idle.opened()
paused.opened()
paused.pause()
print(idle.pid, paused.pid, hanging.pid, flush=True)
if sys.argv[2] == "leave":
    sys.exit(0)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, "leave"])
def test_nothing_is_left_when_the_parent_ends(linear: Artifact, ending: signal.Signals | str) -> None:
    command = [sys.executable, "-c", PARENT, str(linear.folder), str(ending)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3
        if isinstance(ending, signal.Signals):
            assert all(psutil.pid_exists(pid) for pid in pids)
            parent.send_signal(ending)
        parent.wait(20.0)
    assert all(is_gone(pid) for pid in pids)
