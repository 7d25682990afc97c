"""Static shape inference: values carry the shapes that follow from the inputs.

No arithmetic: shapes and types are annotations. Inference runs on a view without weights (see ``_proto``).

1. Only what follows from the graph inputs counts. What the file recorded for a value that an operator of the default
   domain makes is dropped: exporters record the batch they traced, or claim a symbolic one that the graph fixes, and
   a rewrite that believes them changes the results. Made-up symbols (``unk__3``) count as unknown.
2. What a custom operator makes keeps its recorded shape; nothing else is known about it.
3. A graph input is never touched. A graph output only gains: an unknown or symbolic dim may become a number. What was
   derived for it is kept beside the declared shape, and is what other passes read (``_graph.dims``).
4. When inference fails, recorded shapes are dropped all the same, with the reason.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from edgeopt.passes._graph import DERIVED, first_line
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._proto import lighten

Dim = int | str | None


def refresh_shapes(model: ir.Model) -> tuple[int, str | None]:
    """Infer shapes and types in place.

    Returns:
        How many values changed their shape or type, and why inference failed, if it did.
    """
    light = lighten(model, trusted_shapes=False)
    why: str | None = None
    known: list[dict[str | None, ir.Value]] = [{} for _ in model.graphs()]
    try:
        inferred = ir.from_proto(onnx.shape_inference.infer_shapes(light.proto, data_prop=True))
        known = [{out.name: out for node in graph for out in node.outputs} for graph in inferred.graphs()]
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        why = f"shape inference failed: {first_line(error)}"
    changed = 0
    for graph, by_name in zip(list(model.graphs()), known, strict=True):
        for node in graph:
            for out in node.outputs:
                before = (out.shape, out.type)
                _update(out, by_name.get(out.name), is_custom=node.domain != "")
                changed += (out.shape, out.type) != before
    return changed, why


def _update(value: ir.Value, inferred: ir.Value | None, *, is_custom: bool) -> None:
    if inferred is not None and inferred.type is not None:
        value.type = inferred.type
    if is_custom:
        derived = value.shape
    elif inferred is None or inferred.shape is None:
        derived = None
    else:
        derived = ir.Shape([_dim(d) for d in inferred.shape])
    if not value.is_graph_output():
        value.shape = derived
        return
    value.meta[DERIVED] = derived
    if value.shape is None:
        value.shape = derived
    elif derived is not None and len(derived) == len(value.shape):
        value.shape = ir.Shape([_refined(old, new) for old, new in zip(value.shape, derived, strict=True)])


def _dim(dim: int | ir.SymbolicDim) -> Dim:
    if isinstance(dim, int):
        return dim
    return None if dim.value is None or dim.value.startswith("unk__") else dim.value


def _refined(declared: int | ir.SymbolicDim, derived: int | ir.SymbolicDim) -> Dim:
    if isinstance(declared, int) or (declared.value is not None and not isinstance(derived, int)):
        return _dim(declared)
    return _dim(derived)


def _rewrite(model: ir.Model) -> Rewritten:
    changed, why = refresh_shapes(model)
    return Rewritten(count=changed, refusals=() if why is None else (Refusal("model", why),))


INFER_SHAPES = Pass(
    name="infer-shapes", rewrite=_rewrite, tolerance=1e-6, gain="shapes that the memory plan and other rewrites need"
)
