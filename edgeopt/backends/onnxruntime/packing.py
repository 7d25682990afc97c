"""What kernels of onnxruntime's CPU provider keep of their constants, and the work space of their calls."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from edgeopt.memory import Sizes

_RECURRENT = frozenset({"LSTM", "GRU"})
_MATRIX = frozenset({"Gemm", "MatMul", "FusedMatMul", "FusedGemm"})
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_CHANNELS = 16
"""Output channels side by side in packed integer weights."""


def blocked_weight(node: ir.Node, block: int) -> tuple[ir.TensorProtocol | None, int]:
    """The weight of a float convolution that is put into blocks of channels, and its bytes there."""
    if node.op_type not in ("Conv", "FusedConv") or len(node.inputs) < 2 or node.inputs[1] is None:
        return None, 0
    tensor = node.inputs[1].const_value
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 4:
        return None, 0
    outputs, inputs, *kernel = tensor.shape.numpy()
    group = node.attributes.get_int("group", 1)
    if group > 1 and inputs > 1 and (inputs % block or (outputs // group) % block):
        return None, 0
    padded = -(-outputs // block) * block
    if group == 1 and inputs >= block:
        inputs = -(-inputs // block) * block
    return tensor, padded * inputs * math.prod(kernel) * 4


def stored_weight(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """A constant input, or the stored one behind its DequantizeLinear."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return None
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear" and producer.inputs[0] is not None:
        return producer.inputs[0].const_value
    return value.const_value


def symmetric(node: ir.Node) -> bool:
    """Whether an integer convolution has a kernel that needs neither its result in int32 nor its input unrolled."""
    tensor = stored_weight(node, 1)
    if tensor is None or tensor.dtype != ir.DataType.INT8 or len(tensor.shape) < 3:
        return False
    outputs, inputs = tensor.shape.numpy()[0], tensor.shape.numpy()[1]
    group = node.attributes.get_int("group", 1)
    if group > 1:
        return inputs == 1 and outputs == group and group % _CHANNELS == 0
    return outputs >= _CHANNELS and inputs % 4 == 0 and outputs % 4 == 0


def packed(node: ir.Node) -> Iterator[tuple[ir.TensorProtocol, int, int]]:
    """Constants that a kernel packs: the tensor, bytes of the packed one, and of the work space while packing."""
    if node.op_type in _RECURRENT:
        for index in (1, 2):
            tensor = stored_weight(node, index)
            if tensor is not None and len(tensor.shape) == 3:
                directions, rows, columns = tensor.shape.numpy()
                yield tensor, directions * _matrix(columns, rows, tensor.dtype.itemsize), 0
        return
    tensor = stored_weight(node, 1)
    if tensor is None:
        return
    if node.op_type in ("Conv", "ConvTranspose") and tensor.dtype in _BYTES:
        outputs, group = tensor.shape.numpy()[0], node.attributes.get_int("group", 1)
        if symmetric(node):
            yield tensor, tensor.nbytes // outputs * (-(-outputs // _CHANNELS) * _CHANNELS), 0
        elif tensor.shape.numpy()[1] == 1 and group == outputs:
            yield tensor, tensor.nbytes, 0
        else:
            yield tensor, group * _matrix(tensor.nbytes // outputs, outputs // group, 1), tensor.nbytes // group
    elif node.op_type in _MATRIX and len(tensor.shape) == 2 and tensor.dtype in (ir.DataType.FLOAT, *_BYTES):
        rows, columns = tensor.shape.numpy()
        if node.attributes.get_int("transB", 0):
            rows, columns = columns, rows
        yield tensor, _matrix(rows, columns, tensor.dtype.itemsize), 0


def _matrix(depth: int, columns: int, width: float) -> int:
    """Bytes of a packed matrix: columns in groups of 16; integers with the sum of each column beside them."""
    wide = -(-columns // 16) * 16
    return depth * wide * 4 if width == 4 else (-(-depth // 4) * 4 + 4) * wide


def scratch(node: ir.Node, sizes: Sizes, *, packs: bool = True) -> Iterator[int]:
    """Work space of one call, bytes; without packed weights each call turns its own over."""
    out = sizes.dims(node.outputs[0]) if node.outputs else None
    tensor = stored_weight(node, 1) if len(node.inputs) > 1 else None
    if out is None or tensor is None or tensor.dtype not in _BYTES:
        return
    if node.op_type == "Conv":
        kernel, positions = math.prod(tensor.shape.numpy()[2:]), math.prod(out[2:])
        group = node.attributes.get_int("group", 1)
        depthwise = tensor.shape.numpy()[1] == 1 and tensor.shape.numpy()[0] == group
        ready = packs and symmetric(node)
        if not packs:
            yield tensor.nbytes
        if not ready:
            yield 4 * math.prod(out[1:])
        plain = kernel == 1 and all(step == 1 for step in node.attributes.get_ints("strides", (1, 1)))
        if depthwise or (ready and not plain):
            yield 8 * kernel * positions
        elif not plain:
            yield tensor.shape.numpy()[1] * kernel * positions
    elif node.op_type in _MATRIX:
        yield 4 * math.prod(out)
