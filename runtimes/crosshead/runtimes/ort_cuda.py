"""`ort-cuda`: ONNX Runtime on an NVIDIA GPU.

Asked for CUDA where there is none, ONNX Runtime lists the provider, builds the session and computes on the CPU, with a
few lines on the error output at most. So the probe computes one matrix product on CUDA with the CPU forbidden, in a
process of its own, and every session proves node by node where it ran (`crosshead.runtimes.placement`).

Not yet proven on hardware: written and tested against simulated sessions; the tests marked `cuda` run it on a GPU.
"""

import re
import subprocess
import sys
from typing import ClassVar

import msgspec

from crosshead.runtimes._cuda_facts import CudaFacts
from crosshead.runtimes._environment import child_environment, python_command
from crosshead.runtimes._ort_wheels import GPU_WHEEL, Wheels, find_wheels
from crosshead.runtimes._scrub import one_line
from crosshead.runtimes.base import Available, Capabilities, Settings, Unavailable
from crosshead.runtimes.errors import BackendError
from crosshead.runtimes.ort import OPSETS, OrtRuntime

CUDA_PROVIDER = "CUDAExecutionProvider"
CHECK_TIMEOUT_S = 120.0

_INSTALL = "pip install 'crosshead[cuda]'"
_MISSING_LIBRARY = re.compile(
    r"((?:lib)?[\w-]+\.(?:so[.\d]*|dll))\S*:? (?:cannot open shared object|is missing|not found)"
)
_REQUIRED = re.compile(r"Require (.+?)\. Please")
_NO_DEVICE = 100


class OrtCuda(OrtRuntime):
    """ONNX Runtime's CUDA provider."""

    name: ClassVar[str] = "ort-cuda"
    provider: ClassVar[str] = CUDA_PROVIDER
    device: ClassVar[str] = "cuda"
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="graph", device="cuda", precisions=("fp32", "fp16", "bf16"), opsets=OPSETS
    )
    distributions: ClassVar[tuple[str, ...]] = (
        *OrtRuntime.distributions,
        "nvidia-cublas",
        "nvidia-cublas-cu12",
        "nvidia-cuda-runtime",
        "nvidia-cuda-runtime-cu12",
        "nvidia-cudnn-cu12",
        "nvidia-cudnn-cu13",
    )

    def probe(self) -> Available | Unavailable:
        """Look at the wheel, then ask the driver and compute one product in a process of its own."""
        wheels = find_wheels()
        wrong = wrong_wheel(wheels)
        if wrong is not None:
            return wrong
        command = python_command("crosshead.runtimes._cuda_check")
        try:
            done = subprocess.run(
                command,
                env=child_environment(Settings()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            return Unavailable(
                reason=f"the check for CUDA did not end ({type(error).__name__})", remedy="try nvidia-smi"
            )
        return diagnose(done.stdout, done.stderr.decode(errors="replace"), done.returncode, wheels)

    def import_library(self) -> None:
        """Import onnxruntime and load the CUDA and cuDNN libraries that pip installed.

        Raises:
            BackendError: it is not installed.
        """
        super().import_library()
        preload = getattr(sys.modules["onnxruntime"], "preload_dlls", None)
        if preload is None:
            raise BackendError(f"this ONNX Runtime has no preload_dlls; {_INSTALL}")
        preload()

    def provider_options(self, settings: Settings) -> dict[str, str]:
        """TF32 is on by default in ONNX Runtime; here it is as the settings say."""
        return {"device_id": "0", "use_tf32": "1" if settings.tf32 else "0"}


def wrong_wheel(wheels: Wheels) -> Unavailable | None:
    """Say what is wrong with the wheel that is installed; None when it is the one for CUDA."""
    if not wheels.package:
        return Unavailable(reason="ONNX Runtime is not installed", remedy=_INSTALL)
    if wheels.package != GPU_WHEEL:
        uninstall = " ".join(sorted(wheels.names) or [wheels.package])
        reason = wheels.clash or f"{wheels.package} {wheels.version} is installed"
        return Unavailable(
            reason=f"{reason}, and what is on disk holds no CUDA provider",
            remedy=f"pip uninstall -y {uninstall} && {_INSTALL}",
        )
    return None


def diagnose(answer: bytes, stderr: str, status: int, wheels: Wheels) -> Available | Unavailable:
    """Turn what the check found into a reason and a remedy.

    Args:
        answer: its standard output.
        stderr: its error output, where ONNX Runtime says why a provider was not created.
        status: its exit status.
        wheels: the wheel that is installed.
    """
    title = f"{wheels.package} {wheels.version}"
    try:
        facts = msgspec.json.decode(answer, type=CudaFacts)
    except msgspec.MsgspecError:
        reason = f"the check of {title} ended with status {status}: {one_line(stderr[-300:])}"
        return Unavailable(reason=reason, remedy="try nvidia-smi")
    if facts.ran:
        return Available(
            version=wheels.version, detail=f"{', '.join(facts.devices)}; driver for CUDA {facts.driver_cuda}"
        )
    if not facts.driver:
        reason = f"{title} is installed, but there is no NVIDIA driver ({one_line(facts.error)})"
        return Unavailable(reason=reason, remedy="run on a machine where nvidia-smi answers")
    if facts.driver_error or not facts.devices:
        why = "sees no GPU" if facts.driver_error in (0, _NO_DEVICE) else f"fails with error {facts.driver_error}"
        return Unavailable(
            reason=f"{title} is installed, but the NVIDIA driver {why}",
            remedy="see nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    missing = _MISSING_LIBRARY.search(stderr)
    required = _REQUIRED.search(stderr)
    needs = f" (it requires {required[1]}; the driver serves CUDA {facts.driver_cuda})" if required else ""
    if missing:
        return Unavailable(reason=f"{title} cannot load {missing[1]}{needs}", remedy=_INSTALL)
    return Unavailable(
        reason=f"{title} does not compute on CUDA{needs}: {one_line(facts.error or stderr[-300:])}", remedy=_INSTALL
    )
