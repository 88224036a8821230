import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import crosshead.model_def
from crosshead.model_def.errors import ModelDefError

PACKAGE = crosshead.model_def
MODULES = [f"crosshead.model_def.{each.name}" for each in pkgutil.iter_modules(PACKAGE.__path__)]


def test_the_list_is_sorted_without_doubles() -> None:
    assert list(PACKAGE.__all__) == sorted(set(PACKAGE.__all__), key=_ruff_order)


def _ruff_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: the order that ruff's RUF022 keeps."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("name", PACKAGE.__all__)
def test_every_listed_name_is_there_and_comes_from_where_it_is_written(name: str) -> None:
    value = getattr(PACKAGE, name)
    home = importlib.import_module(f"crosshead.model_def.{PACKAGE._HOMES[name]}")
    assert vars(home)[name] is value
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__ == home.__name__
        assert value.__doc__


def test_the_table_of_homes_is_the_list() -> None:
    assert set(PACKAGE._HOMES) == set(PACKAGE.__all__)
    assert set(PACKAGE.__all__) <= set(dir(PACKAGE))


def test_every_block_class_configuration_and_error_is_listed() -> None:
    public = {
        name
        for module in MODULES
        for name, value in vars(importlib.import_module(module)).items()
        if inspect.isclass(value) and value.__module__ == module and not name.startswith("_")
    }
    assert public - {"AttentionResult"} == {
        name for name in PACKAGE.__all__ if not name.isupper() and name[0].isupper()
    }
    assert issubclass(PACKAGE.ConfigError, ModelDefError)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Attention'"):
        PACKAGE.Attention  # noqa: B018  # looking it up is the test


@pytest.mark.parametrize("used", ["", ".BLOCKS", ".AttentionConfig", ".PRESETS", ".sample"])
def test_importing_the_package_needs_no_torch(used: str) -> None:
    code = f"import sys, crosshead.model_def as m; m{used}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert importlib.import_module(module).__doc__
