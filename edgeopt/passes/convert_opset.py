"""The model is brought to the internal opset, the one that every later pass and the quantizer are written for.

No arithmetic of its own: operators whose definition is the same at both opsets are stamped, all others go through
the converter of ``onnx``, on a view without weights (see ``_proto``).

1. When no operator changed its definition between the two opsets, only the number changes.
2. Otherwise the converter rewrites the graph; its result must pass the ONNX checker at the internal opset.
3. Names and keys of nodes, names of values, inputs and outputs stay. Nodes that the converter adds get new keys.
4. A model newer than the internal opset is taken down by ``lower_opset``, or left as it is with the reasons.
5. What the converter is known to get wrong in silence is put right or refused (``_converter_gaps``).
6. Refused: no default-domain opset, local functions that are left, an operator that the converter or the checker
   does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.version_converter
import onnx_ir as ir

from edgeopt.model import INTERNAL_OPSET, Model
from edgeopt.passes._converter_gaps import prepare
from edgeopt.passes._graph import first_line, is_op, nodes_of
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._proto import lighten, restore_heavy
from edgeopt.passes.lift_constants import lift
from edgeopt.passes.lower_opset import lower
from edgeopt.target import Target

INTERNAL_IR_VERSION = 9
"""IR version that belongs to opset 20; a newer one is kept."""


def _opset(model: ir.Model) -> int | None:
    imports = model.graph.opset_imports
    return imports.get("") or imports.get("ai.onnx")


def _refuses(model: Model, target: Target | None) -> str | None:
    opset = _opset(model.ir)
    if opset is None:
        return "the model imports no default-domain opset"
    if opset == INTERNAL_OPSET:
        return f"the model is at opset {INTERNAL_OPSET} already"
    return "local functions are left" if model.ir.functions else None


def _changed_ops(model: ir.Model, source: int) -> list[str]:
    """Operators whose definition differs between the opsets, or that either does not have."""
    ops = {node.op_type for node in nodes_of(model) if node.domain == ""}
    return sorted(op for op in ops if _since(op, source) != _since(op, INTERNAL_OPSET) or _since(op, source) is None)


def _since(op: str, opset: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(op, opset).since_version)
    except onnx.defs.SchemaError:
        return None


def _stamp(model: ir.Model) -> None:
    model.graph.opset_imports.pop("ai.onnx", None)
    model.graph.opset_imports[""] = INTERNAL_OPSET
    model.ir_version = max(model.ir_version, INTERNAL_IR_VERSION)
    for node in nodes_of(model):
        node.version = None


def _rewrite(model: ir.Model) -> Rewritten:
    source = _opset(model)
    assert source is not None
    if not (changed := _changed_ops(model, source)):
        _stamp(model)
        return Rewritten(count=1)
    if source > INTERNAL_OPSET:
        return _lowered(model, source)
    later = prepare(model, source)
    if isinstance(later, str):
        return Rewritten(count=0, refusals=(Refusal("model", f"opset {source} is kept: {later}"),))
    light = lighten(model)
    light.proto.ir_version = max(light.proto.ir_version, INTERNAL_IR_VERSION)
    try:
        converted = onnx.version_converter.convert_version(light.proto, INTERNAL_OPSET)
        converted.ir_version = light.proto.ir_version
        _check(converted)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        last = first_line(error).rsplit("failed: ", 1)[-1]
        why = f"opset {source} cannot be converted to {INTERNAL_OPSET} (changed: {', '.join(changed[:6])}): {last}"
        return Rewritten(count=0, refusals=(Refusal("model", why),))
    result = ir.from_proto(converted)
    restore_heavy(result, light.heavy)
    # The converter makes a Resize without a name of an Upsample, in the same order, under another output name.
    upsamples = iter([i for i, node in enumerate(light.nodes) if is_op(node, "Upsample")])
    for node in nodes_of(result):
        if node.name and node.name.isdecimal():
            _carry_over(light.nodes[int(node.name)], node, later.get(int(node.name), {}))
        elif is_op(node, "Resize") and (index := next(upsamples, None)) is not None:
            _carry_over(light.nodes[index], node, later[index])
            node.outputs[0].name = light.nodes[index].outputs[0].name
        else:
            node.name = None
    result.graph.name, result.graph.doc_string = model.graph.name, model.graph.doc_string
    result.graph.metadata_props.update(model.graph.metadata_props)
    model.graph = result.graph
    lift(model)
    _stamp(model)
    return Rewritten(count=len(changed))


def _lowered(model: ir.Model, source: int) -> Rewritten:
    done = lower(model, INTERNAL_OPSET)
    if done.count:
        _stamp(model)
        return done
    start = f"opset {source} cannot be converted to {INTERNAL_OPSET}: "
    return Rewritten(count=0, refusals=tuple(Refusal(r.node, start + r.why) for r in done.refusals))


def _carry_over(old: ir.Node, node: ir.Node, attributes: Mapping[str, str]) -> None:
    """Give a converted node what the view left out, and ``attributes`` on top."""
    node.name, node.doc_string = old.name, old.doc_string
    node.metadata_props.update(old.metadata_props)
    for name, value in attributes.items():
        node.attributes.add(ir.AttrString(name, value))


def _check(converted: onnx.ModelProto) -> None:
    """The checker asks for shapes of outputs that runtimes do not need."""
    checked = onnx.ModelProto()
    checked.CopyFrom(converted)
    for value in checked.graph.output:
        if value.type.tensor_type.elem_type and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(checked)


CONVERT_OPSET = Pass(
    name="convert-opset",
    rewrite=_rewrite,
    tolerance=1e-5,
    refuses=_refuses,
    gain="one set of operators for everything that follows",
)
