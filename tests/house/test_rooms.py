"""Rules of the house that no single room can hold."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("model_def", "export", "runtimes", "harness", "results")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / room / "crosshead").rglob("*.py")]


@pytest.mark.parametrize("room", ["runtimes", "results", "harness", "export", "export.artifact", "model_def"])
def test_importing_a_room_pulls_in_no_torch(room: str) -> None:
    heavy = ("torch", "onnxruntime", "onnxscript", "scipy")
    code = f"import sys, crosshead.{room}; sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_namespace_is_nobodys() -> None:
    assert not [path for path in sources() if path.parent.name == "crosshead" and path.name == "__init__.py"]


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("export", "import crosshead.runtimes"),
        ("runtimes", "import crosshead.export.error"),
        ("runtimes", "import crosshead.results"),
        ("results", "import crosshead.export.artifact"),
        ("model_def", "import crosshead.export"),
    ],
)
def test_a_wrong_import_breaks_a_contract(tmp_path: Path, room: str, line: str) -> None:
    for name in ROOMS:
        shutil.copytree(ROOT / name / "crosshead", tmp_path / name / "crosshead")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    roots = os.pathsep.join(str(tmp_path / name) for name in ROOMS)
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"]
    environment = os.environ | {"PYTHONPATH": roots}
    with (tmp_path / room / "crosshead" / room / "planted.py").open("w") as file:
        file.write(f"{line}\n")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout


def test_every_notice_is_explained() -> None:
    codes = {code for path in sources() for code in re.findall(r'code="([a-z0-9-]+)"', path.read_text())}
    explained = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "verdicts.md").read_text(), re.MULTILINE))
    assert len(codes) > 10
    assert codes <= explained, f"docs/verdicts.md does not explain {sorted(codes - explained)}"


def test_text_names_no_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = tracked.stdout.split() if tracked.returncode == 0 else []
    pattern = re.compile(r"/(?:home|root|Users)/[a-z]|/work/|\bpypi\.org|files\.pythonhosted", re.IGNORECASE)
    for name in names:
        path = ROOT / name
        if name == "tests/house/test_rooms.py" or not path.is_file() or name.startswith("tests/"):
            continue  # tests of scrubbing need paths to scrub
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        assert not pattern.search(text), f"{name}: {pattern.search(text)}"
