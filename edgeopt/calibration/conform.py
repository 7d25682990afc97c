"""Makes one stored sample into exactly what the model's input takes, or says why it cannot."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.types import RawTransform, Transform
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

Array = npt.NDArray[np.generic]


def fit(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], spec: TensorSpec, where: str, sizes: dict[str, int]
) -> tuple[int, ...]:
    """The shape a sample takes as a batch of one: as stored, or with one more axis of 1, the batch.

    That axis leads, unless the model's input has a fixed size above 1 there: the state of a recurrent network,
    ``[2, N, 128]``, has its batch where the first open or unit axis is that fits.

    Args:
        shape: of the sample after its transpose.
        dtype: its stored type, for the message.
        spec: the model's input; symbolic dims take any size, one symbol the same size everywhere.
        where: names file, sample and input in the error.
        sizes: sizes of the symbols met so far in this sample; added to.

    Raises:
        CalibrationError: the shape cannot be the input's.
    """
    wanted = spec.shape
    batched = shape if len(shape) == len(wanted) else _with_batch(shape, wanted)
    fixed = wanted[0] if wanted and isinstance(wanted[0], int) else 1
    if len(batched) == len(wanted) and fixed > 1 and batched != shape and batched[0] != fixed:
        raise CalibrationError(
            f"{where}: the model takes batches of exactly {wanted[0]} ({spec}), and samples are fed one by one.",
            remedy=f"Give it a batch of 1: --shape {spec.name}={'x'.join(map(str, (1, *wanted[1:])))}",
        )
    good = len(batched) == len(wanted)
    for size, dim in zip(batched, wanted, strict=False):
        if isinstance(dim, int):
            good = good and size == dim
        elif dim != "?":
            good = good and sizes.setdefault(dim, size) == size
    if not good:
        got = f"{dtype.name}[{', '.join(map(str, shape))}]"
        hint = _axes_hint(shape, wanted)
        raise CalibrationError(f"{where}: wrong shape: wanted {_wanted(spec)}, got {got}.", remedy=hint)
    return batched


def _with_batch(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> tuple[int, ...]:
    """The sample's shape with an axis of 1 where the input has its batch."""
    if wanted and isinstance(wanted[0], int) and wanted[0] > 1:
        for axis, dim in enumerate(wanted):
            moved = (*shape[:axis], 1, *shape[axis:])
            known = [(size, w) for size, w in zip(moved, wanted) if isinstance(w, int)]
            if len(moved) == len(wanted) and (dim == 1 or isinstance(dim, str)) and all(a == b for a, b in known):
                return moved
    return (1, *shape)


def conform(
    raw: Array, spec: TensorSpec, transform: Transform, where: str, sizes: dict[str, int]
) -> npt.NDArray[np.generic]:
    """Transpose, compute, convert and check one sample; the result has the input's type, a batch of one.

    Raises:
        CalibrationError: wrong shape or type, not finite, or not representable in the input's type.
    """
    wanted = input_dtype(spec, where)
    if transform.transpose:
        if len(transform.transpose) != raw.ndim:
            axes = list(transform.transpose)
            raise CalibrationError(f"{where}: transpose = {axes} does not fit a sample of shape {list(raw.shape)}.")
        raw = raw.transpose(transform.transpose)
    pixels = isinstance(transform, RawTransform)
    if isinstance(transform, RawTransform) and transform.reverse:
        raw = np.flip(raw, -1 if transform.layout == "NHWC" else -3)
    shape = fit(raw.shape, raw.dtype, spec, where, sizes)
    value = raw
    if transform.stated:
        value = _affine(raw, transform, where)
    elif raw.dtype.newbyteorder("=") != wanted and not transform.cast:
        raise CalibrationError(
            f"{where}: wrong type: wanted {wanted.name}, got {raw.dtype.name}.",
            remedy="Store the model's type; or describe the set in TOML with scale, mean, std, or with cast = true.",
        )
    value = np.ascontiguousarray(_convert(value, wanted, where, pixels)).reshape(shape)
    if wanted.kind not in "biu" and not np.isfinite(value).all():
        place = [int(axis) for axis in np.argwhere(~np.isfinite(value))[0]]
        raise CalibrationError(
            f"{where}: holds {float(value[tuple(place)])} at {place}.",
            remedy="Remove the sample or repair what wrote it.",
        )
    return value


def input_dtype(spec: TensorSpec, where: str) -> np.dtype[np.generic]:
    """The numpy type of a model input.

    Raises:
        CalibrationError: the input does not take numbers.
    """
    try:
        found: np.dtype[np.generic] = np.dtype(spec.dtype)
    except TypeError:
        raise CalibrationError(f"{where}: the model's input has type {spec.dtype}, which no set can feed.") from None
    if found.kind not in "biufV":  # bfloat16 and the float8 types are of kind V
        raise CalibrationError(f"{where}: the model's input has type {spec.dtype}, which no set can feed.")
    return found


def _affine(raw: Array, transform: Transform, where: str) -> npt.NDArray[np.float64]:
    value = raw.astype(np.float64) * transform.scale
    channel = {"NCHW": -3, "NHWC": -1}.get(transform.layout or "", -1)
    for numbers, operate in ((transform.mean, np.subtract), (transform.std, np.divide)):
        if len(numbers) > 1:
            if value.ndim < -channel or value.shape[channel] != len(numbers):
                raise CalibrationError(
                    f"{where}: {len(numbers)} values of mean or std do not fit the channels of shape {list(raw.shape)}."
                )
            shape = [1] * value.ndim
            shape[channel] = len(numbers)
            operate(value, np.reshape(numbers, shape), out=value)
        elif numbers:
            operate(value, numbers[0], out=value)
    return value


def _convert(value: Array, wanted: np.dtype[np.generic], where: str, pixels: bool) -> Array:
    """Change the type; an integer type takes whole numbers in its range only. Overflow of a float becomes inf."""
    if value.dtype == wanted:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        changed = value.astype(wanted)
    if wanted.kind in "biu" and not np.array_equal(changed.astype(value.dtype), value):
        remedy = "--input uint8 needs the pixels as they come from a camera: whole numbers of 0 to 255."
        raise CalibrationError(
            f"{where}: holds values that {wanted.name} cannot.", remedy=remedy if pixels else "Store whole numbers."
        )
    return changed


def _wanted(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}], its first axis the batch" if spec.shape else spec.dtype


def _axes_hint(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> str:
    inner = wanted[1:]
    if len(shape) == 3 and len(inner) == 3:
        for order, name in (((2, 0, 1), "height, width, channels"), ((1, 2, 0), "channels, height, width")):
            moved = tuple(shape[axis] for axis in order)
            if all(not isinstance(dim, int) or dim == size for dim, size in zip(inner, moved)):
                return f"The stored axes look like {name}: describe the set in TOML with transpose = {list(order)}."
    return "Store samples in the model's shape; the batch axis of size 1 may be left out."
