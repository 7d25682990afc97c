"""The columns that an operator multiplies its weights with: im2col by strides, at some of the positions.

y[o, p] = sum_k W[o, k] X[k, p],   X = columns of the input, one per output position p
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.quantize.exact import stride_for

POSITIONS = (32, 128)
"""Least and most positions of one sample that are visited, where it has more; one for each weight in between."""


class Columns(NamedTuple):
    """How an operator reads its input ``name``; operators that read one tensor alike have equal ``Columns``.

    Attributes:
        size: K, weights of one output channel; ``groups`` of them stand side by side.
        pads: begin of each axis, then end of each; or the word of ``auto_pad``.
        output_padding: of a ConvTranspose, else empty.
    """

    name: str
    kind: str
    groups: int
    size: int
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] | str = ()
    output_padding: tuple[int, ...] = ()


def columns_of(node: ir.Node) -> Columns | None:
    """How a Conv, ConvTranspose, Gemm or MatMul with a constant weight of known shape reads its first input.

    None for anything else, and for a ConvTranspose whose padding follows from its output's shape.
    """
    source, weight = (*node.inputs[:2], None, None)[:2]
    if source is None or source.name is None or weight is None or weight.const_value is None:
        return None
    shape = weight.const_value.numpy().shape
    if node.op_type == "MatMul" and len(shape) == 2:
        return Columns(source.name, "MatMul", 1, shape[0])
    if node.op_type == "Gemm" and len(shape) == 2:
        kind = "Gemm transposed" if node.attributes.get_int("transA", 0) else "MatMul"
        return Columns(source.name, kind, 1, shape[1 if node.attributes.get_int("transB", 0) else 0])
    if node.op_type not in ("Conv", "ConvTranspose") or len(shape) < 3:
        return None
    kernel, axes = shape[2:], len(shape) - 2
    groups = node.attributes.get_int("group", 1)
    found = {
        name: tuple(node.attributes.get_ints(name, default))
        for name, default in (("strides", (1,) * axes), ("dilations", (1,) * axes), ("pads", (0,) * (2 * axes)))
    }
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads: tuple[int, ...] | str = found["pads"] if auto == "NOTSET" else (0,) * (2 * axes) if auto == "VALID" else auto
    extra: tuple[int, ...] = ()
    channels = shape[1]
    if node.op_type == "ConvTranspose":
        if isinstance(pads, str) or "output_shape" in node.attributes:
            return None
        channels = shape[0] // groups
        extra = tuple(node.attributes.get_ints("output_padding", (0,) * axes))
    return Columns(
        source.name,
        node.op_type,
        groups,
        channels * math.prod(kernel),
        kernel,
        found["strides"],
        found["dilations"],
        pads,
        extra,
    )


def visited(how: Columns, values: np.ndarray) -> Iterator[np.ndarray]:
    """The columns of a batch, a block [G, p, K] for each of its samples, float32.

    Axis 0 is the batch. A block depends on its own sample alone. The rows of a matrix are samples of one position
    each, and come in one block.
    """
    if values.size == 0:
        return
    values = values.astype(np.float32, copy=False)
    if how.kind in ("MatMul", "Gemm transposed"):
        rows = values.T if how.kind == "Gemm transposed" else values
        if rows.ndim < 3:
            yield rows.reshape(1, -1, how.size)
            return
        for sample in rows:
            every = sample.reshape(1, -1, how.size)
            yield every[:, :: stride_for(every.shape[1], _limit(how), sample.shape[:-1])]
        return
    for sample in values:
        yield _windows(how, sample)


def _limit(how: Columns) -> int:
    return min(max(how.size, POSITIONS[0]), POSITIONS[1])


def _windows(how: Columns, sample: np.ndarray) -> np.ndarray:
    """[G, p, K] of one sample [C, *spatial]."""
    axes = range(len(how.kernel))
    reach = tuple(d * (k - 1) + 1 for k, d in zip(how.kernel, how.dilations))
    if how.kind == "Conv":
        strides, flip = how.strides, 1
        begin, end = _pads(how, sample.shape[1:], reach)
    else:  # a convolution of the input with zeros between its values, kernel reversed
        wide = np.zeros((len(sample), *((n - 1) * s + 1 for n, s in zip(sample.shape[1:], how.strides))), np.float32)
        wide[(slice(None), *(slice(None, None, s) for s in how.strides))] = sample
        sample, strides, flip = wide, (1,) * len(how.kernel), -1
        assert not isinstance(how.pads, str)
        begin = tuple(reach[a] - 1 - how.pads[a] for a in axes)
        end = tuple(reach[a] - 1 - how.pads[a + len(axes)] + how.output_padding[a] for a in axes)
    cut = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(sample.shape[1:], begin, end))
    sample = sample[(slice(None), *cut)]
    around = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end)]
    if any(map(any, around)):
        sample = np.pad(sample, [(0, 0), *around])
    if any(n < r for n, r in zip(sample.shape[1:], reach)):
        return np.zeros((how.groups, 0, how.size), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(sample, reach, axis=tuple(a + 1 for a in axes))
    windows = windows[(slice(None), *(slice(None, None, s) for s in strides))]
    inner: tuple[slice, ...] = tuple(slice(None, None, d * flip) for d in how.dilations)
    windows = windows[(slice(None),) * (1 + len(axes)) + inner]
    sizes = windows.shape[1 : 1 + len(axes)]
    count = math.prod(sizes)
    where = np.unravel_index(np.arange(0, count, stride_for(count, _limit(how), sizes)), sizes)
    places: tuple[slice | np.ndarray, ...] = (slice(None), *where)
    taken: np.ndarray = windows[places]  # [C, p, *kernel]
    taken = taken.reshape(how.groups, -1, taken.shape[1], math.prod(how.kernel))
    return np.ascontiguousarray(taken.swapaxes(1, 2)).reshape(how.groups, -1, how.size)


def _pads(how: Columns, sizes: tuple[int, ...], reach: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each axis."""
    if not isinstance(how.pads, str):
        return how.pads[: len(sizes)], how.pads[len(sizes) :]
    total = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(sizes, how.strides, reach)]
    less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return (less, more) if how.pads == "SAME_UPPER" else (more, less)
