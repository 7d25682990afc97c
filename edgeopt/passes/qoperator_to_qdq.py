"""Operators on integers -> the float operator between DequantizeLinear and QuantizeLinear.

    QLinearConv(x, sx, zx, w, sw, zw, sy, zy, b) = Q(Conv(DQ(x; sx, zx), DQ(w; sw, zw), DQ(b; sx sw, 0)); sy, zy)

and likewise for QLinearMatMul and, of com.microsoft, QGemm, QLinearAdd, QLinearMul, QLinearConcat, QLinearSigmoid,
QLinearLeakyRelu, QLinearSoftmax, QLinearAveragePool and QLinearGlobalAveragePool. For backends whose parser knows no
such operator; onnxruntime runs them as they are, and leaves them so.

1. Scales are constants. An activation has one; a weight may have one a channel.
2. Pooling over channels that stand last is refused: the float operators want them second.
3. QLinearSoftmax of before opset 13 is refused, which flattened its input first.
4. Other operators on integers (ConvInteger, MatMulInteger, DynamicQuantizeLinear, ...) have no such form: refused.

The integer kernel rounds once where Q(op(DQ)) rounds the same real number: results are equal up to a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeopt.findings.quantized import INTEGER_OPS
from edgeopt.model import NODE_KEY, node_key
from edgeopt.passes._graph import (
    attr_float,
    attr_int,
    constant,
    dims,
    drop_if_unused,
    input_at,
    new_constant,
    nodes_of,
    value_names,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten


class _Unfit(Exception):  # noqa: N818
    """Why a node has no Q/DQ form."""


class _Builder:
    """Makes the nodes that take the place of one."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node = model, node
        self.made: list[ir.Node] = []
        self.added: list[ir.Value] = []
        self._taken = value_names(model)

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A constant of the main graph."""
        value = new_constant(self.model, self.model.graph, name, array)
        self.added.append(value)
        return value

    def add(
        self, op: str, inputs: list[ir.Value | None], dtype: ir.DataType | None, attributes: dict[str, Any]
    ) -> ir.Value:
        """A node of the default domain; its output has no name yet that anybody knows."""
        made = ir.node(op, inputs, attributes=attributes)
        base = f"{node_key(self.node)}_{op}"
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        made.outputs[0].name = name
        if dtype is not None:
            made.outputs[0].type = ir.TensorType(dtype)
        self.made.append(made)
        return made.outputs[0]

    def real(self, at: int, *, axis: int | None = None) -> ir.Value:
        """DequantizeLinear of inputs ``at``, ``at + 1`` (scale) and ``at + 2`` (zero point); ``axis`` of a vector."""
        value, scale, zero = (input_at(self.node, at + i) for i in range(3))
        size = self.scale(at + 1).size
        if value is None or (size > 1 and axis is None):
            raise _Unfit("an activation has a vector of scales")
        if size > 1 and axis is not None and (dims(value) or ())[axis : axis + 1] != (size,):
            raise _Unfit("its scales do not go with one axis of the weight")
        inputs = [value, self._shaped(scale, size > 1), self._shaped(zero, size > 1)]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return self.add("DequantizeLinear", inputs, ir.DataType.FLOAT, {"axis": axis} if size > 1 else {})

    def integers(self, value: ir.Value, at: int) -> ir.Value:
        """QuantizeLinear of ``value`` with the scale and zero point at inputs ``at`` and ``at + 1``."""
        if self.scale(at).size != 1:
            raise _Unfit("its result has a vector of scales")
        scale, zero = input_at(self.node, at), input_at(self.node, at + 1)
        inputs = [value, self._shaped(scale, False), self._shaped(zero, False)]
        if zero is None:  # the operator then keeps its input's type, QuantizeLinear would take uint8
            source = input_at(self.node, 0)
            if source is None or source.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
                raise _Unfit("the type of its result is unknown")
            inputs[2] = self.constant(f"{node_key(self.node)}_zero_point", np.zeros((), source.dtype.numpy()))
        return self.add("QuantizeLinear", inputs, self.node.outputs[0].dtype, {})

    def scale(self, at: int) -> np.ndarray:
        """A constant scale."""
        found = constant(input_at(self.node, at))
        if found is None:
            raise _Unfit("a scale is not constant")
        return found

    def _shaped(self, value: ir.Value | None, vector: bool) -> ir.Value | None:
        """A scale or zero point as a scalar, or as a vector, whatever the operator took for one."""
        array = constant(value)
        if value is None:
            return None
        if array is None:
            raise _Unfit("a zero point is not constant")
        if array.ndim == int(vector):
            return value
        return self.constant(f"{value.name}_reshaped", array.reshape(-1) if vector else array.reshape(-1)[0])


def _rank(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise _Unfit("the rank of its weight is unknown")
    return len(value.shape)


def _bias(builder: _Builder, at: int, step: np.ndarray, size: int) -> ir.Value | None:
    """DQ of an int32 bias, whose scale is the product of the others."""
    value = input_at(builder.node, at)
    if value is None:
        return None
    vector = step.size > 1
    scale = builder.constant(
        f"{value.name}_scale", (step.reshape(-1) if vector else step.reshape(())).astype(np.float32)
    )
    return builder.add("DequantizeLinear", [value, scale], ir.DataType.FLOAT, {"axis": size - 1} if vector else {})


def _kept(node: ir.Node, *names: str) -> dict[str, Any]:
    return {name: node.attributes[name].value for name in names if name in node.attributes}


def _conv(b: _Builder) -> ir.Value:
    step = b.scale(1) * b.scale(4)
    inputs = [b.real(0), b.real(3, axis=0), _bias(b, 8, step, 1)]
    windows = _kept(b.node, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return b.integers(b.add("Conv", [v for v in inputs if v is not None], ir.DataType.FLOAT, windows), 6)


def _matmul(b: _Builder) -> ir.Value:
    inputs: list[ir.Value | None] = [b.real(0), b.real(3, axis=_rank(input_at(b.node, 3)) - 1)]
    return b.integers(b.add("MatMul", inputs, ir.DataType.FLOAT, {}), 6)


def _gemm(b: _Builder) -> ir.Value:
    alpha = attr_float(b.node, "alpha", 1.0)
    inputs: list[ir.Value | None] = [b.real(0), b.real(3, axis=0 if attr_int(b.node, "transB", 0) else 1)]
    bias_value = input_at(b.node, 6)
    if bias_value is not None:
        inputs.append(_bias(b, 6, alpha * b.scale(1) * b.scale(4), _rank(bias_value)))
    value = b.add("Gemm", inputs, ir.DataType.FLOAT, _kept(b.node, "alpha", "transA", "transB"))
    return value if input_at(b.node, 7) is None else b.integers(value, 7)


def _binary(b: _Builder) -> ir.Value:
    op = b.node.op_type.removeprefix("QLinear")
    return b.integers(b.add(op, [b.real(0), b.real(3)], ir.DataType.FLOAT, {}), 6)


def _unary(b: _Builder) -> ir.Value:
    op = b.node.op_type.removeprefix("QLinear")
    return b.integers(b.add(op, [b.real(0)], ir.DataType.FLOAT, _kept(b.node, "alpha")), 3)


def _softmax(b: _Builder) -> ir.Value:
    if attr_int(b.node, "opset", 0) < 13:
        raise _Unfit("it flattens its input, as before opset 13")
    return b.integers(b.add("Softmax", [b.real(0)], ir.DataType.FLOAT, _kept(b.node, "axis")), 3)


def _pool(b: _Builder) -> ir.Value:
    if attr_int(b.node, "channels_last", 0):
        raise _Unfit("its channels stand last")
    op = b.node.op_type.removeprefix("QLinear")
    windows = _kept(b.node, "auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    return b.integers(b.add(op, [b.real(0)], ir.DataType.FLOAT, windows if op == "AveragePool" else {}), 3)


def _concat(b: _Builder) -> ir.Value:
    values: list[ir.Value | None] = [b.real(at) for at in range(2, len(b.node.inputs), 3)]
    return b.integers(b.add("Concat", values, ir.DataType.FLOAT, _kept(b.node, "axis")), 0)


_FORMS: dict[tuple[str, str], Callable[[_Builder], ir.Value]] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("com.microsoft", "QGemm"): _gemm,
    **{("com.microsoft", f"QLinear{op}"): _binary for op in ("Add", "Mul")},
    **{("com.microsoft", f"QLinear{op}"): _unary for op in ("Sigmoid", "LeakyRelu")},
    **{("com.microsoft", f"QLinear{op}"): _pool for op in ("AveragePool", "GlobalAveragePool")},
    ("com.microsoft", "QLinearSoftmax"): _softmax,
    ("com.microsoft", "QLinearConcat"): _concat,
}
"""How each operator is spelled out."""


def _replace(model: ir.Model, node: ir.Node, form: Callable[[_Builder], ir.Value]) -> str | None:
    builder, graph, out = _Builder(model, node), node.graph, node.outputs[0]
    assert graph is not None
    try:
        value = form(builder)
    except _Unfit as unfit:
        drop_if_unused(*builder.added)
        return str(unfit)
    core = next(n for n in builder.made if n.op_type not in ("QuantizeLinear", "DequantizeLinear"))
    core.name = node.name
    core.metadata_props.update(node.metadata_props)
    for number, made in enumerate(n for n in builder.made if n is not core):
        made.name = made.metadata_props[NODE_KEY] = f"{node_key(node)}_{made.op_type}_{number}"
    name, inputs = out.name, node.inputs
    out.name = None
    value.name, value.shape, value.type = name, out.shape, out.type
    out.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.insert_before(node, builder.made)
    graph.remove(node, safe=True)
    drop_if_unused(*inputs)
    return None


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        form = _FORMS.get((node.domain, node.op_type))
        if form is None:
            if node.domain in ("", "com.microsoft") and node.op_type in INTEGER_OPS:
                refusals.append(Refusal(node_key(node), f"{node.op_type} has no Q/DQ form"))
            continue
        why = _replace(model, node, form)
        if why is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


QOPERATOR_TO_QDQ = Pass(
    name="qoperator-to-qdq",
    rewrite=_rewrite,
    tolerance=1e-2,
    gain="operators that every runtime's parser knows",
)
