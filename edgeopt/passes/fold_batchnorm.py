"""Conv + BatchNormalization -> Conv.

bn(y) = gamma * (y - mean) / sqrt(var + epsilon) + beta = y * scale + shift  with
scale = gamma / sqrt(var + epsilon),  shift = beta - mean * scale
(what scale and shift do to W and b: ``_channels``; ConvTranspose with groups, Gemm, and MatMul on matrices likewise)

Constant per-channel Mul/Div/Add/Sub between the two are folded first, by the rules of ``fold_affine``.
Refused, besides what ``fold_into`` refuses:

1. No Conv, ConvTranspose, Gemm or MatMul stands before it.
2. Training mode, or the running mean or variance is an output in use.
3. A statistic is not constant, or not one value per output channel.
4. var + epsilon is not positive somewhere.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._channels import Affine, anchor_before, channels_and_rank, fold_into
from edgeopt.passes._graph import (
    attr_float,
    attr_int,
    constant,
    input_at,
    is_op,
    nodes_of,
    other_outputs_used,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes.fold_affine import affine_anchor, fold_affine_node


def _fold_between(model: ir.Model, node: ir.Node) -> int:
    """Fold the constant affine nodes between a Conv and ``node``, nearest to the Conv first; returns how many."""
    chain: list[ir.Node] = []
    value = input_at(node, 0)
    while value is not None and (step := value.producer()) is not None and is_op(step, "Mul", "Div", "Add", "Sub"):
        chain.append(step)
        value = next((v for v in step.inputs if constant(v) is None), None)
    count = 0
    for step in reversed(chain):
        anchor = affine_anchor(step)
        if anchor is None or fold_affine_node(model, step, anchor) is not None:
            break
        count += 1
    return count


def _fold(model: ir.Model, node: ir.Node) -> str | None:
    anchor = anchor_before(input_at(node, 0))
    if anchor is None:
        return "no Conv or Gemm before it"
    if attr_int(node, "training_mode", 0) or other_outputs_used(node):
        return "training mode"
    size = channels_and_rank(anchor)
    if isinstance(size, str):
        return size
    statistics = [constant(input_at(node, i)) for i in (1, 2, 3, 4)]
    if any(s is None for s in statistics):
        return "statistics are not constant"
    if any(s is not None and s.shape != (size[0],) for s in statistics):
        return "statistics are not per channel"
    gamma, beta, mean, var = (s.astype(np.float64) for s in statistics if s is not None)
    spread = var + attr_float(node, "epsilon", 1e-5)
    if not bool((spread > 0).all()):
        return "variance is not positive"
    scale = gamma / np.sqrt(spread)
    return fold_into(model, anchor, node, Affine(scale=scale, shift=beta - mean * scale))


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if not is_op(node, "BatchNormalization"):
            continue
        count += _fold_between(model, node)
        why = _fold(model, node)
        if why is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


FOLD_BATCHNORM = Pass(
    name="fold-batchnorm", rewrite=_rewrite, tolerance=1e-4, gain="no operator and no buffer of its own"
)
