"""Random graphs that hold what exporters write: a list of numbers in, a valid model out.

Tensors are images [N, C, H, W] or sequences [N, T, D]. Weights are scaled by their fan-in, so that values keep their
size from layer to layer and a wrong rewrite cannot hide behind large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .sketch_parts import (
    Shape,
    Sketch,
    activation,
    affine,
    attention,
    batchnorm,
    branch,
    convolution,
    instance_norm,
    linear,
    norm,
    one_hot,
    softmax,
)

OPSETS = (13, 16, 17, 18, 20, 20, 21, 23)


def image_piece(s: Sketch, x: str, shape: Shape) -> None:
    n, c, h, w = shape
    kind = s.pick(20)
    if kind < 4:
        y, shape = convolution(s, x, shape)
        s.keep(y, shape)
    elif kind == 17:  # an affine step, or a norm, in front of weights
        y = affine(s, x, shape) if s.pick(2) else batchnorm(s, x, c)
        weight = s.constant(s.weights(4, c, 2, 2, fan_in=4 * c), may_share=False)
        if min(h, w) > 1:
            y, shape = s.op("Conv", y, weight, kernel_shape=[2, 2]), (n, 4, h - 1, w - 1)
        s.keep(y, shape)
    elif kind == 18:
        s.keep(instance_norm(s, x, c), shape)
    elif kind == 19:
        bent = s.op("Softmax", x, axis=1 + s.pick(3))
        s.keep(s.swap("Mul", x, bent), shape)
    elif kind == 4:
        s.keep(batchnorm(s, x, c), shape)
    elif kind == 5:
        s.keep(affine(s, x, shape), shape)
    elif kind == 6:
        top, left, bottom, right = (s.pick(2) for _ in range(4))
        mode = ("constant", "constant", "edge")[s.pick(3)]
        fill = [s.constant(np.asarray(s.pick(2), np.float32))] if mode == "constant" and s.pick(2) else []
        y = s.op("Pad", x, s.ints(0, 0, top, left, 0, 0, bottom, right), *fill, mode=mode)
        s.keep(y, (n, c, h + top + bottom, w + left + right))
    elif kind == 7:
        turned = s.op("Transpose", x, perm=[0, 2, 3, 1])
        y = activation(s, turned) if s.pick(2) else turned
        s.keep(s.op("Transpose", y, perm=[0, 3, 1, 2]), shape)
    elif kind == 8:
        flat = s.op("Flatten", x) if s.pick(2) else s.op("Reshape", x, s.ints(0, -1))
        s.keep(s.op("Reshape", flat, s.ints(-1, c, h, w)), shape)
    elif kind == 9:
        others = [name for name, other in s.shapes.items() if other == shape]
        s.keep(s.swap(("Add", "Mul", "Sub")[s.pick(3)], x, others[s.pick(len(others))]), shape)
    elif kind == 10 and min(h, w) >= 4:
        pooled = (n, c, h - 1, w - 1)
        if s.pick(2):
            s.keep(s.op("AveragePool", x, kernel_shape=[2, 2], count_include_pad=s.pick(2)), pooled)
        else:
            s.keep(s.op("MaxPool", x, kernel_shape=[2, 2]), pooled)
    elif kind == 11:
        s.keep(s.op("Reshape", x, s.op("Shape", x)), shape)
    elif kind == 12:
        s.keep(s.op(("Identity", "Dropout")[s.pick(2)], x), shape)
    elif kind == 13:
        halves = s.op("Split", x, s.ints(1, c - 1), axis=1, outputs=2)
        rest = activation(s, f"{halves}_1") if s.pick(2) else f"{halves}_1"
        s.keep(s.op("Concat", halves, rest, axis=1), shape)
    elif kind == 14:
        head = s.op("Slice", x, s.ints(0), s.ints(1), s.ints(1))
        tail = s.op("Slice", x, s.ints(1), s.ints(2**31), s.ints(1))
        s.keep(s.op("Concat", head, tail, axis=1), shape)
    elif kind == 15:
        gate = s.op("Sigmoid", s.mean(x, 2, 3))
        s.keep(s.swap("Mul", x, gate), shape)
    else:
        rows = s.op("Reshape", x, s.ints(0, c, h * w) if s.pick(2) else s.ints(-1, c, h * w))
        s.keep(s.op("Transpose", rows, perm=[0, 2, 1]), (n, h * w, c))


def sequence_piece(s: Sketch, x: str, shape: Shape) -> None:
    n, t, d = shape
    kind = s.pick(11)
    if kind == 0:
        s.keep(norm(s, x, shape), shape)
    elif kind == 1:
        s.keep(attention(s, norm(s, x, shape), shape), shape)
    elif kind == 2:
        s.keep(s.swap("Add", x, attention(s, x, shape)), shape)
    elif kind == 3:
        hidden = activation(s, linear(s, x, d, 2 * d))
        s.keep(s.swap("Add", x, linear(s, hidden, 2 * d, d)), shape)
    elif kind == 4:
        s.keep(norm(s, s.swap("Add", x, s.constant(s.floats(1, t, d), may_share=False)), shape), shape)
    elif kind == 5:
        s.keep(softmax(s, x, 3), shape)
    elif kind == 6:
        flat = s.op("Reshape", x, s.ints(-1, d))
        s.keep(s.op("Reshape", linear(s, flat, d, d), s.ints(-1, t, d)), shape)
    elif kind == 7:
        gathered = s.op("Gather", x, s.ints(*range(t)), axis=1)
        there_and_back = s.op("Squeeze", s.op("Unsqueeze", gathered, s.ints(0)), s.ints(0))
        s.keep(s.op("Unsqueeze", there_and_back, s.ints(1)), (n, 1, t, d))
    elif kind == 8:
        s.keep(one_hot(s, x, shape), shape)
    elif kind == 9:  # batch and time change places and back, between other shapes
        turned = s.op("Transpose", s.op("Reshape", x, s.ints(-1, t, 1, d)), perm=[1, 0, 2, 3])
        back = s.op("Transpose", s.op("Reshape", turned, s.ints(t, -1, d)), perm=[1, 0, 2])
        s.keep(back, shape)
    else:
        s.keep(linear(s, x, d, d + 1), (n, t, d + 1))


def grow(s: Sketch) -> None:
    """Add one random piece on a random tensor."""
    names = list(s.shapes)
    x = names[-1] if s.pick(3) else names[s.pick(len(names))]
    shape = s.shapes[x]
    if s.pick(12) == 0:
        s.keep(branch(s, x, shape), shape)
    elif s.pick(8) == 0:
        s.keep(activation(s, x), shape)
    elif len(shape) == 3:
        sequence_piece(s, x, shape)
    else:
        image_piece(s, x, shape)


def sketch_of(numbers: Sequence[int]) -> onnx.ModelProto:
    """A valid model from a list of choices; the same list gives the same model."""
    stream = iter(numbers)

    def pick(n: int) -> int:
        return next(stream, 0) % n

    s = Sketch(rng=np.random.default_rng(list(numbers)), pick=pick, opset=OPSETS[pick(len(OPSETS))])
    images = pick(3) > 0
    start: Shape = (2, 2 * (1 + pick(2)), 4 + pick(3), 5) if images else (2, 3 + pick(4), 4 * (1 + pick(2)))
    s.shapes["x"] = start
    for _ in range(3 + pick(8)):
        grow(s)
    made = [n for n in s.shapes if n != "x"]
    outputs = list(dict.fromkeys([made[-1], made[pick(len(made))]]))
    batch: list[int | str] = ["N", *start[1:]]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, batch if pick(2) else start)]
    if any(node.op_type == "If" for node in s.nodes):
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = helper.make_graph(
        s.nodes,
        "sketch",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(s.shapes[n])) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in s.arrays.items()],
    )
    imports = [helper.make_opsetid("", s.opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8 if s.opset < 21 else 10)


def numbers_of(seed: int) -> list[int]:
    """The choices of a seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, 720720, 240)]
