"""Show a fault with onnx, onnxruntime and numpy alone: `python reproduce.py`.

Exit status 1: the fault shows. 0: it is gone. 2: the script could not run.
"""

# ruff: noqa: T201  # it prints what it sees

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def load(name: str) -> dict[str, Any]:
    """Return arrays by name; NumPy has no bfloat16 of its own, so such arrays lie as their bits."""
    arrays: dict[str, Any] = {}
    with np.load(HERE / name, allow_pickle=False) as file:
        for key in file.files:
            if key.endswith("@bfloat16"):
                import ml_dtypes  # comes with onnx

                arrays[key[: -len("@bfloat16")]] = file[key].view(ml_dtypes.bfloat16)
            else:
                arrays[key] = file[key]
    return arrays


def with_onnxruntime(facts: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the model in ONNX Runtime under the settings of the failing run."""
    import onnxruntime

    print("onnxruntime", onnxruntime.__version__)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = facts["threads"]
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, facts["optimization"])
    more = {"disabled_optimizers": facts["disabled_optimizers"]} if facts["disabled_optimizers"] else {}
    providers = [tuple(each) if isinstance(each, list) else each for each in facts["providers"]]
    session = onnxruntime.InferenceSession(str(HERE / "model.onnx"), options, providers=providers, **more)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def with_reference(_: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the model in the reference evaluator of onnx."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    print("onnx", onnx.__version__)
    evaluator = ReferenceEvaluator(str(HERE / "model.onnx"))
    return dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))


def distance(got: Any, want: Any) -> tuple[float, float]:
    """Return ||got - want|| / ||want|| in float64, over all elements and over the worst row (last axis)."""
    got, want = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    if got.shape != want.shape:
        return np.inf, np.inf
    if want.size == 0:
        return 0.0, 0.0
    width = want.shape[-1] if want.ndim else 1
    got, want = got.reshape(-1, width), want.reshape(-1, width)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    special = ~(np.isfinite(got) & np.isfinite(want))
    if np.any(special & ~same):
        return np.inf, np.inf
    moved = (np.where(special, 0.0, got - want) ** 2).sum(axis=1)
    norms = (np.where(special, 0.0, want) ** 2).sum(axis=1)
    if not moved.any():
        return 0.0, 0.0
    if not norms.any():
        return np.inf, np.inf
    rows = moved / np.maximum(norms, norms.mean())
    return float(np.sqrt(moved.sum() / norms.sum())), float(np.sqrt(rows.max()))


def main() -> int:
    """Run, compare with what is expected, and say what is seen."""
    facts = json.loads((HERE / "facts.json").read_text(encoding="utf-8"))
    inputs, expected = load("inputs.npz"), load("expected.npz")
    print(facts["message"])
    runner = {"onnxruntime": with_onnxruntime, "onnx.reference": with_reference}.get(facts["script"])
    if runner is None:
        print(f"{facts['backend']} cannot be run by this script; shown is what it gave when it was recorded")
        got = load("got.npz")
    else:
        try:
            got = runner(facts, inputs)
        except Exception as error:  # noqa: BLE001  # it may be the very fault
            print(f"the model does not run: {type(error).__name__}: {error}")
            return 1 if facts["crashes"] else 2
    shows = False
    for name, limits in facts["limits"].items():
        whole, row = distance(got[name], expected[name]) if name in got else (np.inf, np.inf)
        wrong = not (whole <= limits[0] and row <= limits[1])
        shows = shows or wrong
        print(
            f"{name}: relative error {whole:.3g} (limit {limits[0]:.3g}), in the worst row {row:.3g} "
            f"(limit {limits[1]:.3g}): {'WRONG' if wrong else 'right'}"
        )
    print("the fault shows" if shows else "the fault is gone")
    return 1 if shows else 0


if __name__ == "__main__":
    sys.exit(main())
