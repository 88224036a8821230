"""Logic against a simulated library; the tests marked `cuda` need a GPU and onnxruntime-gpu."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from crosshead.export.artifact import Artifact
from crosshead.runtimes import Available, PlacementError, Settings, Unavailable, get_runtime
from crosshead.runtimes import ort_cuda as module
from crosshead.runtimes._cuda_facts import CudaFacts
from crosshead.runtimes._ort_wheels import Wheels
from crosshead.runtimes.ort_cuda import diagnose, wrong_wheel

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
GPU_WHEEL = Wheels(names={"onnxruntime-gpu": "1.31.1"}, package="onnxruntime-gpu", version="1.31.1")

FLOATS = [{"float": [2, 7, 4]}]
PRODUCT = ("product", "MatMul", FLOATS)
BIAS = ("bias", "Add", FLOATS)
LENGTH = ("length", "Gather", [{"int64": [1]}])


class Simulated:
    """Stands in for onnxruntime: keeps what it was asked for, and puts nodes where the test says.

    Attributes:
        listed: providers that a session says it has.
        assigned: (node, provider) pairs of the assignment record.
        profiled: (node, provider) pairs of the profile.
    """

    def __init__(self, listed: list[str], assigned: list[Any], profiled: list[Any]) -> None:
        self.listed, self.assigned, self.profiled = listed, assigned, profiled
        self.sessions: list[Any] = []
        self.calls: list[str] = []
        self.preloads = 0
        self.__version__ = "1.31.1"
        self.GraphOptimizationLevel = SimpleNamespace(ORT_ENABLE_ALL="GraphOptimizationLevel.ORT_ENABLE_ALL")
        self.ExecutionMode = SimpleNamespace(ORT_SEQUENTIAL="sequential")
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self._value)

    def preload_dlls(self) -> None:
        self.preloads += 1

    def SessionOptions(self) -> Any:  # noqa: N802  # the library's name
        entries: dict[str, str] = {}
        return SimpleNamespace(
            enable_profiling=False,
            add_session_config_entry=entries.__setitem__,
            get_session_config_entry=entries.__getitem__,
            entries=entries,
        )

    def InferenceSession(self, path: str, options: Any, **more: Any) -> Any:  # noqa: N802  # the library's name
        self.sessions.append((options, more))
        self.calls.append("session")
        return SimpleNamespace(
            get_providers=lambda: self.listed,
            get_provider_options=lambda: {CUDA: {"use_tf32": more["providers"][0][1]["use_tf32"]}},
            get_session_options=lambda: options,
            get_provider_graph_assignment_info=self._record,
            run=self._run,
            end_profiling=lambda: self._profile(options.profile_file_prefix),
            io_binding=self._binding,
            run_with_iobinding=lambda binding, options=None: self.calls.append("run"),
        )

    def _record(self) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=provider, get_nodes=lambda name=name, op=op: [SimpleNamespace(name=name, op_type=op)]
            )
            for (name, op, _), provider in self.assigned
        ]

    def _run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        self.calls.append("run")
        return [np.zeros((2, 7, 3), np.float32)]

    def _profile(self, prefix: str) -> str:
        events = [
            {
                "cat": "Node",
                "name": f"{name}_kernel_time",
                "args": {"op_name": op, "provider": provider, "input_type_shape": shape, "output_type_shape": shape},
            }
            for (name, op, shape), provider in self.profiled
        ]
        path = Path(f"{prefix}_1.json")
        path.write_text(json.dumps(events))
        return str(path)

    def _binding(self) -> Any:
        return SimpleNamespace(
            bind_ortvalue_input=lambda name, value: self.calls.append(f"input {name} on {value.device}"),
            bind_output=lambda name, device, number: self.calls.append(f"output {name} on {device}:{number}"),
            synchronize_outputs=lambda: self.calls.append("synchronize"),
            get_outputs=lambda: [self._value(None, "cuda", 0)],
        )

    def _value(self, array: Any, device: str, number: int) -> Any:
        return SimpleNamespace(
            device=f"{device}:{number}",
            update_inplace=lambda array: self.calls.append("to device"),
            numpy=lambda: self.calls.append("to host"),
        )


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a simulated onnxruntime in the place of the real one."""

    def put(listed: list[str], assigned: list[Any], profiled: list[Any]) -> Simulated:
        simulated = Simulated(listed, assigned, profiled)
        monkeypatch.setitem(sys.modules, "onnxruntime", simulated)
        return simulated

    return put


def opened(artifact: Artifact, **settings: Any) -> Any:
    return get_runtime("ort-cuda").open(artifact, Settings(**settings))


def test_a_provider_that_was_not_created_is_refused(linear: Artifact, simulate: Any) -> None:
    """What onnxruntime-gpu does without a GPU: the session is built, and all of it runs on the CPU."""
    simulated = simulate([CPU], [(PRODUCT, CPU), (BIAS, CPU)], [])
    with pytest.raises(
        PlacementError, match="CUDAExecutionProvider was asked for, but the session has only CPUExecution"
    ):
        opened(linear)
    assert simulated.preloads == 1


def test_a_provider_that_is_listed_while_the_cpu_has_the_nodes_is_refused(linear: Artifact, simulate: Any) -> None:
    simulate([CUDA, CPU], [(PRODUCT, CPU), (BIAS, CPU)], [(PRODUCT, CPU), (BIAS, CPU)])
    with pytest.raises(
        PlacementError, match=r"1 nodes with arithmetic are assigned to CPUEx.* of CUDAEx.*: MatMul product"
    ):
        opened(linear)
    with (
        opened(linear, allow_fallback=True) as session,
        pytest.raises(PlacementError, match="no node ran on CUDAExecutionProvider"),
    ):
        session.prove(linear.inputs("2x7"))


def test_all_on_cuda_is_proven_by_both_witnesses(linear: Artifact, simulate: Any) -> None:
    nodes = [(PRODUCT, CUDA), (BIAS, CUDA), (LENGTH, CPU)]
    simulated = simulate([CUDA, CPU], nodes, nodes)
    with opened(linear) as session:
        assert session.placement() is None  # not before a run
        placement = session.prove(linear.inputs("2x7"))
        assert session.prove(linear.inputs("2x7")) is placement  # found out once
    assert placement.proof == "profile and assignment"
    assert placement.providers[CUDA].nodes == 2
    assert placement.providers[CPU].nodes == 1
    assert placement.providers[CUDA].flops_share > 0.99
    assert placement.fallen_back == ()
    profiled, plain = simulated.sessions[1][0], simulated.sessions[0][0]
    assert profiled.enable_profiling
    assert not plain.enable_profiling
    assert not Path(profiled.profile_file_prefix).parent.exists()


def test_a_record_that_lists_the_cpus_nodes_alone_is_completed_by_the_profile(linear: Artifact, simulate: Any) -> None:
    simulate([CUDA, CPU], [(LENGTH, CPU)], [(PRODUCT, CUDA), (BIAS, CUDA), (LENGTH, CPU)])
    with opened(linear) as session:
        assert session.prove(linear.inputs("2x7")).providers[CUDA].nodes == 2


def test_one_operator_that_fell_back_is_refused_unless_allowed(linear: Artifact, simulate: Any) -> None:
    simulate([CUDA, CPU], [(BIAS, CPU)], [(PRODUCT, CUDA), (BIAS, CPU)])
    with (
        opened(linear) as session,
        pytest.raises(PlacementError, match=r"ran on CPUEx.* instead of CUDAEx.*: Add bias"),
    ):
        session.prove(linear.inputs("2x7"))
    with opened(linear, allow_fallback=True) as session:
        assert session.prove(linear.inputs("2x7")).fallen_back == ("Add bias",)


def test_witnesses_that_disagree_are_no_proof(linear: Artifact, simulate: Any) -> None:
    simulate([CUDA, CPU], [(BIAS, CPU)], [(PRODUCT, CUDA), (BIAS, CUDA)])
    with opened(linear) as session, pytest.raises(PlacementError, match="Add bias"):
        session.prove(linear.inputs("2x7"))


@pytest.mark.parametrize(("tf32", "option"), [(False, "0"), (True, "1")])
def test_tf32_is_switched_and_told(linear: Artifact, simulate: Any, tf32: bool, option: str) -> None:
    simulated = simulate([CUDA, CPU], [(PRODUCT, CUDA)], [])
    with opened(linear, tf32=tf32) as session:
        asked = simulated.sessions[0][1]
        assert asked["providers"] == [(CUDA, {"device_id": "0", "use_tf32": option}), CPU]
        assert asked["enable_fallback"] == 0
        assert session.details()[f"{CUDA} options"] == json.dumps({"use_tf32": option})


def test_a_bound_call_stays_on_the_device_and_waits_for_it(linear: Artifact, simulate: Any) -> None:
    simulated = simulate([CUDA, CPU], [(PRODUCT, CUDA)], [])
    with opened(linear) as session:
        step = session.bind(linear.inputs("2x7"))
        assert simulated.calls == ["session", "input x on cuda:0", "output y on cuda:0"]
        simulated.calls.clear()
        step()
        step()
        assert simulated.calls == ["run", "synchronize"] * 2


def test_copies_are_calls_of_their_own(linear: Artifact, simulate: Any) -> None:
    simulated = simulate([CUDA, CPU], [(PRODUCT, CUDA)], [])
    with opened(linear) as session:
        to_device, to_host = session.copies(linear.inputs("2x7"))
        simulated.calls.clear()
        to_device()
        to_host()
        assert simulated.calls == ["to device", "to host"]
    with opened(linear, io_binding=False) as session:
        assert session.copies(linear.inputs("2x7")) is None


@pytest.mark.parametrize(
    ("wheels", "reason", "remedy"),
    [
        (Wheels(names={}, package="", version=""), "ONNX Runtime is not installed", "pip install 'crosshead[cuda]'"),
        (
            Wheels(names={"onnxruntime": "1.32.0"}, package="onnxruntime", version="1.32.0"),
            "onnxruntime 1.32.0 is installed, and what is on disk holds no CUDA provider",
            "pip uninstall -y onnxruntime && pip install 'crosshead[cuda]'",
        ),
        (
            Wheels(
                names={"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}, package="onnxruntime", version="1.32.0"
            ),
            "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 are both installed and overwrite each other, and what is on "
            "disk holds no CUDA provider",
            "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'crosshead[cuda]'",
        ),
    ],
)
def test_the_wrong_wheel_is_told_with_its_remedy(wheels: Wheels, reason: str, remedy: str) -> None:
    assert wrong_wheel(wheels) == Unavailable(reason=reason, remedy=remedy)


NOT_LOADED = (
    "[E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] Failed to load library "
    "/somewhere/capi/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object file: "
    "No such file or directory\n"
    "[W:onnxruntime:Default] Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*. Please install "
    "all dependencies as mentioned in the GPU requirements page\n"
)


@pytest.mark.parametrize(
    ("facts", "stderr", "reason"),
    [
        (
            CudaFacts(error="libcuda.so.1: cannot open shared object file: No such file or directory"),
            "",
            "onnxruntime-gpu 1.31.1 is installed, but there is no NVIDIA driver (libcuda.so.1: cannot open shared "
            "object file: No such file or directory)",
        ),
        (CudaFacts(driver=True, driver_error=100), "", "the NVIDIA driver sees no GPU"),
        (CudaFacts(driver=True), "", "the NVIDIA driver sees no GPU"),
        (CudaFacts(driver=True, driver_error=803), "", "the NVIDIA driver fails with error 803"),
        (
            CudaFacts(driver=True, devices=["NVIDIA T4"], driver_cuda="12.4", error="Fail: the CPU was forbidden"),
            NOT_LOADED,
            "onnxruntime-gpu 1.31.1 cannot load libcublasLt.so.13 (it requires cuDNN 9.* and CUDA 13.*; the driver "
            "serves CUDA 12.4)",
        ),
        (
            CudaFacts(driver=True, devices=["NVIDIA K80"], driver_cuda="12.4", error="Fail: no kernel image"),
            "",
            "onnxruntime-gpu 1.31.1 does not compute on CUDA: Fail: no kernel image",
        ),
    ],
)
def test_why_cuda_does_not_work_is_told_apart(facts: CudaFacts, stderr: str, reason: str) -> None:
    found = diagnose(msgspec.json.encode(facts), stderr, 0, GPU_WHEEL)
    assert isinstance(found, Unavailable)
    assert reason in found.reason
    assert found.remedy


def test_a_gpu_that_computed_is_available() -> None:
    facts = CudaFacts(driver=True, devices=["NVIDIA H200"], driver_cuda="13.0", ran=True)
    found = diagnose(msgspec.json.encode(facts), NOT_LOADED, 0, GPU_WHEEL)
    assert found == Available(version="1.31.1", detail="NVIDIA H200; driver for CUDA 13.0")


def test_a_check_that_crashes_is_told() -> None:
    found = diagnose(b"", "Fatal Python error: Segmentation fault", -11, GPU_WHEEL)
    assert isinstance(found, Unavailable)
    assert "ended with status -11: Fatal Python error: Segmentation fault" in found.reason


def test_the_probe_asks_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_wheels", lambda: GPU_WHEEL)
    facts = CudaFacts(driver=True, devices=["NVIDIA H200"], driver_cuda="13.0", ran=True)
    script = f"print({msgspec.json.encode(facts).decode()!r})"
    monkeypatch.setattr(module, "python_command", lambda name: [sys.executable, "-c", script])
    assert isinstance(get_runtime("ort-cuda").probe(), Available)
    monkeypatch.setattr(module, "python_command", lambda name: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(module, "CHECK_TIMEOUT_S", 0.2)
    found = get_runtime("ort-cuda").probe()
    assert isinstance(found, Unavailable)
    assert "did not end (TimeoutExpired)" in found.reason


def test_the_check_runs_here_and_answers_in_json() -> None:
    """On a machine without a GPU it says so; with one, it computes. Either way it neither crashes nor prints more."""
    done = subprocess.run(
        [sys.executable, "-m", "crosshead.runtimes._cuda_check"], capture_output=True, check=True, timeout=120
    )
    facts = msgspec.json.decode(done.stdout, type=CudaFacts)
    assert b"RuntimeWarning" not in done.stderr
    assert facts.ran or facts.error or facts.driver_error or not facts.devices


@pytest.fixture
def gpu() -> Available:
    """Return what the probe says of the GPU; skip where there is none."""
    found = get_runtime("ort-cuda").probe()
    if isinstance(found, Unavailable):
        pytest.skip(f"ort-cuda is not available here: {found.reason}")
    return found


@pytest.mark.cuda
def test_on_a_gpu(assert_close: Any, gpu: Available, linear: Artifact, start_worker: Any, tmp_path: Path) -> None:
    worker = start_worker("ort-cuda", linear, Settings(threads=1))
    ran = worker.run(linear.inputs_path("2x7"), tmp_path / "out.npz")
    assert ran.placement is not None
    assert ran.placement.providers[CUDA].nodes >= 1
    assert ran.placement.fallen_back == ()
    got = np.load(tmp_path / "out.npz")["y"]
    assert_close(got, linear.expected("2x7")["y"], rtol=1e-5, atol=1e-5)
    warm = worker.warm_up(linear.inputs_path("2x7"), 2.0)
    assert warm.host_to_device_s is not None
    assert warm.device_to_host_s is not None
    assert statistics.median(worker.measure(0.0, 0.2).samples_s) > 0
    assert '"use_tf32": "0"' in worker.opened().details[f"{CUDA} options"]


@pytest.mark.cuda
def test_on_a_gpu_that_is_hidden_nothing_runs(
    gpu: Available, linear: Artifact, start_worker: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = get_runtime("ort-cuda").probe()
    assert isinstance(found, Unavailable)
    assert "sees no GPU" in found.reason
    with pytest.raises(PlacementError):
        start_worker("ort-cuda", linear).opened()
