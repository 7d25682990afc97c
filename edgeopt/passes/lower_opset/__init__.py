"""The model is taken down to an opset that the device's runtime reads: converted, never just stamped.

Each operator goes down one version at a time, from the one it has at the model's opset to the one it has at the
wanted opset. ``_table`` says how: the older version means the same for the types in use (``_fit`` checks them), an
attribute is taken back, or the operator is written out in older ones (``_spelled_out``), for example

    Gelu(x) = x/2 (1 + erf(x / sqrt(2)))        LayerNorm(x) = (x - m) / sqrt(v + e) * scale + bias

1. Nodes of subgraphs and of local functions are converted too. Operators of other domains stay as they are.
2. All or nothing: where one node cannot be converted, the model stays as it is, with one reason per node.
3. The result passes the ONNX checker at the wanted opset.
4. Refused: an operator or version that no rule is verified for, values of types that the older version does not take
   (16-bit and 4-bit integers in QuantizeLinear before 21, bfloat16 and 8-bit floats in most), what only runs decide
   (axes or sizes that are computed), and features that the older version has no words for.
"""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.passes._graph import first_line, is_op, nodes_of, value_names
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._proto import lighten
from edgeopt.passes.infer_shapes import refresh_shapes
from edgeopt.passes.lift_constants import lift
from edgeopt.passes.lower_opset._fit import misfit
from edgeopt.passes.lower_opset._site import Site, since
from edgeopt.passes.lower_opset._table import RULES, WIDER
from edgeopt.target import Target

OLDEST = 13
"""The lowest opset that rules are written for."""

TOLERANCE = 1e-5

_LEVELS = (22, 19, 17)
"""Opsets that the model passes through on its way."""


def lower_opset(opset: int) -> Pass:
    """The pass that takes a model down to ``opset``, 13 or more; a model that is there already is left alone."""
    assert opset >= OLDEST

    def refuses(model: Model, target: Target | None) -> str | None:
        found = opset_of(model.ir)
        if found is None:
            return "the model imports no default-domain opset"
        return f"the model is at opset {found}" if found <= opset else None

    return Pass(
        name=f"lower-opset-{opset}",
        rewrite=lambda model: lower(model, opset),
        tolerance=TOLERANCE,
        gain=f"runs where the runtime reads opset {opset} at most",
        refuses=refuses,
    )


def opset_of(model: ir.Model) -> int | None:
    """The opset of the default domain, None when the model imports none."""
    imports = model.graph.opset_imports
    return imports.get("") or imports.get("ai.onnx")


def lower(model: ir.Model, opset: int) -> Rewritten:
    """Convert in place; the count is that of the nodes that changed and one for the number itself.

    After a refusal the model is half converted and not to be used: ``apply`` works on a clone.
    """
    refresh_shapes(model)
    written = _constants(model)
    source = opset_of(model)
    assert source is not None
    levels = [*(level for level in _LEVELS if opset < level < source), opset]
    work = _Work(names=value_names(model))
    for level in levels:
        before = len(work.changed)
        _convert(model, level, work)
        if work.refusals:
            break
        if level != opset and len(work.changed) > before:
            refresh_shapes(model)  # later rules ask for the shapes of what the earlier ones wrote
    if _constants(model) > written:
        lift(model)
    refusals = work.refusals
    if not refusals and (reason := _invalid(model)) is not None:
        refusals = [Refusal("model", f"the result is not valid at opset {opset}: {reason}")]
    return Rewritten(count=0 if refusals else len(work.changed) + 1, refusals=tuple(refusals))


@dataclasses.dataclass(kw_only=True)
class _Work:
    """What a conversion carries along: value names in use, nodes it made, nodes of the model it changed, refusals."""

    names: set[str]
    made: set[ir.Node] = dataclasses.field(default_factory=set)
    changed: set[ir.Node] = dataclasses.field(default_factory=set)
    refusals: list[Refusal] = dataclasses.field(default_factory=list)


def _convert(model: ir.Model, opset: int, work: _Work) -> None:
    source = opset_of(model)
    assert source is not None
    _convert_nodes(nodes_of(model), source, opset, work)
    for function in model.functions.values():
        own = function.opset_imports.get("", source)
        if own > opset:
            _convert_nodes(list(function.all_nodes()), own, opset, work)
            function.opset_imports[""] = opset
    model.graph.opset_imports.pop("ai.onnx", None)
    model.graph.opset_imports[""] = opset


def _convert_nodes(nodes: list[ir.Node], source: int, opset: int, work: _Work) -> None:
    waiting = [(node, source) for node in reversed(nodes) if node.domain == ""]
    while waiting:
        node, at = waiting.pop()
        node.version = None
        key = node_key(node)
        found = _down(node, at, opset, work.names)
        if isinstance(found, str):
            work.refusals.append(Refusal(key, found))
        elif found is not None:
            if node not in work.made:
                work.changed.add(node)
            work.made.update(made for made, _ in found)
            waiting.extend(found)


def _down(node: ir.Node, at: int, opset: int, names: set[str]) -> list[tuple[ir.Node, int]] | str | None:
    """Take one node down.

    Returns:
        None when nothing changed; why it cannot be done; or the nodes that replace it, each with its opset.
    """
    op, version = node.op_type, since(node.op_type, at)
    wanted, graph = since(op, opset), node.graph
    if version is None or version == wanted:
        return None
    assert graph is not None
    while version is not None and version != wanted:
        if (op, version) not in WIDER:
            rule = RULES.get((op, version))
            if rule is None:
                return f"{op}-{version} has no counterpart in opset {opset}"
            site = Site(node=node, graph=graph, opset=version - 1, names=names)
            if (reason := rule(site)) is not None:
                return f"{op}-{version} cannot be said in opset {opset}: {reason}"
            if site.made and node.graph is not graph:
                return [(made, site.opset) for made in reversed(site.made)]
        version = since(op, version - 1)
    if version is None:
        return f"{op} is not known to opset {opset}"
    reason = misfit(node, opset)
    return f"{op} cannot be said in opset {opset}: {reason}" if reason else []


def _constants(model: ir.Model) -> int:
    return sum(is_op(node, "Constant") for node in nodes_of(model))


def _invalid(model: ir.Model) -> str | None:
    """What the ONNX checker says of the model, None when it is content."""
    proto = lighten(model).proto
    for value in proto.graph.output:  # the checker asks for shapes that runtimes do not need
        if value.type.tensor_type.elem_type and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, ValueError) as error:
        return first_line(error)
    return None
