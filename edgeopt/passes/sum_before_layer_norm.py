"""LayerNormalization(Add(x, y)) = LayerNormalization(Sum(x, y)): the same sum, which onnxruntime does not join.

onnxruntime makes SkipLayerNormalization of the former when it loads the model. On x86 it has a vectorized kernel for
LayerNormalization and none for the joined operator, which takes several times as long as the two.

1. x and y are float32 tensors, no constants; the Add feeds the LayerNormalization alone and is no graph output.
2. The normalization runs over the last axis, 32 values or more: the vectorized kernel leaves short rows alone.
3. Off for other processors than x86 with AVX2, and for releases before the vectorized kernel.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from edgeopt.model import Model
from edgeopt.passes._chain import rewrite_each
from edgeopt.passes._graph import attr_int, dims, input_at, is_constant, is_op, why_not_private
from edgeopt.passes._pass import Pass
from edgeopt.target import Target

_MIN_WIDTH = 32
_RELEASE = (1, 32)


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    total = input_at(node, 0)
    add = total.producer() if total is not None and is_op(node, "LayerNormalization") else None
    if total is None or add is None or not is_op(add, "Add") or any(is_constant(v) for v in add.inputs):
        return False
    shape = dims(total)
    if shape is None or attr_int(node, "axis", -1) not in (-1, len(shape) - 1):
        return False
    if total.dtype != ir.DataType.FLOAT or shape[-1] is None or shape[-1] < _MIN_WIDTH:
        return "the kernel is not vectorized for it"
    if why_not_private(total):
        return False  # the runtime does not join it either
    add.op_type = "Sum"
    return True


def _refuses(model: Model, target: Target | None) -> str | None:
    if target is None:
        return "the processor is not known"
    if target.arch != "x86_64" or "avx2" not in target.isa:
        return "only x86 with AVX2 has a vectorized LayerNormalization"
    release = tuple(int(n) for n in re.findall(r"\d+", target.runtime.get("onnxruntime", ""))[:2])
    if release < _RELEASE:
        return f"onnxruntime has a vectorized LayerNormalization from {'.'.join(map(str, _RELEASE))} on"
    return None


SUM_BEFORE_LAYER_NORM = Pass(
    name="sum-before-layer-norm",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="two vectorized operators instead of one joined one that is not",
    refuses=_refuses,
)
