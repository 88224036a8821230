"""Find and call a user's factory: once when exporting, again in a torch worker.

Nothing here imports torch; the factory does.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from crosshead.export.artifact._errors import SourceError


def import_factory(reference: str, folder: Path | None = None) -> Callable[..., Any]:
    """Import `package.module:name` or `file.py:name` and return the callable.

    Args:
        reference: what to import; a `.py` part is looked up in `folder`.
        folder: the folder that the user's file or package stands in; it is put on the import path.

    Raises:
        SourceError: nothing there, the import failed, or what the name holds cannot be called.
    """
    location, _, name = reference.rpartition(":")
    if not location or not name.isidentifier():
        raise SourceError(f"{reference!r} names no factory; expected path.py:name or package.module:name")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    module = _import_file((folder or Path()) / location) if location.endswith(".py") else _import_module(location)
    if not hasattr(module, name):
        public = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        offer = f"; it has: {', '.join(public[:12])}" if public else ""
        raise SourceError(f"{location} has no {name!r}{offer}")
    factory = getattr(module, name)
    if not callable(factory):
        raise SourceError(f"{reference} is a {type(factory).__name__}; expected a function that returns a module")
    return factory  # type: ignore[no-any-return]  # whatever the user wrote; its result is checked where it is called


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SourceError(f"{path.name} is not there; expected a Python file with the factory")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if path in _imported and _imported[path][0] == digest:
        return _imported[path][1]
    name = path.stem
    if name in sys.modules or not name.isidentifier():  # a file of the user's may be called like anything
        name = f"_crosshead_user_{digest[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path.name} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (Exception, SystemExit)):
            raise SourceError(f"importing {path.name} failed: {_one_line(error)}") from error
        raise
    _imported[path] = digest, module
    return module


_imported: dict[Path, tuple[str, ModuleType]] = {}
"""Files imported so far, with the digest of what they held then: a file that was edited is imported anew."""


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SourceError(
                f"no module named {name!r}; is its folder the current one, or is it installed?"
            ) from error
        raise SourceError(f"importing {name} failed: {_one_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise SourceError(f"importing {name} failed: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
