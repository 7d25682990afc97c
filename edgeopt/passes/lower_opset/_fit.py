"""Does a node fit the schema of an older opset? Its types, attributes and number of inputs against ``onnx.defs``."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

_NAMES = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.STRING: "string",
    ir.DataType.BOOL: "bool",
}


def misfit(node: ir.Node, opset: int) -> str | None:
    """Why a node is not valid at ``opset``, as far as the types are known; None when nothing speaks against it."""
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    if unknown := sorted(set(node.attributes) - set(schema.attributes)):
        return f"opset {opset} has no attribute {unknown[0]} there"
    if len(node.inputs) > schema.max_input:
        return f"opset {opset} has no input {len(node.inputs)} there"
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, str] = {}
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)] if formals else None
            found = None if value is None else _type_name(value)
            if formal is None or found is None:
                continue
            allowed = constraints.get(formal.type_str, {formal.type_str})
            if found not in allowed:
                return f"opset {opset} takes no {found} there"
            bindable = formal.type_str in constraints and _is_homogeneous(formal)
            if bindable and bound.setdefault(formal.type_str, found) != found:
                return f"opset {opset} takes no {bound[formal.type_str]} and {found} together"
    return None


def _is_homogeneous(formal: Any) -> bool:
    return bool(formal.is_homogeneous)


def _type_name(value: ir.Value) -> str | None:
    """The type in the words of a schema: ``tensor(float)``, ``seq(tensor(int64))``."""
    if value.type is None and value.const_value is not None:
        return f"tensor({_word(value.const_value.dtype)})"
    return None if value.type is None else _spelled(value.type)


def _spelled(type_: ir.TypeProtocol) -> str | None:
    if isinstance(type_, ir.TensorType):
        return f"tensor({_word(type_.dtype)})"
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = _spelled(type_.elem_type) if not isinstance(type_.elem_type, ir.DataType) else None
        word = "seq" if isinstance(type_, ir.SequenceType) else "optional"
        return None if inner is None else f"{word}({inner})"
    return None


def _word(dtype: ir.DataType) -> str:
    return _NAMES.get(dtype, dtype.name.lower())
