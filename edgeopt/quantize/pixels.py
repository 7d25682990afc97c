"""The grid of raw pixels: unsigned bytes are their own quantization, so no float copy of the frame is made.

A value x = a u + b of bytes u lies on the grid of scale a and zero point -b / a when that is a whole number of 0 to
255: DequantizeLinear(u) is x, exactly, and QuantizeLinear has nothing to do. Where the offset differs by channel, or
is no whole number, ``on_grid`` moves what is left over, per channel d[c] = z - m[c], out of the tensor:

1. Into the bias: the sum over c and taps of W[:, c] d[c]. Exact, where all taps lie in the frame; without padding z
   is free to choose.
2. Around the frame a padded Conv reads z for 0. With |d| <= 1/2 everywhere this is off by at most half a step of the
   pixels: what rounding to 8 bits costs everywhere else. So nothing more is done.
3. Otherwise the Conv does not pad: each channel of the bytes is padded with its own m[c], rounded; the same bound.

Signed activations: u - 128 as a signed byte has the bits of u with the first one turned over.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, assign_keys, node_key
from edgeopt.quantize.border import pad_bytes, pads_of
from edgeopt.quantize.placement import constant_of
from edgeopt.quantize.scheme import MIN_SCALE, QParams
from edgeopt.quantize.writer import Writer
from edgeopt.target import Int8Scheme

WHOLE = 1e-4
"""An offset this near to a whole number of steps is that number: float constants are rounded."""

MIDDLE = 127
"""The zero point where any would do: errors of weights are multiplied by u - z, which is smallest around the middle."""

XOR_OPSET = 18
"""The first opset with BitwiseXor, which signed activations need."""

_LARGE = 2.0**100
_KEEPS_BYTES = frozenset({"Transpose", "Gather", "Pad", "Identity", "Split", "Concat"})


def pixel_grid(value: ir.Value) -> tuple[ir.Value, QParams] | None:
    """The bytes that a float value comes from and its parameters on them, dtype ``"uint8"``; None when off the grid."""
    factor, offset = 1.0, 0.0
    while (node := value.producer()) is not None and node.domain in ("", "ai.onnx"):
        source = node.inputs[0] if node.inputs else None
        if node.op_type == "Cast":
            if source is None or source.dtype != ir.DataType.UINT8 or value.dtype != ir.DataType.FLOAT:
                return None
            zero = -offset / factor if MIN_SCALE <= factor < _LARGE else math.nan
            if not (math.isfinite(zero) and abs(zero - round(zero)) <= WHOLE and 0 <= round(zero) <= 255):
                return None
            return source, QParams(scale=np.float32(factor), zero_point=round(zero), dtype="uint8")
        if node.op_type not in ("Add", "Sub", "Mul", "Div"):
            return None
        side = 1 if constant_of(node, 1) is not None else 0
        k, source = _scalar(node, side), node.inputs[1 - side]
        if k is None or source is None or (side == 0 and node.op_type in ("Sub", "Div")) or k == 0:
            return None
        if node.op_type in ("Mul", "Div"):
            factor = factor * k if node.op_type == "Mul" else factor / k
        else:
            offset += factor * (k if node.op_type == "Add" else -k)
        value = source
    return None


def _scalar(node: ir.Node, index: int) -> float | None:
    """The constant at an input when all its elements are one number and it broadcasts to nothing larger."""
    tensor = constant_of(node, index)
    other = node.inputs[1 - index]
    if tensor is None or other is None or other.shape is None or tensor.size == 0:
        return None
    array = tensor.numpy()
    offset = len(other.shape) - array.ndim
    if offset < 0 or any(size not in (1, other.shape[offset + axis]) for axis, size in enumerate(array.shape)):
        return None
    return float(array.reshape(-1)[0]) if (array == array.reshape(-1)[0]).all() else None


def pixel_values(model: Model) -> set[ir.Value]:
    """The float tensors of the main graph that are pixels on their grid."""
    return {value for node in model.graph for value in node.outputs if pixel_grid(value) is not None}


def grids(model: Model, names: Set[str], dtype: str) -> Mapping[str, QParams]:
    """Parameters of the tensors among ``names`` that are pixels, as ``dtype``."""
    found = {str(v.name): pixel_grid(v) for v in pixel_values(model) if v.name in names}
    return {name: _as(grid[1], dtype) for name, grid in found.items() if grid is not None}


def bytes_of(value: ir.Value, params: QParams) -> ir.Value | None:
    """The bytes that a value comes from when ``params`` are those of its pixels, so that nothing need be rounded."""
    grid = pixel_grid(value)
    return grid[0] if grid is not None and _as(grid[1], params.dtype) == params else None


def _as(params: QParams, dtype: str) -> QParams:
    return dataclasses.replace(params, zero_point=params.zero_point - 128 * (dtype == "int8"), dtype=dtype)


def scheme_for(model: Model, scheme: Int8Scheme, opset: int) -> Int8Scheme:
    """The scheme, with unsigned activations where signed ones would need an operator above ``opset``.

    The two have the same grids. onnxruntime's Conv wants one type for its input and its result.
    """
    fed = any(value.dtype == ir.DataType.UINT8 for value in model.graph.inputs)
    return dataclasses.replace(scheme, activation="uint8") if fed and opset < XOR_OPSET else scheme


def on_grid(model: Model, keys: Set[str]) -> Model:
    """Bring the pixels that the Conv nodes ``keys`` read onto their grid; the same model when nothing is to do."""
    wanted = {node_key(n) for n in model.graph if node_key(n) in keys and _read(n) is not None}
    if not wanted:
        return model
    changed = model.clone()
    writer = Writer(changed.graph)
    for conv in [n for n in changed.graph if node_key(n) in wanted]:
        found = _read(conv)
        assert found is not None
        _move_offset(writer, changed.graph, conv, found)
    writer.drop_unused_constants()
    assign_keys(changed.ir)
    return changed


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Read:
    """What a Conv reads: ``cast`` makes floats of bytes, ``sub`` takes ``mean`` per channel off; None takes nothing."""

    cast: ir.Node
    sub: ir.Node | None
    mean: np.ndarray
    padded: bool


def _read(conv: ir.Node) -> _Read | None:
    """The bytes behind Conv(Cast(u) - m) or Conv(Cast(u)); None where they are on their best grid, or cannot be."""
    read, weight = conv.inputs[0] if conv.inputs else None, constant_of(conv, 1)
    maker = None if read is None else read.producer()
    if conv.op_type != "Conv" or read is None or maker is None or weight is None:
        return None
    sub = maker if maker.op_type == "Sub" else None
    cast = maker if sub is None else (None if sub.inputs[0] is None else sub.inputs[0].producer())
    if cast is None or cast.op_type != "Cast" or read.dtype != ir.DataType.FLOAT:
        return None
    source = cast.inputs[0]
    if source is None or source.dtype != ir.DataType.UINT8 or len(read.uses()) != 1 or read.is_graph_output():
        return None
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    pads = None if source.shape is None else pads_of(conv, source.shape)
    if (bias is not None and constant_of(conv, 2) is None) or source.shape is None or pads is None:
        return None
    channels = weight.shape.numpy()[1] * conv.attributes.get_int("group", 1)
    if sub is None:
        return None if any(pads) else _Read(cast=cast, sub=None, mean=np.zeros(channels), padded=False)
    mean = constant_of(sub, 1)
    if mean is None or pixel_grid(read) is not None:
        return None
    array = mean.numpy().astype(np.float64)
    shape = (1,) * (len(source.shape) - array.ndim) + array.shape
    if len(shape) < 2 or shape[1] not in (1, channels) or array.size not in (1, channels):
        return None
    spread = np.broadcast_to(array.reshape(-1), (channels,)).copy()
    if any(pads) and not (spread.min() >= -0.5 and spread.max() <= 255.5):
        return None
    return _Read(cast=cast, sub=sub, mean=spread, padded=any(pads))


def _move_offset(writer: Writer, graph: ir.Graph, conv: ir.Node, found: _Read) -> None:
    """Conv(Cast(u) - m) -> Conv(Cast(u') - z) with a whole number z, what is left over in the bias."""
    weight, bias, read = constant_of(conv, 1), constant_of(conv, 2), conv.inputs[0]
    assert weight is not None
    assert read is not None
    name, groups, sub = str(read.name), conv.attributes.get_int("group", 1), found.sub
    zero = MIDDLE
    if found.padded:
        zero = int(np.clip(np.rint((found.mean.min() + found.mean.max()) / 2), 0, 255))
        if np.abs(zero - found.mean).max() > 0.5 + WHOLE:
            pad_bytes(writer, graph, conv, np.clip(np.rint(found.mean), 0, 255).astype(np.uint8))
    taps = weight.numpy().astype(np.float64)
    by_channel = taps.reshape(groups, taps.shape[0] // groups, taps.shape[1], -1).sum(axis=3)
    moved = np.einsum("goc,gc->go", by_channel, (zero - found.mean).reshape(groups, -1)).reshape(-1)
    if len(conv.inputs) < 3:
        conv.resize_inputs(3)
    total = moved + (0 if bias is None else bias.numpy())
    writer.replace(conv, 2, writer.initializer(name, "bias", total.astype(np.float32)))
    constant = writer.initializer(name, "middle", np.asarray(zero, np.float32))
    if sub is not None:
        writer.replace(sub, 1, constant)
        return
    node = ir.node("Sub", [read, constant], name=writer.fresh(name, "Sub"))
    out = node.outputs[0]
    out.name, out.type, out.shape = writer.fresh(name, "centred"), read.type, read.shape
    graph.insert_before(conv, node)
    conv.replace_input_with(0, out)


def float_copies(model: Model) -> dict[str, int | None]:
    """Bytes of the float copy that a graph makes of a frame, by input of bytes; None where its size is open."""
    found: dict[str, int | None] = {}
    for fed in model.graph.inputs:
        waiting = [fed] if fed.dtype == ir.DataType.UINT8 and not fed.is_initializer() else []
        while waiting:
            for use in waiting.pop().uses():
                out = use.node.outputs[0]
                if use.node.op_type in _KEEPS_BYTES:
                    waiting.extend(use.node.outputs)
                elif use.node.op_type == "Cast" and out.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
                    dims = list(fed.shape if fed.shape is not None else ())
                    frame = [d for d in dims[1:] if isinstance(d, int)]  # the batch axis may be open
                    width = ir.DataType.FLOAT.bitwidth // 8 if out.dtype == ir.DataType.FLOAT else 2
                    found[str(fed.name)] = math.prod(frame) * width if frame and len(frame) == len(dims) - 1 else None
    return found
