"""AveragePool as opset 18 has it: the model goes from a newer opset to 18 where it has pools with windows.

Opset 19 gave the operator dilations. onnxruntime computes that version by a loop over single values, two to five times
as slowly as the older one (1.32), except where the pool joins the blocked layout of x86.

1. There is an AveragePool outside of Q/DQ: a quantized one is another kernel. GlobalAveragePool did not change.
2. No operator has to be written out in several older ones: that would cost more than it gains. Gelu of opset 20 becomes
   the operator of com.microsoft that the runtime computes the same way.
3. All that ``lower_opset`` refuses, as dilations.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import Model
from edgeopt.passes._graph import input_at, is_op, nodes_of
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes.gelu_to_contrib import GELU_TO_CONTRIB
from edgeopt.passes.lower_opset import TOLERANCE, lower, opset_of
from edgeopt.target import Target

LAST = 18
"""Opset whose AveragePool has the fast kernel."""


def _refuses(model: Model, target: Target | None) -> str | None:
    opset = opset_of(model.ir)
    if opset is None or opset <= LAST:
        return "the model imports no default-domain opset" if opset is None else f"the model is at opset {opset}"
    return None if any(_slow(node) for node in model.nodes()) else "no AveragePool with a window"


def _slow(node: ir.Node) -> bool:
    source = input_at(node, 0)
    return is_op(node, "AveragePool") and not is_op(
        source.producer() if source is not None else None, "DequantizeLinear"
    )


def _rewrite(model: ir.Model) -> Rewritten:
    before = len(nodes_of(model))
    GELU_TO_CONTRIB.rewrite(model)
    done = lower(model, LAST)
    if done.count and len(nodes_of(model)) > before:
        return Rewritten(count=0, refusals=(Refusal("model", f"opset {LAST} says other operators in more words"),))
    return done


OLDER_AVERAGE_POOL = Pass(
    name="older-average-pool",
    rewrite=_rewrite,
    tolerance=TOLERANCE,
    gain="a vectorized average where opset 19 has a loop",
    refuses=_refuses,
)
