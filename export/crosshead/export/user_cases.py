"""Cases that a person brings: an .npz, ONNX `test_data_set_N` folders, or a Python function that makes them.

    arrays.npz              one case; arrays by input name
    test_data_set_0         one case; input_0.pb, input_1.pb, … and, where they are there, output_0.pb, …
    model/                  one case for each test_data_set_N in it
    cases.py:edge_cases     called with the seed; yields dicts by input name, or (name, dict)

Free of torch, like all that a machine needs which only runs models.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export._quiet import printing_to_stderr
from crosshead.export.artifact import (
    Arrays,
    ArtifactError,
    SourceError,
    check_plain,
    import_factory,
    unpack_arrays,
)
from crosshead.export.case import Case

MOST_GENERATED: Final = 64
"""Cases that one function may yield."""

EXPECTED: Final = "expected an .npz, a folder test_data_set_N or one that holds such, or file.py:function"

_DATA_SET = re.compile(r"test_data_set_(\d+)")
_TENSOR_FILE = re.compile(r"(input|output)_(\d+)\.pb")

Named = tuple[tuple[str, NDArray[np.generic]], ...]


@dataclass(frozen=True)
class Given:
    """One case as it was given.

    Attributes:
        name: of the case.
        told: where it comes from, as in a reason.
        inputs: by input name.
        outputs: what must come out, by the names that the files tell (empty where they tell none), in their order.
    """

    name: str
    told: str
    inputs: Arrays
    outputs: Named = ()


def read_given(sources: Sequence[Path | str], input_names: Sequence[str], seed: int) -> list[Given]:
    """Read the cases of all sources.

    Args:
        sources: as in this module's head.
        input_names: of the graph, in its order.
        seed: handed to functions.

    Returns:
        At least one a source; names are unique.

    Raises:
        SourceError: in one line: nothing there, not readable, or arrays for inputs that do not exist.
    """
    found: list[Given] = []
    for source in sources:
        for given in _read(str(source), input_names, seed):
            found.append(_renamed(given, {other.name for other in found}))
    return found


def with_given_cases(
    cases: Sequence[Case], sources: Sequence[Path | str], input_names: Sequence[str], seed: int
) -> list[Case]:
    """Return the usual cases of a module, and those that a person brings after them, under names of their own.

    Raises:
        SourceError: as `read_given`.
    """
    found = list(cases)
    for given in read_given(sources, input_names, seed):
        named = _renamed(given, {case.name for case in found})
        reason = f"{', '.join(named.inputs)} {named.told}"
        found.append(Case(named.name, reason, seed, _ordered(named.inputs, input_names), named.outputs))
    return found


def _ordered(arrays: Arrays, names: Sequence[str]) -> Arrays:
    return {name: arrays[name] for name in names if name in arrays}


def bind_outputs(outputs: Named, names: Sequence[str], case: str) -> Arrays:
    """Return outputs that a person gave, by the names of the graph: by their own names, else by their places.

    Raises:
        SourceError: neither fits.
    """
    given = [name for name, _ in outputs]
    if given and all(name in names for name in given) and len(set(given)) == len(given):
        return dict(outputs)
    if len(outputs) > len(names):
        raise SourceError(f"case {case}: {len(outputs)} outputs are given; the graph has: {', '.join(names)}")
    return {name: array for name, (_, array) in zip(names, outputs, strict=False)}


def _read(source: str, input_names: Sequence[str], seed: int) -> Iterator[Given]:
    path = Path(source)
    if path.is_dir():
        yield from _folder(path, input_names)
    elif ".py:" in source:
        yield from _generated(source, input_names, seed)
    elif path.suffix == ".py" and path.exists():
        raise SourceError(f"--inputs {path.name} names no function; give {path.name}:function")
    elif path.suffix == ".npz" or path.exists():
        try:
            arrays = unpack_arrays(path)
        except ArtifactError as error:
            raise SourceError(f"--inputs: {error}") from error
        yield Given(path.stem, "as given", _known(arrays, input_names, path.name))
    else:
        raise SourceError(f"--inputs {source}: there is no such file; {EXPECTED}")


def _known(arrays: Arrays, input_names: Sequence[str], where: str) -> Arrays:
    for name in arrays:
        if name not in input_names:
            raise SourceError(f"{where} holds an array {name!r}; the graph's inputs are: {', '.join(input_names)}")
    return arrays


def _renamed(given: Given, taken: set[str]) -> Given:
    name, count = given.name, 2
    while name in taken:
        name, count = f"{given.name}-{count}", count + 1
    return given if name == given.name else Given(name, given.told, given.inputs, given.outputs)


def _folder(path: Path, input_names: Sequence[str]) -> Iterator[Given]:
    inside = sorted(
        (each for each in path.iterdir() if each.is_dir() and _DATA_SET.fullmatch(each.name)),
        key=lambda each: int(each.name.rpartition("_")[2]),
    )
    folders = inside or [path]
    for folder in folders:
        yield _data_set(folder, input_names)


def _data_set(folder: Path, input_names: Sequence[str]) -> Given:
    files: dict[str, list[tuple[int, Path]]] = {"input": [], "output": []}
    for path in folder.iterdir():
        matched = _TENSOR_FILE.fullmatch(path.name)
        if matched:
            files[matched[1]].append((int(matched[2]), path))
    if not files["input"]:
        raise SourceError(f"--inputs: {folder.name} holds no input_0.pb; {EXPECTED}")
    inputs = [_tensor(path) for _, path in sorted(files["input"])]
    outputs = tuple(_tensor(path) for _, path in sorted(files["output"]))
    if max(files["input"])[0] >= len(input_names):
        raise SourceError(
            f"{folder.name} holds {len(inputs)} inputs; the graph has {len(input_names)}: {', '.join(input_names)}"
        )
    named = len({name for name, _ in inputs if name in input_names}) == len(inputs)
    arrays = {
        name if named else input_names[number]: array
        for (number, _), (name, array) in zip(sorted(files["input"]), inputs, strict=True)
    }
    return Given(_fit_name(folder.resolve().name), f"from {folder.resolve().name}", arrays, outputs)


def _tensor(path: Path) -> tuple[str, NDArray[np.generic]]:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs are shipped with it

    where = f"{path.parent.name}/{path.name}"
    tensor = onnx.TensorProto()
    try:
        check_plain(path)
        tensor.ParseFromString(path.read_bytes())
        if not tensor.data_type:
            raise ValueError("it holds no tensor (sequences and optionals are not read)")
        return tensor.name, onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))
    except (OSError, DecodeError, ValueError, TypeError, KeyError, onnx.checker.ValidationError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise SourceError(f"--inputs: cannot read {where}: {said}; expected a serialized ONNX TensorProto") from error


def _generated(source: str, input_names: Sequence[str], seed: int) -> Iterator[Given]:
    location, _, function = source.rpartition(":")
    path = Path(location).expanduser()
    if not path.is_file():
        raise SourceError(f"--inputs: {location} is not there; {EXPECTED}")
    path = path.resolve()
    reference = f"{path.name}:{function}"
    with printing_to_stderr():
        make = import_factory(reference, path.parent)
        try:
            made = make(seed)
            pairs = [made] if isinstance(made, Mapping) else list(_first(made))
        except Exception as error:  # whatever the user's function raises
            said = " ".join(str(error).split()) or "(no message)"
            raise SourceError(f"{reference} raised {type(error).__name__}: {said}") from error
    if not pairs:
        raise SourceError(f"{reference} yielded no case; expected dicts by input name, or (name, dict)")
    if len(pairs) > MOST_GENERATED:
        raise SourceError(f"{reference} yielded more than {MOST_GENERATED} cases; let it end")
    for number, pair in enumerate(pairs):
        name, inputs = pair if isinstance(pair, tuple) and len(pair) == 2 else (f"{function}-{number}", pair)
        if not isinstance(inputs, Mapping) or not isinstance(name, str):
            raise SourceError(
                f"{reference} yielded {type(pair).__name__}; expected a dict by input name, or (name, dict)"
            )
        arrays = {str(key): _array(reference, str(key), value) for key, value in inputs.items()}
        yield Given(_fit_name(name), f"from {reference}", _known(arrays, input_names, f"{reference}, case {name}"))


def _first(made: object) -> Iterator[Any]:
    """Yield what a function gives, and one case more than it may at most."""
    if not isinstance(made, Iterable):
        raise TypeError(f"it returned {type(made).__name__}; expected dicts by input name, or (name, dict)")
    for number, pair in enumerate(made):
        if number > MOST_GENERATED:
            return
        yield pair


def _array(reference: str, name: str, value: Any) -> NDArray[np.generic]:
    if hasattr(value, "detach"):  # a tensor of torch, which need not be here
        from crosshead.export._tensors import to_numpy

        return to_numpy(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufV" or array.dtype.names is not None:
        raise SourceError(f"{reference}: input {name!r} has dtype {array.dtype}; expected numbers or booleans")
    return array


def _fit_name(name: str) -> str:
    """Return a name as a case may have it: printable, and no path."""
    fit = re.sub(r"[/\\]+", "-", "".join(each if each.isprintable() else " " for each in name)).strip()
    return fit if fit.strip(".") else "case"
