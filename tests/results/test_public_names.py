import importlib
import pkgutil
import subprocess
import sys

import pytest

import crosshead.results as room

MODULES = sorted(module.name for module in pkgutil.iter_modules(room.__path__))


def test_the_list_is_sorted_and_every_name_is_there() -> None:
    assert room.__all__ == sorted(room.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in room.__all__:
        assert getattr(room, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        room.no_such_name  # noqa: B018  # the look-up is the test


def test_no_public_name_hides_behind_a_module_of_the_same_name() -> None:
    assert not set(room.__all__) & set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_makes_public_has_a_docstring(name: str) -> None:
    module = importlib.import_module(f"crosshead.results.{name}")
    assert module.__doc__
    for key, value in vars(module).items():
        if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__ and callable(value):
            assert value.__doc__, f"{name}.{key}"


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_room_loads_nothing_heavy() -> None:
    assert not loaded_after("import crosshead.results") & {"numpy", "scipy", "rich", "psutil", "msgspec", "torch"}


def test_records_and_errors_load_only_msgspec() -> None:
    loaded = loaded_after("from crosshead.results import RunRecord, StoreError, encode_run, cpu_quota, scrub")
    assert not loaded & {"numpy", "scipy", "rich", "psutil", "torch"}


def test_scipy_is_loaded_by_the_first_interval_and_rich_by_the_table() -> None:
    everything = f"import crosshead.results as room\nfor name in {room.__all__}: getattr(room, name)"
    assert not loaded_after(everything) & {"scipy", "torch", "onnx", "onnxruntime"}
    assert "scipy.special" in loaded_after("from crosshead.results import median_interval as m; m([1.0, 2.0])")
    assert "rich" not in loaded_after("from crosshead.results import summary")
