"""Where quantized tensors stand: one declarative table per backend, and the walk that applies it.

A table says for each operator whether the runtime has an integer kernel for it and what that kernel
wants. ``plan_placement`` turns table and graph into a decision per node and a set of tensors that get
one Q/DQ pair each. It changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import ABSORBED, node_key
from edgeopt.quantize.masks import masked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """How a runtime treats one operator type in int8.

    Attributes:
        role: ``"compute"`` has integer weights and starts an int8 region; ``"join"`` has an integer
            kernel but is worth it only between int8 neighbours; ``"move"`` only moves values and
            keeps its input's scale; ``"weight"`` has no integer kernel: only its weight is stored
            as int8, and it computes in float.
        activations: indices of activation inputs; None means all inputs.
        weight, bias: input indices of constant weights and bias.
        channel_axis: output-channel axis of the weight for this node, None for one scale.
        constants: activation inputs may be constants: they are stored as integers with a range of their own.
        float_output: the kernel can leave its output in float when nobody needs it quantized.
        refuses: why this very node cannot be int8; None when it can.
        alone: why only the weight of this very node is stored as int8, where the kernel does not take its input.
    """

    role: str
    activations: tuple[int, ...] | None = (0,)
    weight: int | None = None
    bias: int | None = None
    channel_axis: Callable[[ir.Node], int | None] = lambda node: None
    constants: bool = False
    float_output: bool = False
    refuses: Callable[[ir.Node], str | None] = lambda node: None
    alone: Callable[[ir.Node], str | None] = lambda node: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shield:
    """When a runtime quantizes an operator that was left in float; moves and activations in between are no obstacle.

    Attributes:
        inputs: those that come from DequantizeLinear then; None for all.
        constants: a constant counts like them: the runtime quantizes it.
    """

    inputs: tuple[int, ...] | None = None
    constants: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A backend's placement.

    Attributes:
        rules: by operator type.
        folded: activations that the runtime folds into the quantizer that follows.
        shielded: operators, by type, that the runtime would quantize on its own when they stand in float
            between DequantizeLinear and QuantizeLinear; they get a shield.
        rounded: operators, by type, that onnxruntime, which judges graphs on the way, would quantize on its own when
            they stand in float, and this runtime would not. A graph with such a one is judged in float arithmetic.
    """

    rules: Mapping[str, Rule]
    folded: Set[str]
    shielded: Mapping[str, Shield] = dataclasses.field(default_factory=dict)
    rounded: Set[str] = frozenset()

    def simulates(self, graph: ir.Graph, int8: Iterable[ir.Node]) -> bool:
        """Whether onnxruntime would quantize more of a Q/DQ graph than the nodes in ``int8``."""
        keys = {node_key(node) for node in int8} if self.rounded else set()
        return any(node.op_type in self.rounded and node_key(node) not in keys for node in graph)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """Decisions by node key, and the values to quantize.

    Attributes:
        int8: nodes that run in integers.
        weight_only: nodes that compute in float from int8 weights.
        stays_float: reason by key for every node that does not.
        values: tensors that get a Q/DQ pair.
        from_int8: those of them that an int8 node makes; everybody sees their rounded values. Of the others only int8
            nodes do: a float tensor that is also a graph output, or read in float, stays exact there.
        same_scale: pairs (output, input) that must share parameters because the node only moves values.
        shared: groups that must share one range (Concat).
    """

    int8: tuple[ir.Node, ...]
    weight_only: tuple[ir.Node, ...]
    stays_float: Mapping[str, str]
    values: tuple[ir.Value, ...]
    from_int8: Set[ir.Value]
    same_scale: tuple[tuple[ir.Value, ir.Value], ...]
    shared: tuple[tuple[ir.Value, ...], ...]


def plan_placement(
    model: ir.Model,
    table: Table,
    *,
    exclude: Set[str] = frozenset(),
    apart: Callable[[ir.Node], str | None] = lambda node: None,
    given: Set[ir.Value] = frozenset(),
) -> Placement:
    """Decide, in three sweeps: forward from the compute nodes, backward from who profits, then what lies enclosed.

    Args:
        exclude: node keys to keep in float.
        apart: reason to keep a node's values in float that only statistics can tell.
        given: float tensors that are quantized before anything runs: pixels.
    """
    reasons: dict[str, str] = {}
    chosen: dict[ir.Node, Rule] = {}
    possible: dict[ir.Node, Rule] = {}
    quantized: set[ir.Value] = set(given)
    folded: dict[ir.Node, ir.Node] = {}
    weight_only: list[ir.Node] = []
    masks = masked(model.graph)
    for node in model.graph:
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if producer in chosen and _follower(producer, chosen[producer], table, exclude) is node:
            folded[producer] = node
            quantized.discard(producer.outputs[0])
            quantized.add(node.outputs[0])
            continue
        rule, reason = _rule_for(node, table, exclude)
        if rule is not None and reason is None and rule.role != "weight" and _in_the_way(node, rule, masks):
            reason = "it reads or makes a mask, whose numbers would set the scale"
        if rule is not None and rule.role in ("join", "move") and reason is None:
            possible[node] = rule
            starved = [v for v in activation_inputs(node, rule) if v not in quantized]
            if starved:
                reason = "its inputs are not int8"
        if rule is not None and reason is None:
            reason = apart(node) or rule.alone(node)
            if reason is not None and rule.role == "compute":
                weight_only.append(node)
                reason += "; computes in float from int8 weights"
        if rule is not None and rule.role == "weight" and reason is None:
            weight_only.append(node)
            reason = "no integer kernel: computes in float from int8 weights"
        if rule is None or reason is not None:
            reasons[node_key(node)] = reason or "no integer kernel"
            continue
        chosen[node] = rule
        quantized.update(node.outputs[:1] if rule.role != "move" else node.outputs)
    _drop_unprofitable(chosen, folded, reasons)
    _add_enclosed(possible, table, exclude, chosen, folded, reasons)
    return dataclasses.replace(_collect(chosen, folded, reasons, table), weight_only=tuple(weight_only))


def activation_inputs(node: ir.Node, rule: Rule) -> list[ir.Value]:
    """The activation inputs of a node that are computed or fed; absent optional ones left out, constants by rule."""
    constant = {index for index, _ in constant_operands(node, rule)}
    places = range(len(node.inputs)) if rule.activations is None else rule.activations
    inputs = [node.inputs[i] for i in places if i < len(node.inputs) and i not in constant]
    return [v for v in inputs if v is not None]


def constant_operands(node: ir.Node, rule: Rule) -> list[tuple[int, np.ndarray]]:
    """Index and array of the constants among the activation inputs, where the rule lets them be stored as integers."""
    if not rule.constants:
        return []
    places = range(len(node.inputs)) if rule.activations is None else rule.activations
    found = [(i, constant_of(node, i)) for i in places]
    return [(i, tensor.numpy()) for i, tensor in found if tensor is not None]


def _in_the_way(node: ir.Node, rule: Rule, masks: Set[ir.Value]) -> bool:
    read = activation_inputs(node, rule) if rule.role == "compute" else node.inputs
    return not masks.isdisjoint((*read, *node.outputs))


def _rule_for(node: ir.Node, table: Table, exclude: Set[str]) -> tuple[Rule | None, str | None]:
    if node.domain not in ("", "ai.onnx"):
        return None, f"operator of domain {node.domain}"
    rule = table.rules.get(node.op_type)
    if rule is None:
        return None, "no integer kernel in this runtime"
    if not exclude.isdisjoint(keys_of(node)):
        return None, "excluded by request"
    for index, what in ((rule.weight, "weight"), (rule.bias, "bias")):
        present = index is not None and index < len(node.inputs) and node.inputs[index] is not None
        if index is not None and present and constant_of(node, index) is None:
            return None, f"its {what} is not a constant"
    if rule.constants and not activation_inputs(node, rule):
        return None, "its inputs are constants"
    for value in activation_inputs(node, rule) if rule.role != "weight" else ():
        if value.dtype is not None and value.dtype != ir.DataType.FLOAT:
            return None, f"its input is {value.dtype.name.lower()}, not float"
        if rule.role == "compute" and value.const_value is not None:
            return None, "its input is a constant"
    return rule, rule.refuses(node)


def constant_of(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """The float constant at an input, or None. A graph input's default is not a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.const_value is None or value.is_graph_input() or value.dtype != ir.DataType.FLOAT:
        return None
    return value.const_value


def keys_of(node: ir.Node) -> set[str]:
    """The key of a node and of every node that was fused into it."""
    return {node_key(node), *filter(None, node.metadata_props.get(ABSORBED, "").split(","))}


def _follower(node: ir.Node, rule: Rule, table: Table, exclude: Set[str]) -> ir.Node | None:
    """The activation that the runtime folds into this int8 operator: the only reader of its result."""
    value = node.outputs[0]
    readers = [use.node for use in value.uses()]
    if rule.role == "move" or value.is_graph_output() or len(readers) != 1:
        return None
    reader = readers[0]
    if reader.op_type not in table.folded or reader.graph is not node.graph or reader.inputs[0] is not value:
        return None
    return reader if limits(reader) is not None and exclude.isdisjoint(keys_of(reader)) else None


def limits(activation: ir.Node) -> tuple[float, float] | None:
    """The range of a Relu's or Clip's result; None when it is not known or does not contain 0, as every grid does."""
    if activation.op_type == "Relu":
        return 0.0, math.inf
    found = []
    for index, default in ((1, -math.inf), (2, math.inf)):
        bound = activation.inputs[index] if index < len(activation.inputs) else None
        constant = None if bound is None else constant_of(activation, index)
        if bound is not None and (constant is None or constant.size != 1):
            return None
        found.append(default if constant is None else float(constant.numpy().reshape(-1)[0]))
    return (found[0], found[1]) if found[0] <= 0.0 <= found[1] else None


def _result(node: ir.Node, folded: Mapping[ir.Node, ir.Node]) -> tuple[ir.Value, ...]:
    return tuple(folded[node].outputs) if node in folded else tuple(node.outputs)


def _drop_unprofitable(chosen: dict[ir.Node, Rule], folded: dict[ir.Node, ir.Node], reasons: dict[str, str]) -> None:
    """Joins and moves whose results nobody reads in int8 go back to float, last ones first."""
    for node in reversed(list(chosen)):
        rule = chosen[node]
        if rule.role == "compute":
            continue
        readers = [use.node for value in _result(node, folded) for use in value.uses()]
        if any(reader in chosen for reader in readers):
            continue
        del chosen[node]
        reasons[node_key(node)] = "nothing reads its result in int8"
        if node in folded:
            reasons[node_key(folded.pop(node))] = "follows a float operator"


def _add_enclosed(
    possible: Mapping[ir.Node, Rule],
    table: Table,
    exclude: Set[str],
    chosen: dict[ir.Node, Rule],
    folded: dict[ir.Node, ir.Node],
    reasons: dict[str, str],
) -> None:
    """A join or move between tensors that are quantized anyway runs in int8: the runtime fuses it without asking."""
    values = set(_collect(chosen, folded, reasons, table).values)
    for node, rule in possible.items():
        if node in chosen or not values.issuperset(activation_inputs(node, rule)):
            continue
        follower = _follower(node, rule, table, exclude)
        if follower is not None and follower.outputs[0] in values:
            folded[node] = follower
            reasons.pop(node_key(follower), None)
        elif not values.issuperset(node.outputs):
            continue
        chosen[node] = rule
        del reasons[node_key(node)]


def _held_up(node: ir.Node, result: ir.Value, table: Table) -> bool:
    """Whether an activation keeps the runtime from leaving a result in float.

    onnxruntime counts a Relu or Clip among the readers in, and then insists on a quantizer behind it, unless nothing
    reads on.
    """
    if all(use.node.op_type not in table.folded for use in node.outputs[0].uses()):
        return False
    return result is node.outputs[0] or bool(result.uses())


def _collect(
    chosen: Mapping[ir.Node, Rule], folded: Mapping[ir.Node, ir.Node], reasons: dict[str, str], table: Table
) -> Placement:
    values: dict[ir.Value, None] = {}
    from_int8: set[ir.Value] = set()
    same_scale, shared = [], []
    for node, rule in chosen.items():
        inputs, outputs = activation_inputs(node, rule), _result(node, folded)
        values.update(dict.fromkeys(inputs))
        from_int8.update(outputs)
        read_in_int8 = any(use.node in chosen for value in outputs for use in value.uses())
        if read_in_int8 or not rule.float_output or _held_up(node, outputs[0], table):
            values.update(dict.fromkeys(outputs[:1] if rule.role != "move" else outputs))
        if rule.role == "move":
            same_scale += [(output, inputs[0]) for output in outputs]
        if node.op_type == "Concat":
            shared.append((*inputs, outputs[0]))
    return Placement(
        int8=tuple(chosen),
        weight_only=(),
        stays_float=reasons,
        values=tuple(values),
        from_int8=frozenset(from_int8),
        same_scale=tuple(same_scale),
        shared=tuple(shared),
    )
