"""Hold arrays against the inputs that a graph declares: the same rule where a case is made and where it is run."""

from collections.abc import Mapping, Sequence

from crosshead.export.artifact._arrays import Readable
from crosshead.export.artifact._manifest import TensorSpec


def input_fault(specs: Sequence[TensorSpec], arrays: Mapping[str, Readable]) -> str:
    """Return what does not fit, in one line with expected, got and what to do; empty where all of it fits.

    Args:
        specs: the graph's inputs; an axis of one name has one size in all of them.
        arrays: by input name; their numbers are not looked at.
    """
    expected = ", ".join(spec.name for spec in specs) or "none"
    known = {spec.name for spec in specs}
    for spec in specs:
        if spec.name not in arrays:
            return f"input {spec.name!r} is missing; expected: {expected}; got: {', '.join(arrays) or 'none'}"
    for name in arrays:
        if name not in known:
            return f"there is no input {name!r}; expected: {expected}; leave it out"
    sizes: dict[str, tuple[int, str]] = {}
    return next(filter(None, (_fault(spec, arrays[spec.name], sizes) for spec in specs)), "")


def _fault(spec: TensorSpec, array: Readable, sizes: dict[str, tuple[int, str]]) -> str:
    what = f"input {spec.name!r}:"
    if array.dtype.name != spec.dtype:
        return f"{what} expected dtype {spec.dtype}, got {array.dtype.name}; convert it with .astype"
    shapes = f"expected shape ({', '.join(map(str, spec.shape))}), got {array.shape}"
    if array.ndim != len(spec.shape):
        return f"{what} {shapes}; give it {len(spec.shape)} axes"
    for axis, (want, got) in enumerate(zip(spec.shape, array.shape, strict=True)):
        if isinstance(want, int) and want != got:
            return f"{what} {shapes}; axis {axis} is fixed at {want}"
        size, of = (got, "") if isinstance(want, int) else sizes.setdefault(want, (got, spec.name))
        if size != got:
            return f"{what} {shapes}; axis {axis} is {want!r}, and {size} in {of!r}: give both one size"
    return ""
