import subprocess
import sys

import crosshead.runtimes


def test_the_list_is_sorted_and_true() -> None:
    names = crosshead.runtimes.__all__
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and not name.isupper()]
    functions = [name for name in names if name[0].islower()]
    assert names == sorted(constants) + sorted(classes) + sorted(functions)
    assert all(hasattr(crosshead.runtimes, name) for name in names)


def test_importing_it_imports_no_backend() -> None:
    script = (
        "import sys, crosshead.runtimes, crosshead.runtimes.worker_main, crosshead.runtimes._cuda_check\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'scipy', 'safetensors', 'crosshead.model_def'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
