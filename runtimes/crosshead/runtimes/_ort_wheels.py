"""Which wheel of ONNX Runtime is installed, found out without importing it.

`onnxruntime` and `onnxruntime-gpu` install the same package folder, so with both installed the later one has
overwritten the other, and uninstalling one breaks both.
"""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import msgspec

CPU_WHEEL, GPU_WHEEL = "onnxruntime", "onnxruntime-gpu"


class Wheels(msgspec.Struct, frozen=True, kw_only=True):
    """What is there.

    Attributes:
        names: distributions of ONNX Runtime that pip knows, with their versions.
        package: name of the wheel whose files are on disk; empty when there is none.
        version: its version.
    """

    names: dict[str, str]
    package: str
    version: str

    @property
    def clash(self) -> str:
        """A sentence when more than one is installed, else empty."""
        if len(self.names) < 2:
            return ""
        listed = " and ".join(f"{name} {version}" for name, version in sorted(self.names.items()))
        return f"{listed} are both installed and overwrite each other"


def find_wheels() -> Wheels:
    """Look for ONNX Runtime."""
    names = {}
    for name in (CPU_WHEEL, GPU_WHEEL):
        try:
            names[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not spec.origin:
        return Wheels(names=names, package="", version="")
    facts = _build_facts(Path(spec.origin).parent)
    package = facts.get("package_name") or next(iter(names), CPU_WHEEL)
    version = facts.get("__version__") or names.get(package, "unknown")
    return Wheels(names=names, package=package, version=version)


def _build_facts(folder: Path) -> dict[str, str]:
    """Read the wheel's own note of what it is (`capi/build_and_package_info.py`: assignments of strings)."""
    try:
        text = (folder / "capi" / "build_and_package_info.py").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(re.findall(r"^(\w+)\s*=\s*['\"]([^'\"]*)['\"]", text, flags=re.MULTILINE))
