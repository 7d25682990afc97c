"""Model-local functions become the nodes they stand for: y = f(x) -> the body of f with x in place of its input.

1. A body that returns one of its own inputs, or one value twice, gets an Identity there first: an input of the
   graph is never renamed.
2. The nodes of a call named ``key`` get the keys ``key/OpType``, ``key/OpType#2``...
3. Refused when functions call each other in a circle, when a function is written for another opset than the model,
   or when a call passes a graph as attribute.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PreconditionError
from onnx_ir.passes.common import InlinePass

from edgeopt.model import NODE_KEY, Model, node_key
from edgeopt.passes._graph import nodes_of
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.target import Target


def _refuses(model: Model, target: Target | None) -> str | None:
    return None if model.ir.functions else "the model has no local functions"


def _rewrite(model: ir.Model) -> Rewritten:
    calls = [node for node in nodes_of(model) if node.op_identifier() in model.functions]
    if not calls:
        return Rewritten(count=0)
    keys = {node_key(node) for node in calls}
    for function in model.functions.values():
        _guard_outputs(function)
    try:
        InlinePass()(model)
    except (PreconditionError, ValueError, RuntimeError) as error:
        cause = error.__cause__ or error
        return Rewritten(count=0, refusals=(Refusal("model", f"functions cannot be inlined: {cause}"),))
    taken = {node_key(node) for node in nodes_of(model)}
    for node in nodes_of(model):
        if (key := node.metadata_props.get(NODE_KEY)) in keys:
            base = fresh = f"{key}/{node.op_type}"
            n = 1
            while fresh in taken:
                n += 1
                fresh = f"{base}#{n}"
            taken.add(fresh)
            node.metadata_props[NODE_KEY] = node.name = fresh
    return Rewritten(count=len(calls))


def _guard_outputs(function: ir.Function) -> None:
    seen = set(function.inputs)
    for i, out in enumerate(function.outputs):
        if out in seen:
            copy = ir.node("Identity", inputs=[out])
            copy.outputs[0].name = f"{out.name}_out{i}"
            copy.outputs[0].type, copy.outputs[0].shape = out.type, out.shape
            function.append(copy)
            function.outputs[i] = copy.outputs[0]
        seen.add(out)


INLINE_FUNCTIONS = Pass(
    name="inline-functions",
    rewrite=_rewrite,
    tolerance=1e-6,
    refuses=_refuses,
    gain="operators that runtimes have kernels for",
)
