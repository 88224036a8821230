"""The graph that ONNX Runtime really runs: as its optimizers left it, fused operators included.

Run as `python -m crosshead.harness.diagnose.optimized MODEL OUT LEVEL [LEFT_OUT…]`, since making a session may
end the process.
"""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from crosshead.runtimes import Settings

if TYPE_CHECKING:
    import onnx

    from crosshead.export.artifact import Precision

_LIMIT_S = 60.0


def optimized_model(model: Path, settings: Settings, precision: "Precision", scratch: Path) -> "onnx.ModelProto | None":
    """Return the graph that a session on the CPU makes of a model; None where it makes none.

    Args:
        model: an `.onnx` file.
        settings: the optimisation level counts.
        precision: of the graph; some optimizers are left out by it.
        scratch: an existing folder.
    """
    import onnx

    from crosshead.runtimes._environment import child_environment, python_command
    from crosshead.runtimes.ort import LEFT_OUT

    out = scratch / "optimized.onnx"
    out.unlink(missing_ok=True)
    command = [*python_command("crosshead.harness.diagnose.optimized"), str(model), str(out), settings.optimization]
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*command, *LEFT_OUT.get(precision, ())],
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    return onnx.load(out) if out.is_file() else None


def main() -> None:
    """Make the session, which writes the graph."""
    import onnxruntime

    from crosshead.runtimes.ort import CPU_PROVIDER, session_options

    model, out, level, *left_out = sys.argv[1:]
    options = session_options(onnxruntime, Settings(optimization=level))  # type: ignore[arg-type]  # one of its levels
    options.optimized_model_filepath = out
    more = {"disabled_optimizers": left_out} if left_out else {}
    onnxruntime.InferenceSession(model, options, providers=[CPU_PROVIDER], **more)


if __name__ == "__main__":
    main()
