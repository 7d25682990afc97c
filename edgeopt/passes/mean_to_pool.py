"""ReduceMean(x, axes = all spatial axes) = GlobalAveragePool(x), and without kept dims Flatten(GlobalAveragePool(x)).

AveragePool(x) with a window of the whole plane is GlobalAveragePool(x) too. Runtimes have an integer kernel for the
pool and none for the mean, and the pool that needs no window is the fastest of the three.

1. x is a float tensor [N, C, spatial...] of known rank 3 or more.
2. axes is a constant: 2, 3, ... up to the last, in any order.
3. ``noop_with_empty_axes`` does not matter: empty axes are refused.
4. It is no part of a normalization (the mean of a square, or one that is subtracted from x): runtimes know those
   chains by their ReduceMean.
5. AveragePool: the spatial dims of x are known and are its ``kernel_shape``; no padding, no dilation.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.passes._graph import (
    attr_int,
    attr_ints,
    attr_str,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_op,
    nodes_of,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def _why_not(node: ir.Node) -> str | None:
    value = node.inputs[0]
    shape = dims(value)
    axes = integers(input_at(node, 1))
    if shape is None or len(shape) < 3:
        return "its input is not known to have spatial axes"
    if axes is None:
        return "axes are not constant"
    if sorted(axis % len(shape) for axis in axes) != list(range(2, len(shape))):
        return "axes are not all the spatial ones"
    if value is None or value.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if _in_normalization(node, value):
        return "it is part of a normalization"
    return None


def _in_normalization(node: ir.Node, x: ir.Value) -> bool:
    square = x.producer()
    if square is not None and (is_op(square, "Pow") or (is_op(square, "Mul") and square.inputs[0] is square.inputs[1])):
        return True
    return any(is_op(user, "Sub") and user.inputs[0] is x for user, _ in node.outputs[0].uses())


def _covers(node: ir.Node) -> bool:
    """Whether this is an AveragePool whose one window is the whole plane."""
    if not is_op(node, "AveragePool") or len(node.inputs) != 1:
        return False
    value, kernel = node.inputs[0], attr_ints(node, "kernel_shape")
    shape = dims(value)
    return (
        kernel is not None
        and shape is not None
        and list(shape[2:]) == kernel
        and value is not None
        and value.dtype == ir.DataType.FLOAT
        and attr_str(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not any(attr_ints(node, "pads") or ())
        and all(d == 1 for d in attr_ints(node, "dilations") or ())
    )


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if _covers(node):
            node.op_type = "GlobalAveragePool"
            node.attributes.clear()
            count += 1
        if not is_op(node, "ReduceMean"):
            continue
        if why := _why_not(node):
            refusals.append(Refusal(node_key(node), why))
            continue
        keep, axes = attr_int(node, "keepdims", 1), input_at(node, 1)
        node.op_type = "GlobalAveragePool"
        node.attributes.clear()
        node.resize_inputs(1)
        drop_if_unused(axes)
        if not keep:
            _flatten(node)
        count += 1
    return Rewritten(count=count, refusals=tuple(refusals))


def _flatten(node: ir.Node) -> None:
    """Give the old output to a Flatten behind the pool; the pool gets a new one."""
    output, source = node.outputs[0], node.inputs[0]
    graph = node.graph
    assert graph is not None
    assert source is not None
    assert source.shape is not None
    pooled = ir.Value(
        name=f"{output.name}_pooled",
        type=output.type,
        shape=ir.Shape([source.shape[0], source.shape[1], *[1] * (len(source.shape) - 2)]),
    )
    flatten = ir.node("Flatten", [pooled], attributes={"axis": 1}, name=f"{node_key(node)}_flatten")
    flatten.outputs[0].name, flatten.outputs[0].type, flatten.outputs[0].shape = output.name, output.type, output.shape
    flatten.metadata_props[NODE_KEY] = str(flatten.name)
    output.replace_all_uses_with(flatten.outputs[0], replace_graph_outputs=True)
    replacement = ir.node("GlobalAveragePool", [source], name=node.name, outputs=[pooled])
    replacement.metadata_props.update(node.metadata_props)
    graph.insert_after(node, [replacement, flatten])
    graph.remove(node, safe=True)


MEAN_TO_POOL = Pass(
    name="mean-to-pool", rewrite=_rewrite, tolerance=1e-4, gain="a faster kernel"
)  # the order of a sum changes
