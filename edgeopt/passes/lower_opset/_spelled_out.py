"""Rules that write an operator out in older ones, in the spelling that runtimes join again where they can.

Gelu(x)      x / sqrt(2) -> Erf -> + 1 -> * x -> * 0.5;   x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
HardSwish    x * HardSigmoid(x; alpha, beta)
Mish(x)      x * tanh(softplus(x))
Swish(x)     x * sigmoid(alpha x)
LayerNorm    d = x - mean(x);  d / sqrt(mean(d^2) + e) * scale + bias
RMSNorm      x / sqrt(mean(x^2) + e) * scale
GroupNorm    InstanceNormalization over the groups, as one axis
others       the function that the standard defines them by (``by_definition``)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.passes._graph import attr_float, attr_int, attr_str, dims
from edgeopt.passes.lower_opset._site import FLOATS, Site
from edgeopt.passes.lower_opset._types import infer_types

_NO_TYPE = "its type is not known"


def gelu(site: Site) -> str | None:
    """Gaussian Error Linear Units (Hendrycks and Gimpel, 2016), both forms."""
    x, dtype = site.value(0), site.dtype()
    if dtype is None:
        return _NO_TYPE
    one, half = site.constant(1.0, dtype), site.constant(0.5, dtype)
    if attr_str(site.node, "approximate", "none") == "tanh":
        cube = site.add("Pow", x, site.constant(3.0, dtype))
        inner = site.add("Add", x, site.add("Mul", site.constant(0.044715, dtype), cube), dtype=dtype)
        bent = site.add("Tanh", site.add("Mul", site.constant(math.sqrt(2 / math.pi), dtype), inner))
        site.replace(site.add("Mul", site.add("Mul", x, half), site.add("Add", bent, one)))
        return None
    bent = site.add("Erf", site.add("Div", x, site.constant(math.sqrt(2), dtype)))
    site.replace(site.add("Mul", site.add("Mul", x, site.add("Add", bent, one)), half))
    return None


def hard_swish(site: Site) -> str | None:
    """Searching for MobileNetV3 (Howard et al., 2019)."""
    gate = site.add("HardSigmoid", site.value(0), alpha=1 / 6, beta=0.5)
    site.replace(site.add("Mul", site.value(0), gate))
    return None


def mish(site: Site) -> str | None:
    """Mish: A Self Regularized Non-Monotonic Activation Function (Misra, 2019)."""
    site.replace(site.add("Mul", site.value(0), site.add("Tanh", site.add("Softplus", site.value(0)))))
    return None


def swish(site: Site) -> str | None:
    """Searching for Activation Functions (Ramachandran et al., 2017)."""
    x, dtype, alpha = site.value(0), site.dtype(), attr_float(site.node, "alpha", 1.0)
    if dtype is None:
        return _NO_TYPE
    scaled = x if alpha == 1 else site.add("Mul", x, site.constant(alpha, dtype))
    site.replace(site.add("Mul", x, site.add("Sigmoid", scaled)))
    return None


def cast_like(site: Site) -> str | None:
    """A Cast to the type that the second input has."""
    wanted = site.dtype(1)
    if wanted is None:
        return "the type that it casts to is not known"
    extra = {name: site.node.attributes[name].value for name in ("saturate",) if name in site.node.attributes}
    if site.opset < 19:
        extra = {}
    site.replace(site.add("Cast", site.value(0), dtype=wanted, to=wanted.value, **extra))
    return None


def boolean_reduction(site: Site) -> str | None:
    """Truth values are reduced as the numbers 0 and 1."""
    if site.dtype() is None:
        return _NO_TYPE
    if site.dtype() != ir.DataType.BOOL:
        return None
    number = site.add("Cast", site.value(0), to=ir.DataType.INT32.value, dtype=ir.DataType.INT32)
    kept = {name: attr.value for name, attr in site.node.attributes.items()}
    reduced = site.add(site.node.op_type, number, *list(site.node.inputs)[1:], dtype=ir.DataType.INT32, **kept)
    # Over no elements the numbers are the least and the largest; the truth values are false and true.
    site.replace(site.add("Greater", reduced, site.constant(0, ir.DataType.INT32), dtype=ir.DataType.BOOL))
    return None


def _mean(site: Site, x: ir.Value, axes: list[int]) -> ir.Value:
    if site.opset < 18:
        return site.add("ReduceMean", x, axes=axes, keepdims=1)
    return site.add("ReduceMean", x, site.constant(np.array(axes, np.int64)), keepdims=1)


def _axes(site: Site) -> list[int] | None:
    """The axes from ``axis`` on, counted from the end; None when that needs a rank which is not known."""
    axis, shape = attr_int(site.node, "axis", -1), dims(site.value(0))
    if axis >= 0:
        if shape is None:
            return None
        axis -= len(shape)
    return list(range(axis, 0))


def layer_normalization(site: Site) -> str | None:
    """Layer Normalization (Ba et al., 2016). Statistics are computed in the stash type."""
    dtype, axes, node = site.dtype(), _axes(site), site.node
    if dtype not in FLOATS or axes is None:
        return "its type or rank is not known"
    stash = ir.DataType(attr_int(node, "stash_type", 1))
    wide = _cast(site, site.value(0), dtype, stash)
    mean = _mean(site, wide, axes)
    centered = site.add("Sub", wide, mean)
    variance = _mean(site, site.add("Pow", centered, site.constant(2.0, stash)), axes)
    deviation = site.add("Sqrt", site.add("Add", variance, site.constant(attr_float(node, "epsilon", 1e-5), stash)))
    scaled = _cast(site, site.add("Div", centered, deviation), stash, dtype)
    scaled = site.add("Mul", scaled, site.value(1))
    if (bias := site.input(2)) is not None:
        scaled = site.add("Add", scaled, bias)
    others: list[ir.Value | None] = []
    if len(node.outputs) > 1:
        others.append(mean)
    if len(node.outputs) > 2:
        others.append(site.add("Reciprocal", deviation))
    site.replace(scaled, *others)
    return None


def rms_normalization(site: Site) -> str | None:
    """Root Mean Square Layer Normalization (Zhang and Sennrich, 2019)."""
    dtype, axes, node = site.dtype(), _axes(site), site.node
    if dtype not in FLOATS or axes is None:
        return "its type or rank is not known"
    stash = ir.DataType(attr_int(node, "stash_type", 1))
    wide = _cast(site, site.value(0), dtype, stash)
    square = _mean(site, site.add("Pow", wide, site.constant(2.0, stash)), axes)
    root = site.add("Sqrt", site.add("Add", square, site.constant(attr_float(node, "epsilon", 1e-5), stash)))
    site.replace(site.add("Mul", _cast(site, site.add("Div", wide, root), stash, dtype), site.value(1)))
    return None


def group_normalization(site: Site) -> str | None:
    """Group Normalization (Wu and He, 2018). Until 20 there is one scale per group, from 21 on one per channel."""
    node, dtype, shape = site.node, site.dtype(), dims(site.value(0))
    groups, per_channel = attr_int(node, "num_groups", 1), site.opset >= 20
    if dtype is None or shape is None or len(shape) < 3:
        return "its type or rank is not known"
    if dtype != ir.DataType.FLOAT and attr_int(node, "stash_type", 1) == ir.DataType.FLOAT.value and per_channel:
        return f"it normalizes {dtype.name.lower()} in float"
    x, epsilon = site.value(0), attr_float(node, "epsilon", 1e-5)
    rows = site.add("Reshape", x, site.constant(np.array([0, groups, -1], np.int64)))
    if per_channel:
        scale, bias = site.constant(np.ones(groups), dtype), site.constant(np.zeros(groups), dtype)
    else:
        scale, bias = site.value(1), site.value(2)
    normal = site.add("InstanceNormalization", rows, scale, bias, epsilon=epsilon)
    whole = site.add("Shape", x, dtype=ir.DataType.INT64)
    back = site.add("Reshape", normal, whole)
    if per_channel:
        column = site.constant(np.array([-1, *[1] * (len(shape) - 2)], np.int64))
        back = site.add("Mul", back, site.add("Reshape", site.value(1), column))
        back = site.add("Add", back, site.add("Reshape", site.value(2), column))
    site.replace(back)
    return None


def _cast(site: Site, value: ir.Value, source: ir.DataType, wanted: ir.DataType) -> ir.Value:
    return value if source == wanted else site.add("Cast", value, to=wanted.value, dtype=wanted)


def by_definition(site: Site) -> str | None:
    """The body of the function in ``onnx.defs`` that defines the operator, at the opset it is written for."""
    node = site.node
    schema: Any = onnx.defs.get_schema(node.op_type, site.opset + 1)  # its stub lacks what is asked for here
    proto = ir.to_proto(node)
    if schema.has_context_dependent_function:
        version = max(schema.context_dependent_function_opset_versions)
        types = []
        for value in node.inputs:
            if value is not None and value.type is None:
                return _NO_TYPE
            type_ = onnx.TypeProto()
            if value is not None and value.type is not None:
                ir.serde.serialize_type_into(type_, value.type)
                if value.shape is not None:
                    ir.serde.serialize_shape_into(type_, value.shape)
            types.append(type_.SerializeToString())
        data = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
    else:
        version = max(schema.function_opset_versions)
        data = schema.get_function_with_opset_version(version)
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for n in body.node for a in n.attribute):
        return "its definition holds graphs"
    site.opset = next((i.version for i in body.opset_import if i.domain == ""), version)
    _emit(site, body, schema.since_version)
    return None


def _emit(site: Site, body: onnx.FunctionProto, version: int) -> None:
    """The nodes of a function body with the node's inputs and attributes in place of the function's."""
    node = site.node
    defaults = onnx.defs.get_schema(node.op_type, version).attributes.values()
    attributes = {a.name: ir.serde.deserialize_attribute(a.default_value) for a in defaults if a.default_value.name}
    attributes |= dict(node.attributes)
    inner: dict[str, ir.Value | None] = {name: site.input(i) for i, name in enumerate(body.input)}
    for step in body.node:
        own = []
        for proto in step.attribute:
            if not proto.ref_attr_name:
                own.append(ir.serde.deserialize_attribute(proto))
            elif (found := attributes.get(proto.ref_attr_name)) is not None:
                own.append(ir.Attr(proto.name, found.type, found.value))
        inputs = [inner[name] if name else None for name in step.input]
        made = ir.Node(step.domain, step.op_type, inputs, own, num_outputs=len(step.output))
        for name, new in zip(step.output, made.outputs):
            if name:
                inner[name] = new
                new.name = site.fresh(name)
            else:
                new.name = ""
        infer_types(made, site.opset)
        site.made.append(made)
    site.replace(*(inner.get(name) for name, _ in zip(body.output, node.outputs)))
