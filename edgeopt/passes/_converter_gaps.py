"""Operators whose meaning ``onnx.version_converter`` loses without a word, put right around it.

Resize-10, Upsample   sample at x / scale, and at floor (enlarged) or ceil (reduced) of it for ``nearest``; from opset
                      11 on that has to be said: ``asymmetric``, ``floor`` or ``ceil``
Hardmax < 13          normalizes over all axes from ``axis`` (default 1) on, from opset 13 over one axis (default -1)
Pad < 11              an attribute ``value`` that ``reflect`` and ``edge`` ignore stops the converter
Scan-8                has a batch axis and scans axis 1; later ones scan axis 0
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from edgeopt.passes._graph import attr_int, attr_str, constant, dims, input_at, is_op, nodes_of


def prepare(model: ir.Model, opset: int) -> Mapping[int, Mapping[str, str]] | str:
    """Edit the nodes that can be said otherwise at ``opset`` already.

    Returns:
        String attributes to set after the conversion, by position among all nodes; or why the model must not be
        converted.
    """
    later: dict[int, Mapping[str, str]] = {}
    for index, node in enumerate(nodes_of(model)):
        if is_op(node, "Scan") and opset < 9:
            return "Scan of opset 8 has a batch axis"
        if is_op(node, "Pad") and opset < 11 and attr_str(node, "mode", "constant") != "constant":
            node.attributes.pop("value", None)
        if is_op(node, "Hardmax") and opset < 13:
            axis, rank = attr_int(node, "axis", 1), len(dims(input_at(node, 0)) or ())
            if rank == 0 or axis % rank != rank - 1:
                return "Hardmax spans several axes, or its rank is not known"
            node.attributes["axis"] = ir.AttrInt64("axis", axis)
        if is_op(node, "Upsample", "Resize") and opset < 11:
            found = _sampling(node)
            if isinstance(found, str):
                return found
            later[index] = found
    return later


def _sampling(node: ir.Node) -> Mapping[str, str] | str:
    """How an Upsample or a Resize of opset 10 samples, in words of opset 11."""
    if attr_str(node, "mode", "nearest") != "nearest":
        return {"coordinate_transformation_mode": "asymmetric"}
    scales = constant(input_at(node, 1))
    if is_op(node, "Upsample") or (scales is not None and bool((scales >= 1).all())):
        nearest = "floor"
    elif scales is not None and bool((scales <= 1).all()):
        nearest = "ceil"
    else:
        return "a Resize both enlarges and reduces, or its scales are not constant"
    return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
