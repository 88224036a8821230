"""Find what a person named, call its factory once under the seed, and hold what came: module, inputs, axes, roles.

A source is a built-in block (`mha`), `path/to/file.py:factory` or `package.module:factory`.
A bare `.onnx` has no module; see `crosshead.export.onnx_file`.
"""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from crosshead.export._quiet import printing_to_stderr
from crosshead.export._returned import Returned, guess_roles, read_returned
from crosshead.export.artifact import (
    Arrays,
    ArtifactNotice,
    Source,
    SourceError,
    check_plain,
    import_factory,
    sha256_file,
)

if TYPE_CHECKING:
    from crosshead.model_def import Block

Option = bool | int | float | str | None


@dataclass(frozen=True)
class LoadedSource:
    """A module ready to be exported, with the inputs to export it on.

    Attributes:
        module: in evaluation mode, unless it was asked to be left in training mode.
        inputs: example arrays by argument name, in the order of forward's arguments.
        dynamic: by input and axis, the name of the axis; axes that are not in it are static.
        roles: by input, one of `ROLES`; guessed from conventional names where none were declared.
        source: what the record says of it; free of paths.
        folder: where a user's file or package stands, for whoever imports the factory again; None for built-in blocks
            and installed packages.
        notices: what a person should know about the source.
        block: the built-in block, or None.
    """

    module: nn.Module
    inputs: Arrays
    dynamic: dict[str, dict[int, str]]
    roles: dict[str, str]
    source: Source
    folder: Path | None
    notices: tuple[ArtifactNotice, ...] = ()
    block: "Block | None" = None


def load_source(
    text: str, *, options: Mapping[str, Option] = {}, seed: int = 0, keep_training_mode: bool = False
) -> LoadedSource:
    """Import and call the factory that `text` names.

    The generators of torch, NumPy and Python stand at `seed` during the call and are put back afterwards. What the
    factory prints goes to standard error.

    Args:
        text: name of a built-in block, `path/to/file.py:factory` or `package.module:factory`.
        options: keyword arguments for the factory.
        seed: from 0 to 2^64 - 1.
        keep_training_mode: leave a module that came in training mode as it is.

    Raises:
        SourceError: in one line: nothing there, the import failed, the factory does not take the options, it raised,
            or what it returned cannot be exported.
    """
    block = None if ":" in text else _find_block(text)
    reference, folder, digest = (block.factory, None, None) if block is not None else _locate(text)
    name = block.name if block is not None else reference
    with seeded(seed), printing_to_stderr():
        factory = import_factory(reference, folder)
        if isinstance(factory, nn.Module):
            raise SourceError(f"{name} is a module; name a function that returns it with its inputs: (module, inputs)")
        returned = read_returned(name, _call(name, factory, options, block))
    notices = [
        ArtifactNotice(
            code="aliased-input",
            message=f"inputs {first!r} and {second!r} were one tensor; each was given memory of its own",
            where=name,
        )
        for first, second in returned.aliases
    ]
    _settle_device(name, returned.module, notices)
    training = _settle_mode(name, returned.module, keep_training_mode, notices)
    roles = returned.roles or _guessed(name, returned, notices)
    source = Source(
        kind="factory" if block is None else "block",
        name=name,
        factory=reference,
        options=dict(options),
        seed=seed,
        file_sha256=digest,
        training=training,
    )
    return LoadedSource(
        returned.module, returned.inputs, returned.dynamic, roles, source, folder, tuple(notices), block
    )


def _find_block(text: str) -> "Block":
    from crosshead.model_def.blocks import BLOCKS

    if text in BLOCKS:
        return BLOCKS[text]
    if text.endswith(".onnx"):
        raise SourceError(f"{Path(text).name} is an ONNX file; it has no factory (export_onnx_file takes it as it is)")
    if text.endswith(".py"):
        raise _no_factory(Path(text))
    close = difflib.get_close_matches(text, BLOCKS, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    raise SourceError(
        f"no block named {text!r}; {hint}Blocks: {', '.join(BLOCKS)}. "
        "A module of your own is named path.py:factory or package.module:factory"
    )


def _no_factory(path: Path) -> SourceError:
    functions = _functions(path)
    offer = f"; it has: {', '.join(functions[:12])}" if functions else ""
    return SourceError(f"{path.name} alone names no factory; give {path.name}:factory{offer}")


def _functions(path: Path) -> list[str]:
    """Return the public functions of a Python file without running it."""
    try:
        check_plain(path)
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]


def _locate(text: str) -> tuple[str, Path | None, str | None]:
    """Return the reference to import, the folder it is found in, and the digest of a user's file."""
    location, _, function = text.rpartition(":")
    if location.endswith(".py"):
        path = Path(location).expanduser()
        if not function:
            raise _no_factory(path)
        if not path.is_file():
            raise SourceError(f"{location} is not there; expected a Python file with the factory {function!r}")
        path = path.resolve()
        return f"{path.name}:{function}", path.parent, sha256_file(path)
    here = Path.cwd()
    top = location.partition(".")[0]
    local = (here / f"{top}.py").is_file() or (here / top).is_dir()
    return text, here if local and not _installed_elsewhere(top, here) else None, None


def _installed_elsewhere(top: str, here: Path) -> bool:
    """Whether a top-level name is importable already, from another place than this folder."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.origin else [])]
    return not any(Path(place).is_relative_to(here) for place in places)


def _call(name: str, factory: Callable[..., Any], options: Mapping[str, Option], block: "Block | None") -> object:
    """Call the factory; whatever goes wrong in it becomes one line."""
    if block is None:
        _check_options(name, factory, options)
    try:
        return factory(**options)
    except Exception as error:
        from crosshead.model_def.errors import ConfigError

        said = " ".join(str(error).split())
        if isinstance(error, ConfigError):
            raise SourceError(said) from error
        raise SourceError(f"{name} raised {type(error).__name__}: {said or '(no message)'}") from error
    except SystemExit as error:
        raise SourceError(
            f"{name} ended the program (exit {error.code}); a factory returns (module, inputs)"
        ) from error


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Option]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # a callable that does not tell; the call itself will
    takes = ", ".join(signature.parameters) or "no options"
    try:
        signature.bind(**options)
    except TypeError as error:
        raise SourceError(f"{name}: {error} (--set field=value); it takes: {takes}") from error


def _settle_device(name: str, module: nn.Module, notices: list[ArtifactNotice]) -> None:
    """Bring a module to the CPU, where it is exported and where its oracle is computed."""
    devices = {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} - {"cpu"}
    if "meta" in devices:
        raise SourceError(f"{name} returned a module whose weights are on the meta device; load them in the factory")
    if devices:
        module.cpu()
        message = f"the module came on {', '.join(sorted(devices))} and was moved to the CPU to be exported"
        notices.append(ArtifactNotice(code="moved-to-cpu", message=message, where=name))


def _settle_mode(name: str, module: nn.Module, keep: bool, notices: list[ArtifactNotice]) -> bool:
    """Put a module into evaluation mode unless it is to be kept; return whether it trains."""
    if not any(part.training for part in module.modules()):
        return False
    affected = sorted({type(part).__name__ for part in module.modules() if part.training and _depends_on_mode(part)})
    what = f" ({', '.join(affected)})" if affected else ""
    if keep:
        message = f"left in training mode as asked{what}; results may change from run to run"
        notices.append(ArtifactNotice(code="training-mode", message=message, where=name))
        return True
    module.eval()
    if affected:  # nothing else behaves otherwise in training mode, and nn.Module starts in it
        message = f"came in training mode{what} and was switched to evaluation; --keep-training-mode leaves it"
        notices.append(ArtifactNotice(code="training-mode", message=message, where=name))
    return False


def _depends_on_mode(part: nn.Module) -> bool:
    """Whether a layer computes something else in training mode."""
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.MultiheadAttention, nn.RNNBase)):
        return part.dropout > 0
    if isinstance(part, nn.modules.batchnorm._NormBase):
        return True
    return type(part).__module__.partition(".")[0] != "torch" and _reads_mode(type(part))


def _reads_mode(kind: type) -> bool:
    """Whether a user's module reads its own mode."""
    try:
        return "self.training" in inspect.getsource(kind)
    except (OSError, TypeError):
        return True


def _guessed(name: str, returned: Returned, notices: list[ArtifactNotice]) -> dict[str, str]:
    roles = guess_roles(returned.inputs)
    if roles:
        told = ", ".join(key if key == role else f"{key} as {role}" for key, role in roles.items())
        message = f"roles taken from the inputs' names: {told}; return roles as the fourth value to say otherwise"
        notices.append(ArtifactNotice(code="roles-guessed", message=message, where=name))
    return roles


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let all generators stand at `seed` inside, and where they stood before outside."""
    if not 0 <= seed < 2**64:
        raise SourceError(f"seed: expected a whole number from 0 to 2^64 - 1, got {seed}")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # a user's factory may use the old global
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]  # torch leaves it bare
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # as above
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002  # as above
