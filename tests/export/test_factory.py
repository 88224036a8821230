import sys
from pathlib import Path

import pytest

from crosshead.export.artifact import SourceError, import_factory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_a_function_of_a_file_is_imported_with_its_folder_on_the_path(folder: Path) -> None:
    (folder / "beside_the_model.py").write_text("WIDTH = 7\n")
    (folder / "the_model.py").write_text("import beside_the_model\n\ndef make():\n    return beside_the_model.WIDTH\n")
    assert import_factory("the_model.py:make", folder)() == 7


@pytest.mark.parametrize("stem", ["export", "runtimes", "results", "harness", "json", "types", "my-model", "crosshead"])
def test_a_file_may_be_called_like_anything(folder: Path, stem: str) -> None:
    import json

    (folder / f"{stem}.py").write_text("def make():\n    return 'theirs'\n")
    assert import_factory(f"{stem}.py:make", folder)() == "theirs"
    assert sys.modules["json"] is json
    import crosshead.export.artifact as ours

    assert ours.import_factory is import_factory


def test_two_files_of_one_name_are_two_modules(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "same_name.py").write_text(f"def make():\n    return {name!r}\n")
    assert import_factory("same_name.py:make", folder / "a")() == "a"
    assert import_factory("same_name.py:make", folder / "b")() == "b"
    assert import_factory("same_name.py:make", folder / "a")() == "a"


def test_an_edited_file_is_imported_anew_and_an_unchanged_one_is_not(folder: Path) -> None:
    path = folder / "edited.py"
    path.write_text("def make():\n    return 1\n")
    first = import_factory("edited.py:make", folder)
    assert import_factory("edited.py:make", folder) is first
    path.write_text("def make():\n    return 'longer'\n")
    assert import_factory("edited.py:make", folder)() == "longer"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def other(): pass\n", "has no 'make'; it has: other"),
        ("make = 3\n", "is a int; expected a function"),
        ("import nothing_of_that_name\n", "importing m.py failed: ModuleNotFoundError: No module named 'nothing_of"),
        ("def make(:\n", "importing m.py failed: SyntaxError"),
        ("raise SystemExit(2)\n", "importing m.py failed: SystemExit: 2"),
        ("raise ValueError('two\\nlines')\n", "importing m.py failed: ValueError: two lines"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder: Path, text: str, message: str) -> None:
    (folder / "m.py").write_text(text)
    with pytest.raises(SourceError) as caught:
        import_factory("m.py:make", folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(folder) not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_colon", "names no factory"),
        ("file.py:", "names no factory"),
        (":make", "names no factory"),
        ("gone.py:make", "gone.py is not there"),
        ("no.such.package:make", "no module named 'no.such.package'"),
    ],
)
def test_a_reference_that_leads_nowhere(folder: Path, reference: str, message: str) -> None:
    with pytest.raises(SourceError, match=r"^[^\n]+$") as caught:
        import_factory(reference, folder)
    assert message in str(caught.value)


def test_a_package_of_the_users(folder: Path) -> None:
    (folder / "their_package").mkdir()
    (folder / "their_package" / "__init__.py").touch()
    (folder / "their_package" / "parts.py").write_text("def make():\n    return 5\n")
    assert import_factory("their_package.parts:make", folder)() == 5
