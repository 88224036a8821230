import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.results.strategies import cell, plan, run

from crosshead.results import Notice, scrub, scrub_record
from crosshead.results.privacy import Identity

JANE = Identity(folders=("/home/jane/My Models", "/home/jane"), users=("jane",), hosts=("lab-7.example.org", "lab-7"))


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("cannot open /home/jane/a/model.onnx", "cannot open model.onnx"),
        ("cannot open /home/jane/My Models/big one.onnx", "cannot open big one.onnx"),
        ("cannot open '/mnt/other disk/x.onnx': no", "cannot open 'x.onnx': no"),
        ('File "/usr/lib/python3/torch/x.py", line 3, in f', 'File "x.py", line 3, in f'),
        ("/onnxruntime_src/core/ops.h:560 failed", "ops.h:560 failed"),
        ("PATH=/usr/bin:/usr/local/bin", "PATH=bin:bin"),
        ("gcc -I/home/bob/include x.c", "gcc -Iinclude x.c"),
        ("read ~/.cache/x.bin and ~bob/y.bin", "read x.bin and y.bin"),
        ("in /home/bob", "in ~"),
        ("file:///home/bob/x.onnx", "x.onnx"),
        ("folder /srv/models/", "folder models"),
        (r"cannot open C:\Users\bob\models\x.onnx", "cannot open x.onnx"),
        (r"cannot open 'C:\\Users\\Bob Smith\\x.onnx'", "cannot open 'x.onnx'"),
        ("cannot open D:/models/x.onnx.", "cannot open x.onnx."),
        (r"on \\server\share\deep\x.onnx", "on x.onnx"),
        (r"home is C:\Users\bob", "home is ~"),
        ("node /attn/q_proj/MatMul_1 failed", "node MatMul_1 failed"),
        ("jane on lab-7.example.org said", "<user> on <host> said"),
        ("jane@lab-7", "<user>@<host>"),
        ("/data/jane", "<user>"),
    ],
)
def test_paths_are_cut_and_names_are_marked(text: str, scrubbed: str) -> None:
    assert scrub(text, JANE) == scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "relative/path/x.onnx and ./here/y.py:factory",
        "1/2 of 3 / 4, 5 tokens/s, 10 %/s, and/or, (a+b)/c",
        "https://onnx.ai/onnx/operators/onnx__Attention.html says so",
        "ai.onnx::Attention and com.microsoft::MultiHeadAttention",
        "expected (1, 128, 512), got (1, 128, 8, 64)",
        "pip install 'crosshead[cpu]'",
        "split by '/' or \"//\"; </s> ends a sentence",
        "janette runs jane_model.py",
        "C: is a drive, a:b is none",
    ],
)
def test_all_else_stays(text: str) -> None:
    assert scrub(text, JANE) == text


# No word here is looked for below, and none can stand at the end of a folder's name without changing it.
words = st.text("bcdfgh_-. ", min_size=1, max_size=6)
names = st.text("bcdfgh_", min_size=1, max_size=6)
posix = st.builds(lambda parts: "/" + "/".join(parts), st.lists(names, min_size=2, max_size=4))
windows = st.builds(lambda parts: "D:\\" + "\\".join(parts), st.lists(names, min_size=2, max_size=4))


@given(
    st.lists(words | posix | windows | st.sampled_from(["jane", "lab-7", "'", '"', ": ", ", ", "(", "~/x"]), max_size=8)
)
@example(["/", "/b/c"])
@example(["'", "/b/c", "'"])
def test_scrubbing_again_changes_nothing(parts: list[str]) -> None:
    once = scrub("".join(parts), JANE)
    assert scrub(once, JANE) == once


@given(st.text())
def test_scrubbing_any_text_ends_and_is_stable(text: str) -> None:
    once = scrub(text, JANE)
    assert scrub(once, JANE) == once


@given(words, posix | windows, st.sampled_from([" ", "'", '"', "=", ": ", "(", ", ", "\n"]))
def test_no_folder_of_an_absolute_path_is_left(before: str, path: str, separator: str) -> None:
    once = scrub(f"{before}{separator}{path} end", JANE)
    assert not re.search(r"(^|[\s'\"=(,:])(/|[A-Z]:\\)\w", once)
    base = re.split(r"[/\\]", path)[-1]
    assert once.endswith(f"{base} end")


def test_this_machine_and_user_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "Erika Mustermann"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("USER", "erika")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box.lab")
    here = Identity.here()
    assert scrub(f"{home}/models/x.onnx of erika at gpu-box", here) == "x.onnx of <user> at <host>"
    assert str(Path.cwd()) in here.folders


def test_a_user_without_name_or_home_is_no_trouble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    for name in ("USER", "LOGNAME", "USERNAME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("getpass.getuser", nobody)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "" not in Identity.here().folders


def test_names_that_say_nothing_stay_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(name, "root")
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert scrub("square root on localhost, /root/x.py", Identity.here()) == "square root on localhost, x.py"


def test_a_record_is_scrubbed_where_it_is_free_text_and_nowhere_else() -> None:
    path = f"{os.sep}srv{os.sep}deep{os.sep}x.onnx"
    record = run(
        plan=plan(source=f"{path}:factory", options={"weights": path, "num_heads": 8}),
        cells=[cell(status="failed", case="/case", reason=path, stderr_tail=f"a\n{path}", details={"library": path})],
        notices=[Notice(code="a-code", message=f"see {path}", where=path)],
    )
    found = scrub_record(record)
    assert "deep" not in repr(found)
    assert found.plan.options == {"weights": "x.onnx", "num_heads": 8}
    assert found.plan.source == "x.onnx:factory"
    (one,) = found.cells
    assert (one.case, one.reason, one.stderr_tail, one.details) == (
        "/case",
        "x.onnx",
        "a\nx.onnx",
        {"library": "x.onnx"},
    )
    assert one.label == record.cells[0].label
