"""Pad(zeros) + Conv -> Conv with larger pads: conv(pad(x, p), pads=q) = conv(x, pads=p + q).

A Conv pads with zeros itself. AveragePool with count_include_pad = 1 does so too: p joins its pads.

1. Mode constant, value absent or 0; pads (and axes) constant, not negative, on spatial axes only.
2. Conv: the Pad feeds its input 0; auto_pad NOTSET or VALID (SAME_* would pad by another rule).
3. AveragePool: as for Conv, and its own pads are all 0 or already counted, ceil_mode 0, and every pad is smaller
   than the kernel, as runtimes demand. MaxPool pads with minus infinity: never.
4. A Pad with several consumers is folded into each that can take it, and goes when no user is left and it is no
   graph output. Every Conv that took it records its key.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_int,
    attr_ints,
    attr_str,
    constant,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_op,
    nodes_of,
    record_absorbed,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def _rank(node: ir.Node) -> int | None:
    """Rank of what the Pad makes, from its shape or from the weight of a Conv that reads it."""
    values = [input_at(node, 0), node.outputs[0]]
    values += [input_at(user, 1) for user, index in node.outputs[0].uses() if index == 0 and is_op(user, "Conv")]
    return next((len(shape) for v in values if (shape := dims(v)) is not None), None)


def _spatial_pads(node: ir.Node) -> list[int] | str:
    """Pads as Conv wants them (all begins, then all ends, of the spatial axes), or why not."""
    if attr_str(node, "mode", "constant") != "constant":
        return "the pad is not zeros"
    if (fill := input_at(node, 2)) is not None:
        value = constant(fill)
        if value is None or bool(value.any()):
            return "the pad is not zeros"
    pads = integers(input_at(node, 1))
    axes = integers(input_at(node, 3)) if input_at(node, 3) is not None else list(range(len(pads or ()) // 2))
    if pads is None or axes is None:
        return "pads are not constant"
    rank = _rank(node)
    if rank is None:
        return "the rank is not known"
    half = len(pads) // 2
    if len(pads) != 2 * len(axes) or any(not -rank <= a < rank for a in axes):
        return "pads do not fit the rank"
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads[:half], pads[half:], strict=True):
        begins[axis], ends[axis] = begin, end
    if min(pads, default=0) < 0:
        return "a pad is negative"
    if any(begins[:2]) or any(ends[:2]):
        return "batch or channels are padded"
    return begins[2:] + ends[2:]


def _join(user: ir.Node, index: int, pads: list[int]) -> list[int] | str:
    """The pads that ``user`` has afterwards, or why it cannot take them."""
    pool = is_op(user, "AveragePool")
    if not (pool or (is_op(user, "Conv") and index == 0)):
        return f"{user.op_type} cannot take a pad"
    auto = attr_str(user, "auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID"):
        return "the consumer pads by itself"
    own = attr_ints(user, "pads") if auto == "NOTSET" else None
    own = own or [0] * len(pads)
    if len(own) != len(pads):
        return "pads do not fit the rank"
    joined = [p + q for p, q in zip(pads, own, strict=True)]
    if pool:
        kernel = attr_ints(user, "kernel_shape") or []
        if attr_int(user, "ceil_mode", 0) or (any(own) and not attr_int(user, "count_include_pad", 0)):
            return "the pool does not count its pads"
        if any(p >= k for p, k in zip(joined, kernel * 2, strict=True)):
            return "the pad is as large as the pool"
    return joined


def _fold(node: ir.Node) -> tuple[int, list[str]]:
    pads = _spatial_pads(node)
    users = node.outputs[0].uses()
    if not any(is_op(user, "Conv", "AveragePool", "MaxPool") for user, _ in users):
        return 0, []
    if isinstance(pads, str):
        return 0, [pads]
    count, why = 0, []
    for user, index in users:
        joined = _join(user, index, pads)
        if isinstance(joined, str):
            why.append(joined)
            continue
        user.attributes["pads"] = ir.AttrInt64s("pads", joined)
        user.attributes.pop("auto_pad", None)
        if is_op(user, "AveragePool"):
            user.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
        user.replace_input_with(index, node.inputs[0])
        record_absorbed(user, node)
        count += 1
    out, graph, inputs = node.outputs[0], node.graph, node.inputs
    if count and graph is not None and not out.uses() and not out.is_graph_output():
        graph.remove(node, safe=True)
        drop_if_unused(*inputs)
    return count, why


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    # Last Pad first: of two in a row the second is folded, and then the first stands before the Conv.
    for node in reversed(nodes_of(model)):
        if not is_op(node, "Pad") or node.graph is None:
            continue
        folded, why = _fold(node)
        count += folded
        refusals += [Refusal(node_key(node), reason) for reason in why]
    return Rewritten(count=count, refusals=tuple(refusals))


FOLD_PAD = Pass(name="fold-pad", rewrite=_rewrite, tolerance=1e-5, gain="no padded copy of the tensor")
