"""Are the weights in the graph the module's own, bit for bit?

In float64 a weight changed in its last place moves the output less than a rounded literal does, so no comparison of
outputs finds it. Only the bits do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from crosshead.export.error import relative_l2
from crosshead.export.float64._bits import BitIndex, axis_orders, lines

if TYPE_CHECKING:
    from crosshead.export.float64.oracle import Float64Module

# Nearly the same weight: most elements equal, or all within some last places of float32. More than that moves the
# outputs, or is another number made from the weight (a batch norm folded into a convolution).
_MOST, _LAST_PLACES = 0.5, 1e-6
_NO_EFFECT = 1e-9  # relative L2; a key's bias cancels in softmax to about 1e-16
_LINES_COMPARED = 16


@dataclass(frozen=True)
class ParameterCheck:
    """What became of the weights.

    Attributes:
        changed: a sentence for each weight that stands in the graph with other bits.
        absent: names of parameters that the outputs depend on and that stand in no constant of the graph: folded into
            one, or lost.
    """

    changed: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True when every parameter that the outputs depend on stands in the graph bit for bit."""
        return not self.changed and not self.absent


def check_parameters(
    oracle: "Float64Module",
    constants: Mapping[str, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]] | None,
    expected: Mapping[str, NDArray[Any]],
) -> ParameterCheck:
    """Look for every float parameter of a module among the constants of a graph.

    A parameter may stand there as a whole, transposed or reshaped, split into parts, or packed with others (the
    projections of query, key and value in one matrix). What stands there nearly was changed. What does not stand there
    at all is no failure where the outputs do not depend on it: the missing elements are moved in the oracle, and the
    outputs watched. Buffers and tensors kept as plain attributes are often folded, so of these only the changed ones
    are told.

    Args:
        oracle: the module in double; its weights are as before afterwards.
        constants: of the graph, in the dtype of the file.
        inputs: a case to watch the outputs on; None when there is none, then what is absent is taken for unused.
        expected: the oracle's outputs for it.
    """
    index = BitIndex(constants.values())
    state = {name or _unnamed(number): to_numpy(tensor) for number, (name, tensor) in enumerate(oracle.tensors)}
    lost = {name: _missing(index, array) for name, array in state.items()}
    lost = {name: missing for name, missing in lost.items() if missing.any()}
    if not lost:
        return ParameterCheck((), ())
    known = BitIndex(exact_forms(state.values()))
    strangers = [array for array in constants.values() if array.size and not known.has(array)]
    changed, absent = [], []
    for name, missing in lost.items():
        parameter = name in oracle.parameter_names
        twin = _twin(state[name], strangers)
        if twin is not None:
            changed.append(_difference(name, state[name], twin))
        elif _has_near_lines(state[name], missing, strangers) and (
            parameter or _matters(oracle, {name: missing}, inputs, expected)  # rows of two masks are near by nature
        ):
            place = ", ".join(str(number) for number in np.argwhere(missing)[0])
            changed.append(f"{name} stands in the graph with other bits, first in the line through [{place}]")
        elif parameter and not _is_trivial(state[name]) and _matters(oracle, {name: missing}, inputs, expected):
            absent.append(name)
    return ParameterCheck(tuple(changed), tuple(absent))


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values in its own dtype; bfloat16 as that of ml_dtypes."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def exact_forms(arrays: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the arrays, and those of a half type as float32 too: a cast that loses nothing may have been folded."""
    for array in arrays:
        yield array
        if array.dtype.name in ("float16", "bfloat16"):
            yield array.astype(np.float32)


def _missing(index: BitIndex, array: NDArray[Any]) -> NDArray[np.bool_]:
    missing = np.ones(array.shape, dtype=np.bool_)
    for form in exact_forms([array]):
        missing &= index.missing(form)
    return missing


def _twin(array: NDArray[Any], strangers: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Return a constant, in the order of axes of `array`, that is nearly but not quite this weight."""
    flat = np.squeeze(array)
    for other in strangers:
        if other.size != array.size:
            continue
        for axes in axis_orders(flat.ndim):
            order = flat.transpose(axes)
            turned = other.reshape(order.shape)
            equal = np.count_nonzero(turned == order)
            if equal >= _MOST * max(2, order.size) or relative_l2(turned, order) <= _LAST_PLACES:
                return turned.transpose(np.argsort(axes)).reshape(array.shape)
    return None


def _difference(name: str, array: NDArray[Any], twin: NDArray[Any]) -> str:
    with np.errstate(invalid="ignore"):
        differs = array.astype(np.float64) != twin.astype(np.float64)
    if not differs.any():
        return f"{name} stands in the graph with equal values and other bits ({twin.dtype.name}, {array.dtype.name})"
    place = tuple(np.argwhere(differs)[0])
    at = ", ".join(str(number) for number in place)
    return (
        f"{name} differs from the graph's in {differs.sum()} of {array.size} elements, first at [{at}]: "
        f"{float(array[place]):.9g} in the module, {float(twin[place]):.9g} in the graph"
    )


def _has_near_lines(array: NDArray[Any], missing: NDArray[np.bool_], strangers: Sequence[NDArray[Any]]) -> bool:
    """Return whether what is missing stands in the graph nearly: then it was changed, not folded into another value."""
    flat, gone = np.squeeze(array).astype(np.float64), np.squeeze(missing)
    if flat.ndim == 0:
        return False
    if flat.ndim == 1:
        wanted = flat[gone][:, np.newaxis]  # (n,) -> (missing, 1)
    else:
        axis = min(range(flat.ndim), key=lambda axis: int(gone.any(axis=axis).sum()))
        wanted = np.moveaxis(flat, axis, -1)[gone.any(axis=axis)]  # (…, n, …) -> (missing lines, n)
    offered = [some.astype(np.float64) for other in strangers for some in lines(other, wanted.shape[-1])]
    if not offered:
        return False
    every = np.concatenate(offered)  # (lines, n)
    return all(_is_near(line, every) for line in wanted[:_LINES_COMPARED])


def _is_near(line: NDArray[np.float64], every: NDArray[np.float64]) -> bool:
    equal = np.count_nonzero(every == line, axis=-1)
    distance = np.linalg.norm(every - line, axis=-1)
    return bool(np.any((equal >= _MOST * max(2, line.size)) | (distance <= _LAST_PLACES * np.linalg.norm(line))))


def _matters(
    oracle: "Float64Module",
    parts: Mapping[str, NDArray[np.bool_]],
    inputs: Mapping[str, NDArray[Any]] | None,
    expected: Mapping[str, NDArray[Any]],
) -> bool:
    """Return whether the outputs move when these elements of the weights do."""
    if inputs is None:
        return False
    try:
        for number, (name, _, wide) in enumerate(oracle.state):
            part = parts.get(name or _unnamed(number))
            if part is not None:
                where = torch.from_numpy(part)
                wide[where] = wide[where] * 1.5 + 0.1
        moved = oracle.run(inputs, list(expected))
    finally:
        oracle.restore()
    return any(relative_l2(moved[name], np.asarray(array)) > _NO_EFFECT for name, array in expected.items())


def _is_trivial(array: NDArray[Any]) -> bool:
    """Return whether a weight does nothing: a bias of zeros, a gain of ones."""
    return bool(np.all(array == 0) or np.all(array == 1))


def _unnamed(number: int) -> str:
    return f"tensor attribute {number}"
