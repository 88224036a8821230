import getpass
import socket
from pathlib import Path

import pytest

from crosshead.runtimes._scrub import LINE_CHARACTERS, TAIL_BYTES, TAIL_LINES, one_line, scrub, tail


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('File "/opt/app/lib/model.py", line 3', 'File "model.py", line 3'),
        (r"C:\Users\jane\model.py failed", "model.py failed"),
        (
            "see https://onnxruntime.ai/docs/install for 3/4 of it",
            "see https://onnxruntime.ai/docs/install for 3/4 of it",
        ),
        ("\x1b[1;31m[E:onnxruntime] bad\x1b[m", "[E:onnxruntime] bad"),
        ("Load model from /tmp/a b/c.onnx", "Load model from /a b/c.onnx"),
        ("Load model from /tmp/tmp12ab/d/c.onnx", "Load model from c.onnx"),
    ],
)
def test_paths_are_cut_to_base_names(text: str, clean: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108  # a name, nothing is written
    assert scrub(text) == clean


def test_home_user_and_host_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/jane doe"))
    monkeypatch.setattr(getpass, "getuser", lambda: "janedoe")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab7.example.org")
    text = scrub("/home/jane doe/work/x.py: janedoe on lab7.example.org (lab7), janedoes not")
    assert text == "x.py: <user> on <host> (<host>), janedoes not"


def test_common_words_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert scrub("the root of localhost") == "the root of localhost"


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert scrub("text") == "text"


def test_one_line_keeps_beginning_and_end() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    long = one_line("start " + "x" * 5000 + " end")
    assert long.startswith("start ")
    assert long.endswith(" end")
    assert len(long) <= LINE_CHARACTERS + 3


def test_tail_is_bounded_and_drops_the_list_of_modules() -> None:
    data = "\n".join(f"line {number} {'y' * 300}" for number in range(100)) + "\nExtension modules: numpy, torch\n"
    kept = tail(data.encode() + b"\xff")
    assert len(kept) <= TAIL_BYTES
    assert len(kept.splitlines()) <= TAIL_LINES
    assert "Extension modules" not in kept
    assert "line 99" in kept
