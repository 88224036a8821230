"""Find out in a process of its own whether ONNX Runtime really computes on CUDA here: `python -m …_cuda_check`.

In a process of its own, because loading CUDA can crash, prints, and takes memory on the device. One JSON object goes
to standard output; everything that the libraries print goes to the error output.
"""

import ctypes
import os
import sys

import msgspec

from crosshead.runtimes._cuda_facts import CudaFacts

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def ask_driver(facts: CudaFacts) -> None:
    """Fill in what the driver says. No context is made on a device."""
    try:
        cuda = ctypes.CDLL(_DRIVER)
    except OSError as error:
        facts.error = str(error)
        return
    facts.driver = True
    facts.driver_error = cuda.cuInit(0)
    if facts.driver_error:
        return
    number, name = ctypes.c_int(0), ctypes.create_string_buffer(128)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        facts.driver_cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    for device in range(number.value):
        if cuda.cuDeviceGetName(name, len(name), device) == 0:
            facts.devices.append(name.value.decode(errors="replace"))


def run_one_product(facts: CudaFacts) -> None:
    """Compute one matrix product in a session that may not use the CPU."""
    import numpy as np
    import onnx.helper
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    square = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in "xy"]
    node = onnx.helper.make_node("MatMul", ["x", "x"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one_product", square[:1], square[1:]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CUDAExecutionProvider"], enable_fallback=0
    )
    two = 2.0 * np.eye(4, dtype=np.float32)
    (product,) = session.run(None, {"x": two})
    facts.ran = "CUDAExecutionProvider" in session.get_providers() and bool(np.array_equal(product, 2.0 * two))


def main() -> None:
    """Print the facts as JSON."""
    channel = os.dup(1)
    os.dup2(2, 1)
    facts = CudaFacts()
    ask_driver(facts)
    if facts.devices:
        try:
            run_one_product(facts)
        except Exception as error:  # noqa: BLE001  # whatever stops it is what was asked for
            facts.error = f"{type(error).__name__}: {error}"
    os.write(channel, msgspec.json.encode(facts))


if __name__ == "__main__":
    main()
