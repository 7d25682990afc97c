"""Rules for operators that move values: numbers that were inputs become attributes, or the other way round."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import attr_int, attr_ints, attr_str, dims, integers
from edgeopt.passes.lower_opset._site import Site

_SAME_WHEN_EMPTY = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
"""Reductions over no axis that return their input; the others square, or take logarithms, all the same."""


def _integers(site: Site, index: int) -> list[int] | None:
    array = site.known(index)
    return None if array is None else [int(i) for i in array.reshape(-1)]


def _rank(site: Site) -> int | None:
    shape = dims(site.value(0))
    return None if shape is None else len(shape)


def reduction_18(site: Site) -> str | None:
    """The axes were an attribute; no axes meant all of them."""
    given = site.input(1)
    axes = _integers(site, 1)
    if given is not None and axes is None:
        return "its axes are computed"
    if not axes and attr_int(site.node, "noop_with_empty_axes", 0):
        if site.node.op_type not in _SAME_WHEN_EMPTY:
            return "it reduces no axis"
        site.replace(site.add("Identity", site.value(0)))
        return None
    site.cut_inputs(1)
    site.drop("noop_with_empty_axes")
    if axes:
        site.node.attributes["axes"] = ir.AttrInt64s("axes", axes)
    return None


def pad_18(site: Site) -> str | None:
    """``pads`` counted for every axis."""
    if site.input(3) is None:
        site.cut_inputs(3)
        return None
    axes, pads, rank = _integers(site, 3), _integers(site, 1), _rank(site)
    if axes is None or pads is None or rank is None:
        return "its axes or pads are computed, or its rank is not known"
    full = [0] * 2 * rank
    for i, axis in enumerate(axes):
        full[axis % rank], full[axis % rank + rank] = pads[i], pads[i + len(axes)]
    site.node.replace_input_with(1, site.constant(np.array(full, np.int64)))
    site.cut_inputs(3)
    return None


def split_18(site: Site) -> str | None:
    """The number of outputs is their number; where they do not come out even, the sizes are written down."""
    count = attr_int(site.node, "num_outputs", 0)
    if count:
        shape, axis = dims(site.value(0)), attr_int(site.node, "axis", 0)
        size = None if shape is None else shape[axis]
        if size is None:
            return "the size of the axis that it splits is not known"
        chunk = -(-size // count)
        sizes = [max(0, min(chunk, size - i * chunk)) for i in range(count)]
        site.node.resize_inputs(2)
        site.node.replace_input_with(1, site.constant(np.array(sizes, np.int64)))
        site.drop("num_outputs")
    return None


def reshape_14(site: Site) -> str | None:
    """``allowzero`` makes a 0 in the shape mean no elements, not "as the input has"."""
    if attr_int(site.node, "allowzero", 0):
        shape = integers(site.input(1))
        if shape is None or 0 in shape:
            return "allowzero is set and its shape may hold a 0"
    site.drop("allowzero")
    return None


def shape_15(site: Site) -> str | None:
    """The part of the shape that was asked for is cut out of all of it."""
    start, end = attr_int(site.node, "start", 0), site.node.attributes.get("end")
    site.drop("start", "end")
    if start == 0 and end is None:
        return None
    last = np.iinfo(np.int64).max if end is None else end.as_int()
    whole = site.add("Shape", site.value(0), dtype=ir.DataType.INT64)
    bounds = [site.constant(np.array([i], np.int64)) for i in (start, last)]
    site.replace(site.add("Slice", whole, *bounds))
    return None


def trilu_14(site: Site) -> str | None:
    """Y = where(M, X, 0) with M the triangle: column - row >= k (upper), <= k (lower)."""
    dtype, upper = site.dtype(), attr_int(site.node, "upper", 1)
    if dtype is None:
        return "its type is not known"
    sizes = [_size(site, axis) for axis in (-2, -1)]
    zero, one = site.constant(np.array(0, np.int64)), site.constant(np.array(1, np.int64))
    rows, columns = (site.add("Range", zero, size, one) for size in sizes)
    distance = site.add("Sub", columns, site.add("Unsqueeze", rows, site.constant(np.array([1], np.int64))))
    diagonal = zero if site.input(1) is None else site.value(1)
    mask = site.add("GreaterOrEqual" if upper else "LessOrEqual", distance, diagonal, dtype=ir.DataType.BOOL)
    site.replace(site.add("Where", mask, site.value(0), site.constant(np.zeros(()), dtype), dtype=dtype))
    return None


def _size(site: Site, axis: int) -> ir.Value:
    whole = site.add("Shape", site.value(0), dtype=ir.DataType.INT64)
    return site.add("Gather", whole, site.constant(np.array(axis, np.int64)))


def resize_18(site: Site) -> str | None:
    """Scales and sizes counted for every axis, and nothing kept the aspect ratio or smoothed."""
    node = site.node
    if attr_int(node, "antialias", 0) or attr_str(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "it smooths, or keeps the aspect ratio"
    if (axes := attr_ints(node, "axes")) is not None and (reason := _all_axes(site, axes)) is not None:
        return reason
    site.drop("antialias", "axes", "keep_aspect_ratio_policy")
    return None


def _all_axes(site: Site, axes: list[int]) -> str | None:
    shape, roi = dims(site.value(0)), site.known(1)
    if shape is None or (site.input(1) is not None and (roi is None or roi.size)):
        return "its rank is not known, or it crops"
    places = [axis % len(shape) for axis in axes]
    for index, dtype in ((2, np.float32), (3, np.int64)):
        given = site.known(index)
        if site.input(index) is None or (given is not None and given.size == 0):
            continue
        rest: list[int | None] = [1] * len(shape) if index == 2 else list(shape)
        if given is None or any(rest[i] is None for i in range(len(shape)) if i not in places):
            return "its scales or sizes are computed, or the other axes have no known size"
        full = np.array([rest[i] or 0 for i in range(len(shape))], dtype)
        full[places] = given.reshape(-1)
        site.node.replace_input_with(index, site.constant(full))
    return None
