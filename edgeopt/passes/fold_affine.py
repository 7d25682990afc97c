"""Conv + Mul/Div/Add/Sub by a constant per output channel -> Conv.

y = conv(x, W) + b, elementwise:   y * k -> scale k        y / k -> scale 1/k
                                   y + k -> shift k        y - k -> shift -k        k - y -> scale -1, shift k
(what scale and shift do to W and b: ``_channels``; ConvTranspose, with groups, and Gemm likewise)

Refused, besides what ``fold_into`` refuses:

1. The constant is not one value per output channel. Right-aligned to the rank of the output, all its axes but axis 1
   must be 1: [1,C,1,1], [C,1,1] and scalars fold; [C,H,W], [W], [1,1,H,1] and [2,C,1,1] do not, also when C == W.
2. A constant is divided by y.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._channels import Affine, Vector, anchor_before, channel_vector, channels_and_rank, fold_into
from edgeopt.passes._graph import constant, is_op, nodes_of
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def affine_anchor(node: ir.Node) -> ir.Node | None:
    """The Conv, ConvTranspose or Gemm whose output this node combines with a constant; None when it is no candidate."""
    if not is_op(node, "Mul", "Div", "Add", "Sub") or len(node.inputs) != 2 or node.graph is None:
        return None
    for index in (0, 1):
        anchor = anchor_before(node.inputs[index])
        if anchor is not None and not is_op(anchor, "MatMul") and constant(node.inputs[1 - index]) is not None:
            return anchor
    return None


def fold_affine_node(model: ir.Model, node: ir.Node, anchor: ir.Node) -> str | None:
    """Fold one candidate in place; returns why it was refused, or None."""
    value = anchor.outputs[0]
    first = node.inputs[0] is value
    array = constant(node.inputs[1 if first else 0])
    size = channels_and_rank(anchor)
    if isinstance(size, str):
        return size
    assert array is not None
    vector = channel_vector(array, *size)
    if vector is None:
        return "constant is not per channel"
    affine = _affine(node.op_type, vector, first)
    return affine if isinstance(affine, str) else fold_into(model, anchor, node, affine)


def _affine(op: str, k: Vector, first: bool) -> Affine | str:
    zero = np.zeros_like(k)
    if op == "Mul":
        return Affine(scale=k, shift=zero)
    if op == "Add":
        return Affine(scale=None, shift=k)
    if op == "Sub":
        return Affine(scale=None, shift=-k) if first else Affine(scale=np.full_like(k, -1.0), shift=k)
    if not first:
        return "a constant is divided by it"
    with np.errstate(divide="ignore"):
        return Affine(scale=1.0 / k, shift=zero)


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if (anchor := affine_anchor(node)) is None:
            continue
        why = fold_affine_node(model, node, anchor)
        if why is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


FOLD_AFFINE = Pass(name="fold-affine", rewrite=_rewrite, tolerance=1e-4, gain="no operator and no buffer of its own")
