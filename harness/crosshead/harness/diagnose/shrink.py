"""The smallest input that shows a fault: shapes first, then values, by Hypothesis, in bounded time."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from crosshead.export.artifact import Arrays, TensorSpec
from crosshead.harness.errors import RequestError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MOST_TRIED: Final = 400
_MOST_ELEMENTS: Final = 48
"""Up to so many elements of an input are shrunk one by one."""

Array = NDArray[np.generic]
Shows = Callable[[Arrays], bool]


@dataclass(frozen=True)
class Smallest:
    """What was found.

    Attributes:
        inputs: they show the fault.
        values: by input, what it holds, in a few words.
        tried: how many inputs were tried.
    """

    inputs: Arrays
    values: dict[str, str]
    tried: int


def shrink(inputs: Arrays, specs: Sequence[TensorSpec], shows: Shows, *, budget_s: float, seed: int = 0) -> Smallest:
    """Return a smaller input that still shows a fault; the very input given where none was found.

    Sizes of named axes go down to 1 (a past to 0), arrays cut to them keep their first elements. Then each float input
    is tried as zeros, ones, small whole numbers, and rounded numbers, and small inputs element by element.

    Args:
        inputs: they show the fault.
        specs: inputs of the graph, with the names of their axes.
        shows: whether an input shows it.
        budget_s: longest search; what was found by then is returned.
        seed: of the search.

    Raises:
        RequestError: Hypothesis is not installed.
    """
    with _no_traces():
        return _Search(inputs, specs, shows, budget_s, seed).found()


@contextmanager
def _no_traces() -> Iterator[None]:
    """Let Hypothesis keep what it keeps in a folder that goes away, instead of one beside the user's files."""
    from hypothesis import configuration

    before = vars(configuration).get("__hypothesis_home_directory")
    with tempfile.TemporaryDirectory(prefix="crosshead-") as folder:
        configuration.set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(before)


class _Search:
    def __init__(self, inputs: Arrays, specs: Sequence[TensorSpec], shows: Shows, budget_s: float, seed: int) -> None:
        self._best, self._specs, self._shows, self._seed = dict(inputs), specs, shows, seed
        self._values = dict.fromkeys(inputs, "as given")
        self._start = time.monotonic()
        self._budget_s = budget_s
        self._end = self._start
        self._tried = 0

    def found(self) -> Smallest:
        self._end = self._start + self._budget_s / 2  # half of it for shapes
        self._shrink_shapes()
        self._end = self._start + self._budget_s * 0.8
        self._shrink_kinds()
        self._end = self._start + self._budget_s
        self._shrink_elements()
        return Smallest(self._best, self._values, self._tried)

    def _holds(self, inputs: Arrays) -> bool:
        if time.monotonic() >= self._end:
            return False
        self._tried += 1
        return self._shows(inputs)

    def _shrink_shapes(self) -> None:
        from hypothesis import strategies as st

        sizes = {
            axis: size
            for spec in self._specs
            for axis, size in zip(spec.shape, self._best[spec.name].shape, strict=True)
            if isinstance(axis, str)
        }
        sizes = {axis: size for axis, size in sizes.items() if size > _least(axis)}
        if not sizes:
            return
        names, least = list(sizes), [_least(name) for name in sizes]
        given = dict(self._best)

        def cut(chosen: Sequence[int]) -> Arrays:
            return cut_to(given, self._specs, dict(zip(names, chosen, strict=True)))

        best = self._halved([*sizes.values()], least, lambda chosen: self._holds(cut(chosen)))
        if best != least:  # several axes may have to go down together, which halving one at a time does not find
            ranges = st.tuples(*(st.integers(low, high) for low, high in zip(least, best, strict=True)))
            best = [*(self._find(ranges, lambda chosen: self._holds(cut(chosen))) or best)]
        self._best = dict(cut(best))

    def _halved(self, best: list[int], least: Sequence[int], holds: Callable[[Sequence[int]], bool]) -> list[int]:
        """Try the smallest sizes, then halve one axis after the other, which takes few questions at large sizes."""
        if holds(least):
            return [*least]
        for place, low in enumerate(least):
            while best[place] > low:
                smaller = (low, (low + best[place]) // 2, best[place] - 1)
                tries = ([*best[:place], size, *best[place + 1 :]] for size in dict.fromkeys(smaller))
                found = next((each for each in tries if each[place] < best[place] and holds(each)), None)
                if found is None:
                    break
                best = found
        return best

    def _shrink_kinds(self) -> None:
        from hypothesis import strategies as st

        floats = [name for name, array in self._best.items() if _is_float(array) and array.size]
        if not floats:
            return
        given = dict(self._best)
        strategy = st.tuples(*(st.sampled_from(_KINDS) for _ in floats))

        def filled(chosen: tuple[str, ...]) -> Arrays:
            return given | {name: fill(given[name], kind) for name, kind in zip(floats, chosen, strict=True)}

        best = self._find(strategy, lambda chosen: self._holds(filled(chosen)))
        if best is not None:
            self._best = dict(filled(best))
            self._values |= dict(zip(floats, best, strict=True))

    def _shrink_elements(self) -> None:
        from hypothesis import strategies as st
        from hypothesis.extra import numpy as arrays

        for name, array in list(self._best.items()):
            if not _is_float(array) or not 0 < array.size <= _MOST_ELEMENTS or self._values[name] in ("zeros", "ones"):
                continue
            whole = arrays.arrays(np.int64, array.shape, elements=st.integers(-3, 3), fill=st.just(0))

            def holds(chosen: NDArray[np.int64], name: str = name, array: Array = array) -> bool:
                return self._holds(self._best | {name: chosen.astype(array.dtype)})

            best = self._find(whole, holds)
            if best is not None:
                self._best[name] = best.astype(array.dtype)
                self._values[name] = f"{int(np.count_nonzero(best))} of {best.size} elements not zero"

    def _find(self, strategy: "SearchStrategy[Any]", holds: Callable[[Any], bool]) -> Any | None:
        """Return the simplest example that Hypothesis finds; None where it finds none in time."""
        import random

        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import NoSuchExample

        options = settings(
            max_examples=_MOST_TRIED,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        kept: list[Any] = []

        def condition(example: Any) -> bool:
            shown = holds(example)
            if shown:
                kept.append(example)
            return shown

        try:
            return find(strategy, condition, settings=options, random=random.Random(self._seed))
        except NoSuchExample:
            return None
        except Exception:
            if not kept:  # it ran out of time in the middle of shrinking, and its last example does not show any more
                raise
            return kept[-1]


def cut_to(inputs: Arrays, specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> Arrays:
    """Return the arrays with named axes cut to their first elements.

    Args:
        inputs: by name.
        specs: of the inputs, with the names of their axes.
        sizes: by axis; others stay.
    """
    cut = dict(inputs)
    for spec in specs:
        places = tuple(
            slice(0, sizes[axis]) if isinstance(axis, str) and axis in sizes else slice(None) for axis in spec.shape
        )
        cut[spec.name] = np.ascontiguousarray(inputs[spec.name][places])
    return cut


_KINDS: Final = ("zeros", "ones", "small whole numbers", "rounded to one digit", "as given")


def fill(array: Array, kind: str) -> Array:
    """Return an array like the one given, of simpler numbers; infinities stay, for they are a mask's."""
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        simple: NDArray[Any]
        match kind:
            case "zeros":
                simple = np.zeros_like(wide)
            case "ones":
                simple = np.ones_like(wide)
            case "small whole numbers":
                simple = (np.arange(wide.size) % 7 - 3.0).reshape(wide.shape)
            case "rounded to one digit":
                simple = np.asarray(np.round(wide, 1))
            case _:
                return array
        return np.where(np.isfinite(wide), simple, wide).astype(array.dtype)


def _least(axis: str) -> int:
    return 0 if "past" in axis else 1


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def check_hypothesis() -> None:
    """Raise where the search cannot be done.

    Raises:
        RequestError: Hypothesis is not installed.
    """
    try:
        import hypothesis  # noqa: F401  # only to answer in one line where it is missing
    except ImportError as error:
        raise RequestError("the search for a smaller input needs Hypothesis; pip install hypothesis") from error
