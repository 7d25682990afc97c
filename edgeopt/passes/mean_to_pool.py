"""ReduceMean(x, axes = all spatial axes) = GlobalAveragePool(x), and without kept dims Flatten(GlobalAveragePool(x)).

Runtimes have an integer kernel for the pool and none for the mean.

1. x is a float tensor [N, C, spatial...] of known rank 3 or more.
2. axes is a constant: 2, 3, ... up to the last, in any order.
3. ``noop_with_empty_axes`` does not matter: empty axes are refused.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.passes._graph import attr_int, dims, drop_if_unused, input_at, integers, is_op, nodes_of
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
    return None


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
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


MEAN_TO_POOL = Pass(name="mean-to-pool", rewrite=_rewrite, tolerance=1e-4)  # the order of a sum changes
