"""Types of the outputs of nodes that a rule emitted, from their schemas: later rules ask for them."""

from __future__ import annotations

import onnx
import onnx_ir as ir

_BY_NAME = {
    "tensor(bool)": ir.DataType.BOOL,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(float)": ir.DataType.FLOAT,
}


def infer_types(node: ir.Node, opset: int) -> None:
    """Set the types of outputs that have none, where a schema says them; shapes stay unknown."""
    if node.domain:
        return
    schema = onnx.defs.get_schema(node.op_type, opset)
    bound: dict[str, ir.TypeProtocol] = {}
    for index, value in enumerate(node.inputs):
        if value is not None and value.type is not None and schema.inputs:
            bound.setdefault(schema.inputs[min(index, len(schema.inputs) - 1)].type_str, value.type)
    for out, formal in zip(node.outputs, schema.outputs):
        if out.type is None:
            own = _BY_NAME.get(formal.type_str) or _said(node)
            out.type = bound.get(formal.type_str) if own is None else ir.TensorType(own)


def _said(node: ir.Node) -> ir.DataType | None:
    """The type that an attribute, or for CastLike an input, names."""
    if node.op_type == "CastLike":
        return None if node.inputs[1] is None else node.inputs[1].dtype
    for name, attr in node.attributes.items():
        if (node.op_type, name) == ("Cast", "to"):
            return ir.DataType(attr.as_int())
        if (node.op_type, name) in (("Constant", "value"), ("ConstantOfShape", "value")):
            return attr.as_tensor().dtype
        if node.op_type == "Constant":
            return {"value_int": ir.DataType.INT64, "value_ints": ir.DataType.INT64}.get(name, ir.DataType.FLOAT)
    return ir.DataType.FLOAT if node.op_type == "ConstantOfShape" else None
