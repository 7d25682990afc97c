"""Inputs that no file holds: constants, and states carried over from an output of the sample before.

States come from the float model: it is run once more on every sample, in order, and only the last outputs are kept.
What calibrates are then the states that the network meets in use. An artifact that is judged gets its own states
instead (:func:`starts` says where they begin anew).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.conform import conform, input_dtype
from edgeopt.calibration.types import Carried, Constant, DataSet, Transform
from edgeopt.errors import CalibrationError, did_you_mean
from edgeopt.model import TensorSpec

Array = npt.NDArray[np.generic]
Feed = dict[str, Array]
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def completed(
    dataset: DataSet,
    inputs: tuple[TensorSpec, ...],
    feeds: Iterable[Feed],
    run: Run | None,
    begins: Iterable[bool],
) -> Iterator[Feed]:
    """The feeds with every constant, and every state as the float model ``run`` left it.

    Raises:
        CalibrationError: a constant does not fit its input, or an output does not fit the input it is carried to.
    """
    specs = {spec.name: spec for spec in inputs}
    last: Mapping[str, np.ndarray] = {}
    for feed, begin in zip(feeds, begins, strict=True):
        sizes = _sizes(feed, specs)
        for constant in dataset.constants:
            feed[constant.name] = _constant(dataset, constant, specs[constant.name], sizes, feed)
        for carried in dataset.carried:
            spec = specs[carried.name]
            feed[carried.name] = _state(dataset, carried, spec, sizes, None if begin else last)
        yield {spec.name: feed[spec.name] for spec in inputs}
        if dataset.carried:
            assert run is not None
            last = run(feed)


def starts(dataset: DataSet, groups: npt.NDArray[np.int64] | None) -> Iterator[bool]:
    """For every sample in use, whether a sequence starts with it: a file of sound, a group, else the first sample."""
    if dataset.audio is not None:
        for windows in dataset.audio.windows:
            yield from (window == 0 for window in range(windows))
        return
    for index in range(dataset.count):
        yield index == 0 or (groups is not None and groups[index] != groups[index - 1])


def _sizes(feed: Mapping[str, Array], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Sizes of the symbols in the shapes of the inputs that have data."""
    found: dict[str, int] = {}
    for name, value in feed.items():
        for dim, size in zip(specs[name].shape, value.shape):
            if isinstance(dim, str) and dim != "?":
                found.setdefault(dim, size)
    return found


def _shape(
    spec: TensorSpec, sizes: Mapping[str, int], where: str, like: Mapping[str, Array] | None = None
) -> tuple[int, ...]:
    """The input's shape with its symbols replaced; an open first axis is the batch, which is 1."""
    found = []
    for axis, dim in enumerate(spec.shape):
        size = dim if isinstance(dim, int) else sizes.get(dim, 1 if axis == 0 else 0)
        if not size and like and axis == 1 and len(spec.shape) == 2:
            size = next((value.shape[1] for value in like.values() if value.ndim == 2), 0)
        if not size or dim == "...":
            raise CalibrationError(
                f"{where}: the model does not say how large it is ({spec}).",
                remedy=f"Fix its shape with --shape {spec.name}=..., or write its value as lists.",
            )
        found.append(size)
    return tuple(found)


def _constant(
    dataset: DataSet, constant: Constant, spec: TensorSpec, sizes: dict[str, int], feed: Mapping[str, Array]
) -> Array:
    where = f'{dataset.path}: constant input "{spec.name}"'
    try:
        raw = np.asarray(constant.value)
    except ValueError as problem:
        raise CalibrationError(f"{where}: its lists are of unlike length.") from problem
    if raw.dtype.kind not in "biuf":
        raise CalibrationError(f"{where}: holds {raw.dtype}, not numbers.")
    if raw.ndim == 0:
        raw = np.broadcast_to(raw, _shape(spec, sizes, where, feed if dataset.tokens is not None else None))
    return conform(raw, spec, Transform(cast=True), where, dict(sizes))


def _state(
    dataset: DataSet, carried: Carried, spec: TensorSpec, sizes: dict[str, int], last: Mapping[str, np.ndarray] | None
) -> Array:
    where = f'{dataset.path}: input "{spec.name}", carried over from output "{carried.output}"'
    if len([axis for axis, dim in enumerate(spec.shape) if axis and sizes.get(str(dim), dim) == "?"]) == 1:
        sizes = {**sizes, "?": 1}  # the one unnamed axis of a state is its batch
    shape = _shape(spec, sizes, where)
    if last is None:
        return np.zeros(shape, input_dtype(spec, where))
    return next_state(last, carried, shape, input_dtype(spec, where), where)


def next_state(
    outputs: Mapping[str, np.ndarray],
    carried: Carried,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    where: str,
) -> Array:
    """The state that the next sample gets.

    Raises:
        CalibrationError: there is no such output, or it has another type or shape, or is not finite.
    """
    if carried.output not in outputs:
        hint = did_you_mean(carried.output, tuple(outputs))
        raise CalibrationError(
            f"{where}: the model has no such output.{hint}", remedy=f"Its outputs: {', '.join(outputs)}."
        )
    value = np.asarray(outputs[carried.output])
    if value.shape != shape or value.dtype != dtype:
        got = f"{value.dtype.name}{list(value.shape)}"
        raise CalibrationError(f"{where}: the output is {got}, and the input takes {dtype.name}{list(shape)}.")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise CalibrationError(f"{where}: the float model gives NaN or infinity.")
    return value
