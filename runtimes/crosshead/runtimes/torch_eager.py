"""`torch-eager`: the PyTorch module itself, on the CPU, as PyTorch runs it call by call.

The worker calls the factory again, under the same seed, casts the module where the artifact's was cast, and then loads
the weights that the artifact carries: a factory may draw other numbers the second time, but it has to build the same
module.

What is forced, after the factory was imported and called, since either may have set something else: matrix products at
"highest", no TF32 and no bfloat16 inside fp32 products (unless `Settings.tf32`, which concerns CUDA alone), no
reduced-precision reductions, the number of threads, and torch's fused fast path for encoder layers **off**. That path
computes something else at padded positions than the path that is exported and differentiated (pytorch#163640), so with
it on, this row would not be the function that all the others compute.

torch is imported here only, when it is used.
"""

import importlib.metadata
import importlib.util
import inspect
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from crosshead.export.artifact import Artifact, Source, cast_module, import_factory, sha256_file
from crosshead.runtimes.base import (
    Array,
    Available,
    Capabilities,
    Outputs,
    Placement,
    ProviderShare,
    Runtime,
    Session,
    Settings,
    Step,
    Unavailable,
)
from crosshead.runtimes.errors import BackendError, PlacementError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import nn

_NO_KERNEL = re.compile(r"\"(?P<op>[\w:]+)\" not implemented for '(?P<dtype>\w+)'")
_NO_DTYPE = re.compile(r"(?:unsupported dtype|not supported|only supported)\b.*\b(?:Half|BFloat16)\b", re.IGNORECASE)
_DTYPES = {"Half": "float16", "BFloat16": "bfloat16", "Float": "float32", "ComplexHalf": "complex32"}


class TorchEager(Runtime):
    """The backend."""

    name: ClassVar[str] = "torch-eager"
    capabilities: ClassVar[Capabilities] = Capabilities(
        executes="module", precisions=("fp32", "fp16", "bf16"), calls_at_once=True
    )
    distributions: ClassVar[tuple[str, ...]] = ("numpy", "torch", "safetensors")

    def probe(self) -> Available | Unavailable:
        """Look for torch and safetensors without importing them."""
        for library in ("torch", "safetensors"):
            if importlib.util.find_spec(library) is None:
                return Unavailable(reason=f"{library} is not installed", remedy="pip install 'crosshead[torch]'")
        return Available(version=importlib.metadata.version("torch"), detail="eager, on the CPU")

    def import_library(self) -> None:
        """Import torch.

        Raises:
            BackendError: it is not installed.
        """
        try:
            import torch  # noqa: F401  # the import is the point
        except ImportError as error:
            raise BackendError(f"torch cannot be imported ({error}); pip install 'crosshead[torch]'") from error

    def _open(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> Session:
        return TorchSession(artifact, self.load(artifact, settings, source_folder))

    def load(self, artifact: Artifact, settings: Settings, source_folder: str | None) -> "nn.Module":
        """Return the artifact's module with its weights, precision and mode, and force what torch may do.

        Raises:
            UnsupportedError: there is no module, only a graph.
            PlacementError: the module is not on the CPU.
            BackendError: the factory, or the weights, are not those of the export.
        """
        import torch

        torch.set_num_threads(settings.threads)  # before the factory as well: it may compute
        source = artifact.manifest.source
        if source.factory is None or artifact.weights_path is None:
            raise UnsupportedError(f"artifact {artifact.id} has no PyTorch source: it was made from a bare .onnx file")
        module = make_module(source, Path(source_folder) if source_folder is not None else None)
        if source.cast is not None:
            module = cast_module(module, source.cast)
        load_weights(module, artifact.weights_path, source)
        if not source.training:
            module = module.eval()
        elsewhere = {str(value.device) for value in [*module.parameters(), *module.buffers()]} - {"cpu"}
        if elsewhere:
            raise PlacementError(
                f"{source.factory} puts the module on {', '.join(sorted(elsewhere))}; {self.name} is the CPU"
            )
        force_precision(settings)
        torch.set_num_threads(settings.threads)
        return module


def make_module(source: Source, folder: Path | None) -> "nn.Module":
    """Call the factory of `source` again, under its seed, and return the module.

    Raises:
        SourceError: the factory cannot be imported.
        BackendError: it was changed since the export, raises, or returns no module.
    """
    import torch
    from torch import nn

    assert source.factory is not None, "checked by the caller"
    location = source.factory.rpartition(":")[0]
    if location.endswith(".py"):
        _check_unchanged(location, folder, source.file_sha256)
    factory = import_factory(source.factory, folder)
    random.seed(source.seed)
    np.random.seed(source.seed % 2**32)  # noqa: NPY002  # users' factories draw from the global generator
    torch.manual_seed(source.seed)
    try:
        made = factory(**source.options)
    except Exception as error:
        raise BackendError(f"{source.factory} raised {type(error).__name__}: {error}") from error
    module = made[0] if isinstance(made, tuple) and made else made
    if not isinstance(module, nn.Module):
        raise BackendError(f"{source.factory} returned {type(module).__name__}; expected a torch.nn.Module")
    return module


def _check_unchanged(location: str, folder: Path | None, digest: str | None) -> None:
    if folder is None:
        raise BackendError(f"{location} is a file of the user's; its folder has to be given (source_folder)")
    path = folder / location
    if digest is not None and path.is_file() and sha256_file(path) != digest:
        raise BackendError(f"{location} was changed after the export; export again")


def load_weights(module: "nn.Module", path: Path, source: Source) -> None:
    """Copy the stored state into `module`, in place; names, shapes and dtypes have to be the same on both sides.

    Tied parameters may be stored under one of their names only; buffers that are not persistent may be stored or not.

    Raises:
        BackendError: they are not; the message names what differs.
    """
    import torch
    from safetensors.torch import load_file

    stored = load_file(path)
    wanted = {name: value for name, value in module.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    optional = {name: value for name, value in module.named_buffers(remove_duplicate=False) if name not in wanted}
    held = {_place(value) for name, value in wanted.items() if name in stored}
    differences = [
        f"{name} is not stored" for name, value in wanted.items() if name not in stored and _place(value) not in held
    ]
    for name, tensor in stored.items():
        own = wanted.get(name, optional.get(name))
        if own is None:
            differences.append(f"{name} is stored but the module has none")
        elif own.shape != tensor.shape or own.dtype != tensor.dtype:
            differences.append(f"{name} is stored as {_describe(tensor)} but the module has {_describe(own)}")
    if differences:
        more = f" (and {len(differences) - 3} more)" if len(differences) > 3 else ""
        raise BackendError(
            f"the module that {source.factory} makes now does not fit the weights of the artifact: "
            f"{'; '.join(differences[:3])}{more}; export again, or make the factory build the same module every time"
        )
    with torch.no_grad():
        for name, tensor in stored.items():
            own = {**optional, **wanted}[name]
            if not torch.equal(own, tensor):  # an expanded buffer cannot be written to, and need not be
                own.copy_(tensor)


def _place(tensor: "torch.Tensor") -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())


def _describe(tensor: "torch.Tensor") -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def force_precision(settings: Settings) -> None:
    """Set what torch may do to fp32 products, whatever was set before; see the module's docstring."""
    import torch

    backends: Any = torch.backends  # these attributes are made at run time
    for part in (backends.mkldnn, backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn):
        part.fp32_precision = "ieee"
    torch.set_float32_matmul_precision("highest")
    # The older switches set the newer ones with them. The other way round the two disagree, and then torch's own
    # exporter and compiler, which still read the older ones, raise.
    backends.cuda.matmul.allow_tf32 = settings.tf32
    backends.cudnn.allow_tf32 = settings.tf32
    backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    backends.mha.set_fastpath_enabled(False)


class TorchSession(Session):
    """A module that is called as it is, on the CPU, without gradients."""

    def __init__(self, artifact: Artifact, module: "nn.Module") -> None:
        super().__init__(artifact)
        self._module = module
        self._callee: Callable[..., object] = module
        kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
        self._positional = inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.POSITIONAL_ONLY in kinds

    def _run(self, inputs: Mapping[str, Array]) -> Outputs:
        import torch
        from torch.utils import _pytree

        try:
            result = self._call(inputs)()
        except Exception as error:
            unsupported = _unsupported(error)
            if unsupported:
                raise UnsupportedError(f"torch {torch.__version__} {unsupported}") from error
            raise BackendError(f"the module raised {type(error).__name__}: {error}") from error
        leaves = [leaf for leaf in _pytree.tree_leaves(result) if _is_tensor(leaf)]
        names = [spec.name for spec in self._artifact.manifest.outputs]
        if len(leaves) != len(names):
            raise BackendError(
                f"the module gave {len(leaves)} tensors; the artifact has {len(names)} outputs ({', '.join(names)})"
            )
        return {name: _to_numpy(leaf) for name, leaf in zip(names, leaves, strict=True)}

    def _bind(self, inputs: Mapping[str, Array]) -> Step:
        return self._call(inputs)

    def _call(self, inputs: Mapping[str, Array]) -> Step:
        import torch

        callee = self._callee
        tensors = {name: _to_tensor(inputs[name]) for name in (spec.name for spec in self._artifact.manifest.inputs)}
        arguments = tuple(tensors.values()) if self._positional else ()
        keywords = {} if self._positional else tensors

        @torch.inference_mode()
        def step() -> object:
            return callee(*arguments, **keywords)

        return step

    def _placement(self) -> Placement:
        leaves = sum(1 for part in self._module.modules() if not list(part.children()))
        return Placement(providers={"cpu": ProviderShare(nodes=leaves, flops_share=1.0)}, proof="framework")

    def _product(self) -> Callable[[int], Step]:
        import torch

        dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[
            self._artifact.manifest.precision
        ]

        def product(size: int) -> Step:
            a, b = torch.ones(2, size, size, dtype=dtype).unbind()
            out = torch.empty_like(a)
            return lambda: torch.mm(a, b, out=out)

        return product

    def _copying_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def _details(self) -> dict[str, str]:
        import torch

        backends: Any = torch.backends  # these attributes are made at run time
        return {
            "threads": str(torch.get_num_threads()),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn_fp32_precision": backends.mkldnn.matmul.fp32_precision,
            "mha_fastpath": "on" if backends.mha.get_fastpath_enabled() else "off",
            "mode": "training" if self._module.training else "eval",
            "grad": "inference_mode",
            "device": "cpu",
        }


def _unsupported(error: Exception) -> str:
    """Return op and dtype where torch lacks a kernel; empty for any other error."""
    text = " ".join(str(error).split())
    if found := _NO_KERNEL.search(text):
        return f"has no CPU kernel for {found['op']} of {_DTYPES.get(found['dtype'], found['dtype'].lower())}"
    return f"on the CPU: {text}" if _NO_DTYPE.search(text) else ""


def _is_tensor(value: object) -> bool:
    import torch

    return torch.is_tensor(value)


def _to_tensor(array: Array) -> "torch.Tensor":
    import torch

    array = np.ascontiguousarray(array) if array.ndim else array
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_numpy(tensor: Any) -> Array:
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        array: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    return np.asarray(tensor.numpy())
