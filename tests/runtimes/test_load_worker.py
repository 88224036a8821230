"""A worker under load: what it answers, and what becomes of one that is killed, stopped, or let go on."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtimes.conftest import StartWorker

from crosshead.export.artifact import Artifact, pack_arrays, unpack_arrays
from crosshead.runtimes import (
    CAN_PAUSE,
    BackendError,
    Settings,
    Unavailable,
    WorkerCrashedError,
    WorkerTimeoutError,
    get_runtime,
)
from crosshead.runtimes.messages import Load, Look

needs_stopping = pytest.mark.skipif(not CAN_PAUSE, reason="processes are stopped on Linux only")


def fake(**behaviour: object) -> Settings:
    return Settings(fake=behaviour)


def request(tmp_path: Path, arrivals_s: list[float] | None = None, **fields: Any) -> Load:
    if arrivals_s is not None:
        (tmp_path / "arrivals.npz").write_bytes(pack_arrays({"intended_s": np.array(arrivals_s)}))
        fields["arrivals"] = str(tmp_path / "arrivals.npz")
    known: dict[str, Any] = {"samples": str(tmp_path / "samples.npz"), "workers": 1, "duration_s": 0.2, "settle_s": 0.0}
    return Load(**(known | fields))


@pytest.mark.parametrize("backend", ["fake", "ort-cpu"])
def test_a_worker_serves_arrivals(backend: str, linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker(backend, linear)
    worker.warm_up(linear.inputs_path("1x5"), 0.05)
    arrivals_s = [0.0, 0.01, 0.01, 0.15]
    loaded = worker.load(request(tmp_path, arrivals_s))
    assert loaded.answered == 4
    assert loaded.stopped == "end"
    assert loaded.peak_rss_bytes > 10e6
    times = unpack_arrays(tmp_path / "samples.npz")
    assert np.allclose(times["intended_s"].astype(float), arrivals_s)
    assert set(times) == {"intended_s", "started_s", "ended_s", "idle"}


def test_a_real_worker_queues_as_a_line_at_one_server_does(
    linear: Artifact, start_worker: StartWorker, tmp_path: Path
) -> None:
    """The reduced form of `benchmarks/load.py`: how long a call takes is not asked, only who waits for whom."""
    worker = start_worker("fake", linear, fake(sleep_s=0.003))
    worker.warm_up(linear.inputs_path("1x5"), 0.05)
    arrivals_s = np.sort(np.random.default_rng(0).uniform(0.0, 2.0, 300))
    loaded = worker.load(request(tmp_path, arrivals_s.tolist(), duration_s=2.0))
    times = unpack_arrays(tmp_path / "samples.npz")
    intended_s, started_s, ended_s = (times[name].astype(float) for name in ("intended_s", "started_s", "ended_s"))
    assert loaded.answered == len(intended_s)
    free_s = np.concatenate([[-1.0], ended_s[:-1]])  # when the call before ended
    assert np.all(started_s >= np.maximum(intended_s, free_s))
    assert np.all(free_s[times["idle"].astype(bool)] <= intended_s[times["idle"].astype(bool)])
    late_s = started_s - np.maximum(intended_s, free_s)  # what is neither queueing nor service
    assert np.median(late_s) < np.median(ended_s - started_s)


@pytest.mark.parametrize("backend", ["torch-eager", "ort-cpu", pytest.param("torch-compile", marks=pytest.mark.slow)])
def test_workers_share_one_session(
    backend: str, from_source: Any, source_folder: Path, start_worker: StartWorker, tmp_path: Path
) -> None:
    runtime = get_runtime(backend)
    if isinstance(runtime.probe(), Unavailable):
        pytest.skip(f"{backend} is not available")
    assert runtime.capabilities.calls_at_once
    artifact = from_source()
    worker = start_worker(backend, artifact, source_folder=source_folder)
    worker.warm_up(artifact.inputs_path("2x7"), 0.05)
    loaded = worker.load(request(tmp_path, clients=6, workers=3))
    assert loaded.answered >= 6
    assert not loaded.left
    assert worker.load(request(tmp_path, clients=1)).answered >= 1


def test_a_look_that_decides_ends_the_load(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear)
    worker.warm_up(linear.inputs_path("1x5"), 0.05)
    arrivals_s = np.linspace(0.0, 500.0, 50_001).tolist()
    looks = [Look(count=5, most_over=[5], least_over=[6])]
    loaded = worker.load(request(tmp_path, arrivals_s, duration_s=500.0, limits_s=[1.0], looks=looks))
    assert loaded.stopped == "decided"
    assert 5 <= loaded.answered < 25_000


def test_load_needs_a_warm_up(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear)
    with pytest.raises(BackendError, match="WarmUp has to come before Load"):
        worker.load(request(tmp_path, clients=1))


def test_what_a_call_raises_is_told_and_the_worker_lives(
    linear: Artifact, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker("fake", linear, fake(raises="out of ideas", sleep_s=0.005, after_calls=60))
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    with pytest.raises(BackendError, match="out of ideas"):
        worker.load(request(tmp_path, clients=1, duration_s=60.0))
    assert worker.load(request(tmp_path, clients=1)).answered > 0


def test_a_stall_of_the_backend_is_no_finding(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear, fake(stall_s=0.5, sleep_s=0.005, after_calls=60))
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    arrivals_s = np.linspace(0.0, 4.0, 201).tolist()
    loaded = worker.load(request(tmp_path, arrivals_s, duration_s=4.0))
    times = {name: array.astype(float) for name, array in unpack_arrays(tmp_path / "samples.npz").items()}
    service_s, latency_s = times["ended_s"] - times["started_s"], times["ended_s"] - times["intended_s"]
    if loaded.finding:  # the machine itself stood still meanwhile
        pytest.skip(loaded.finding)
    assert service_s.max() >= 0.5
    assert np.count_nonzero(latency_s > 0.2) > np.count_nonzero(service_s > 0.2)


def test_a_worker_that_is_killed_under_load(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear, fake(ending="kill", sleep_s=0.005, after_calls=60))
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    with pytest.raises(WorkerCrashedError, match="while serving requests, the worker was ended by SIGKILL"):
        worker.load(request(tmp_path, clients=1, duration_s=60.0))


@needs_stopping
def test_a_worker_that_is_stopped_for_good(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear, fake(sleep_s=0.001), timeout_s=1.5)
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    stop = threading.Timer(0.3, os.kill, (worker.pid, signal.SIGSTOP))
    stop.start()
    with pytest.raises(WorkerTimeoutError, match="while serving requests"):
        worker.load(request(tmp_path, clients=1, duration_s=2.0))
    stop.join()


@needs_stopping
def test_a_worker_that_was_stopped_for_a_while(linear: Artifact, start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("fake", linear, fake(sleep_s=0.001))
    worker.warm_up(linear.inputs_path("1x5"), 0.0)
    timers = [threading.Timer(1.0, os.kill, (worker.pid, signal.SIGSTOP))]
    timers.append(threading.Timer(2.5, os.kill, (worker.pid, signal.SIGCONT)))
    for timer in timers:
        timer.start()
    loaded = worker.load(request(tmp_path, clients=1, duration_s=4.0))
    for timer in timers:
        timer.join()
    assert "stood still" in loaded.finding or "stood idle" in loaded.finding
