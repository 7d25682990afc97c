"""Shape arithmetic at run time -> constants, wherever what is known about the dims says that the result is the same.

Exports with dynamic axes read a shape, pick dims, multiply, concatenate, and reshape to the result. With ``Dims`` as
terms over the input dims (``_symbols``), for x: [d0, d1, ...]:

1. Reshape(x, (t0, t1, ...)) = Reshape(x, c) with c[i] = t[i] for a number, 0 ("copy") where t[i] = d[i], and -1 for
   one remaining entry; a remaining pair cannot be written and stays. A number 0 in t keeps the Reshape as it is. With
   -1, a tensor without elements is refused by the runtime where the shape was computed before.
2. Expand(x, t) = x when x broadcast to t has the dims of x.
3. g(Expand(x, t), y) = g(x, y) for elementwise g when the operands broadcast to the same dims without the Expand; so
   with a Tile that repeats axes of size 1 only, and with ConstantOfShape, where the number itself stands for x.
4. Slice(x, 0, end) = x when the end is the dim itself.
5. Integers that shape arithmetic computes to numbers are constants, which ``fold_constants`` goes on from.

A graph output keeps its name. What nobody reads any more is removed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    drop_if_unused,
    input_at,
    integers,
    is_constant,
    is_op,
    new_constant,
    nodes_of,
    replace_node,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._symbols import BROADCAST, Dims, Symbols, broadcast
from edgeopt.passes.infer_shapes import refresh_shapes
from edgeopt.passes.simplify_reshapes import target


def _reshape(model: ir.Model, node: ir.Node, known: Symbols) -> bool | str:
    source, shape = input_at(node, 0), input_at(node, 1)
    before, numbers = known.dims(source), known.numbers(shape)
    if shape is None or is_constant(shape) or before is None or numbers is None or node.graph is None:
        return False
    wanted = known.dims(node.outputs[0])
    constant = None if wanted is None or len(wanted) != len(numbers.items) else target(before, wanted)
    if constant is None:
        return "two dims of the target do not follow from the input"
    value = new_constant(model, node.graph, f"{node.outputs[0].name}.shape", np.array(constant, np.int64))
    node.replace_input_with(1, value)
    node.attributes.pop("allowzero", None)
    return True


def _expand(model: ir.Model, node: ir.Node, known: Symbols) -> bool | str:
    """Rules 2 and 3."""
    out = node.outputs[0]
    after = known.dims(out)
    if after is None or node.graph is None:
        return False
    if is_op(node, "ConstantOfShape"):
        return not out.is_graph_output() and _read_directly(node, None, (), after, model, known)
    source = input_at(node, 0)
    before = known.dims(source)
    if source is None or before is None:
        return False
    if is_op(node, "Tile"):
        repeats = known.numbers(input_at(node, 1))
        if repeats is None or any(r != 1 and d != 1 for r, d in zip(repeats.items, before, strict=False)):
            return False
    if before == after:
        return replace_node(node, source) or True
    return not out.is_graph_output() and _read_directly(node, source, before, after, model, known)


def _read_directly(
    node: ir.Node, source: ir.Value | None, before: Dims, after: Dims, model: ir.Model, known: Symbols
) -> bool:
    """Let elementwise readers of ``node`` read ``source``, or a number, where rule 3 allows it."""
    out, changed = node.outputs[0], 0
    for user, index in list(out.uses()):
        shapes = [known.dims(v) for v in user.inputs]
        if user.domain != "" or user.op_type not in BROADCAST - {"PRelu"} or any(s is None for s in shapes):
            continue
        rest = [s for i, s in enumerate(shapes) if i != index and s is not None]
        if not rest or not _same_without(known, rest, before, after):
            continue
        source = _filler(model, node) if source is None else source
        user.replace_input_with(index, source)
        changed += 1
    if changed and not out.uses():
        _remove(node)
    return changed > 0


def _filler(model: ir.Model, node: ir.Node) -> ir.Value:
    """The number that a ConstantOfShape repeats."""
    value = node.attributes.get("value")
    array = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    assert node.graph is not None
    return new_constant(model, node.graph, f"{node.outputs[0].name}.number", array.reshape(()))


def _same_without(known: Symbols, rest: list[Dims], before: Dims, after: Dims) -> bool:
    """Whether the other operands alone already have every dim that the Expand widens."""
    others = broadcast(known, *rest)
    if len(others) < len(after):
        return False
    padded = (1,) * (len(after) - len(before)) + before
    tail = others[len(others) - len(after) :]
    return all(a == b or o == a for a, b, o in zip(after, padded, tail, strict=True))


def _slice(node: ir.Node, known: Symbols) -> bool | str:
    source, steps = input_at(node, 0), input_at(node, 4)
    before = known.dims(source)
    if source is None or before is None or before != known.dims(node.outputs[0]):
        return False
    if steps is not None and any(step != 1 for step in integers(steps) or [0]):
        return False
    return replace_node(node, source) or True


def _number(model: ir.Model, node: ir.Node, known: Symbols) -> bool:
    """Rule 5."""
    out, graph = node.outputs[0], node.graph
    numbers = known.numbers(out)
    if numbers is None or graph is None or out.is_graph_output() or not out.uses():
        return False
    if out.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or not all(isinstance(i, int) for i in numbers.items):
        return False
    array = np.array(numbers.items, out.dtype.numpy())
    name = out.name or "shape"
    out.name = None
    value = new_constant(model, graph, name, array.reshape(()) if numbers.scalar else array)
    out.replace_all_uses_with(value)
    _remove(node)
    return True


def _remove(node: ir.Node) -> None:
    inputs, graph = node.inputs, node.graph
    assert graph is not None
    graph.remove(node, safe=True)
    drop_if_unused(*inputs)


def remove_dead(model: ir.Model) -> int:
    """Remove nodes that nobody reads, last first, and constants; returns how many nodes."""
    count = 0
    for node in reversed(nodes_of(model)):
        if node.graph is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs):
            _remove(node)
            count += 1
    for graph in model.graphs():
        drop_if_unused(*list(graph.initializers.values()))
    return count


def _sweep(model: ir.Model) -> tuple[int, list[Refusal]]:
    known, count, refusals = Symbols(model), 0, []
    for node in nodes_of(model):
        if node.domain != "" or len(node.outputs) != 1:
            continue
        outcome: bool | str = _number(model, node, known)
        if not outcome and is_op(node, "Reshape"):
            outcome = _reshape(model, node, known)
        elif not outcome and is_op(node, "Expand", "Tile", "ConstantOfShape"):
            outcome = _expand(model, node, known)
        elif not outcome and is_op(node, "Slice"):
            outcome = _slice(node, known)
        if isinstance(outcome, str):
            refusals.append(Refusal(node_key(node), outcome))
        else:
            count += outcome
    return count, refusals


def resolve(model: ir.Model) -> Rewritten:
    """Apply all rules in place until nothing changes."""
    total = 0
    while True:
        count, refusals = _sweep(model)
        if count == 0:
            return Rewritten(count=total, refusals=tuple(refusals))
        total += count
        remove_dead(model)
        _, why = refresh_shapes(model)
        if why is not None:
            return Rewritten(count=total, refusals=(*refusals, Refusal("model", why)))


RESOLVE_SHAPES = Pass(
    name="resolve-shapes",
    rewrite=resolve,
    tolerance=1e-6,
    gain="shape arithmetic done once, here, and patterns in sight",
)
