"""Which roundings cost the outputs most, and which operators to take out of int8 for it.

A Q/DQ model gets one switch for each quantized tensor and one for the weights of each operator: off, the float value
goes on. With one switch on at a time, a few samples give the error that each rounding alone causes at the outputs,

    e_i = sum |y_i - y|^2 / sum |y|^2.

Rounding errors are nearly independent and small, so to first order those of several roundings add up (Zhou et al.,
"Adaptive Quantization for Deep Neural Network", AAAI 2018). An operator in float removes the error of its weights, and
that of every tensor which nothing in int8 makes or reads any more: ``ranking`` takes, again and again, the operators
that remove most error for what they cost, and asks the placement itself what is then quantized.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeopt.interpreter import Interpreter
from edgeopt.model import NODE_KEY, Model, node_key
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.placement import Placement, constant_of
from edgeopt.quantize.quantizer import Calibrated, with_float

Feeds = Mapping[str, np.ndarray]

ENOUGH = 1e-4
"""Share of the error at which the ranking ends: nothing worth a float operator is left."""

LEAST_COST = 5e-3
"""What an operator without multiply-accumulates costs, as a share of all: it breaks an int8 region too. An operator in
float costs its share of the multiply-accumulates and its share of the bytes."""

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that are linear in their constants, which are the weight and the bias, input 2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Error energy over signal energy that one rounding alone causes, for each output of the model.

    Attributes:
        outputs: names, the order of every array.
        tensors: by name of a quantized tensor.
        weights: by key of the operator that they belong to.
    """

    outputs: tuple[str, ...]
    tensors: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]


def sensitivity(calibrated: Calibrated, quantized: QuantizedModel, samples: Iterable[Feeds]) -> Sensitivity:
    """Measure every rounding of a model that ``quantize`` made from ``calibrated``.

    Raises:
        ModelError: the runtime fails on a sample.
    """
    switched, tensors, weights = _with_switches(calibrated, quantized)
    runner = Interpreter(switched, simulate=bool(calibrated.table.rounded))
    outputs = tuple(spec.name for spec in calibrated.model.outputs)
    off = {name: np.array(False) for name in (*tensors.values(), *weights.values())}
    signal = np.zeros(len(outputs))
    errors = {name: np.zeros(len(outputs)) for name in off}
    for feeds in samples:
        expected = runner.run({**feeds, **off})
        signal += [_energy(expected[name]) for name in outputs]
        for switch, total in errors.items():
            found = runner.run({**feeds, **off, switch: np.array(True)})
            total += [_energy(found[name], expected[name]) for name in outputs]
    safe = np.where(signal > 0, signal, 1.0)
    return Sensitivity(
        outputs=outputs,
        tensors={name: errors[switch] / safe for name, switch in tensors.items()},
        weights={key: errors[switch] / safe for key, switch in weights.items()},
    )


def _energy(values: np.ndarray, reference: np.ndarray | None = None) -> float:
    """Sum of squares, of the difference where there is a reference; outputs of another shape differ in all."""
    found = values.astype(np.float64)
    if reference is not None and found.shape == reference.shape:
        found = found - reference
    return float(np.sum(found[np.isfinite(found)] ** 2))


def _with_switches(calibrated: Calibrated, quantized: QuantizedModel) -> tuple[Model, dict[str, str], dict[str, str]]:
    """The Q/DQ model with a switch for each rounding: the names of the switches by tensor and by operator."""
    changed = quantized.model.clone()
    graph = changed.graph
    source = {node_key(n): n for n in calibrated.model.graph}
    tensors: dict[str, str] = {}
    weights: dict[str, str] = {}
    switches: dict[str, ir.Value] = {}

    def switch(name: str) -> ir.Value:
        if name not in switches:
            switches[name] = ir.Value(name=name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape(()))
            graph.inputs.append(switches[name])
        return switches[name]

    pairs = []
    for node in graph:
        producer = node.inputs[0].producer() if node.op_type == "DequantizeLinear" and node.inputs[0] else None
        if producer is not None and producer.op_type == "QuantizeLinear" and producer.inputs[0] is not None:
            pairs.append((node, producer, _original(producer.inputs[0])))
    for count, node in enumerate(list(graph)):
        constants = _constants(node, source.get(node_key(node)))
        if constants:
            weights[node_key(node)] = f"edgeopt_switch_weight_{count}"
            _weights_off(graph, node, switch(weights[node_key(node)]), constants)
    for count, (node, quantizer, name) in enumerate(pairs):
        named = tensors.setdefault(name, f"edgeopt_switch_tensor_{count}")
        real = quantizer.inputs[0]
        assert real is not None
        _tensor_off(graph, node, switch(named), real)
    graph.sort()
    return changed, tensors, weights


def _original(value: ir.Value) -> str:
    """The name that a quantized tensor has in the float model: a shield in front of a quantizer is an identity."""
    producer = value.producer()
    if producer is not None and producer.op_type == "Max" and len(producer.inputs) == 1 and producer.inputs[0]:
        return str(producer.inputs[0].name)
    return str(value.name)


def _constants(node: ir.Node, original: ir.Node | None) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By input index: what an operator's integer constants restore to, and what they were made from."""
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for index, value in enumerate(node.inputs if node.op_type in LINEAR else ()):
        dq = None if value is None else value.producer()
        if value is None or dq is None or dq.op_type != "DequantizeLinear" or len(dq.inputs) < 2:
            continue
        parts = [None if v is None else v.const_value for v in dq.inputs]
        if parts[0] is None or parts[1] is None:
            continue
        integers, scales = parts[0].numpy().astype(np.float32), parts[1].numpy()
        zero = 0 if len(parts) < 3 or parts[2] is None else parts[2].numpy().astype(np.float32)
        axis = dq.attributes.get_int("axis", 1)
        spread = [-1 if k == axis % max(integers.ndim, 1) else 1 for k in range(integers.ndim)]
        if scales.size > 1:
            scales, zero = scales.reshape(spread), np.reshape(zero, spread) if np.size(zero) > 1 else zero
        restored = ((integers - zero) * scales).astype(np.float32)
        real = _float_constant(original, node, index, restored.shape)
        if real is not None and real.shape == restored.shape:
            found[index] = (restored, real)
    return found


def _weights_off(
    graph: ir.Graph, node: ir.Node, switch: ir.Value, constants: Mapping[int, tuple[np.ndarray, np.ndarray]]
) -> None:
    """``op(x, W)`` becomes ``op(x, W) + If(switch, op(x, Q - W), 0)``, linear in its constants as every such op is.

    The operator itself keeps float constants: the runtime prepares its weights, and computes the rest only when asked.
    """
    name = f"edgeopt_{switch.name}"
    values: list[ir.Value | None] = [None if k == 2 and k not in constants else v for k, v in enumerate(node.inputs)]
    for index, (restored, real) in constants.items():
        values[index] = _constant(f"{name}_delta_{index}", restored - real)
        kept = _constant(f"{name}_float_{index}", real)
        graph.register_initializer(kept)
        node.replace_input_with(index, kept)
    delta = ir.Node(node.domain, node.op_type, values, list(node.attributes.values()), num_outputs=1, name=f"{name}_op")
    _add(graph, node.outputs[0], node, switch, delta, [values[index] for index in constants])


def _tensor_off(graph: ir.Graph, dq: ir.Node, switch: ir.Value, real: ir.Value) -> None:
    """``DQ(Q(x))`` becomes ``x + If(switch, DQ(Q(x)) - x, 0)``."""
    value = dq.outputs[0]
    name = f"edgeopt_{switch.name}_{value.name}"
    base = ir.node("Identity", [real], name=f"{name}_base")
    base.outputs[0].name, base.outputs[0].type = f"{name}_base_out", value.type
    base.metadata_props[NODE_KEY] = str(base.name)
    graph.insert_after(dq, base)
    uses = list(value.uses())
    delta = ir.node("Sub", [value, real], name=f"{name}_op")
    _add(graph, value, base, switch, delta, (), uses)


def _add(
    graph: ir.Graph,
    value: ir.Value,
    base: ir.Node,
    switch: ir.Value,
    on: ir.Node,
    held: Sequence[ir.Value | None],
    uses: Sequence[Any] | None = None,
) -> None:
    """Let readers of ``value`` read ``base + If(switch, on, 0)``."""
    uses = list(value.uses()) if uses is None else uses
    zero = ir.node("Constant", [], attributes={"value": ir.tensor(np.zeros((), np.float32))})
    zero.name = f"{base.name}_{switch.name}_zero"
    made = ir.node(
        "If",
        [switch],
        attributes={"then_branch": _branch(on, held), "else_branch": _branch(zero)},
        name=f"{base.name}_{switch.name}_if",
    )
    made.outputs[0].name, made.outputs[0].type = f"{made.name}_out", ir.TensorType(ir.DataType.FLOAT)
    total = ir.node("Add", [base.outputs[0], made.outputs[0]], name=f"{base.name}_{switch.name}_add")
    picked = total.outputs[0]
    picked.name, picked.type = f"{total.name}_out", ir.TensorType(ir.DataType.FLOAT)
    for node in (made, total):
        node.metadata_props[NODE_KEY] = str(node.name)
    graph.insert_after(base, [made, total])
    for use in uses:
        use.node.replace_input_with(use.idx, picked)
    for index, output in enumerate(graph.outputs):
        if output is value:  # names of outputs stay: the picked value takes it over
            picked.name, value.name = value.name, f"{value.name}_rounded"
            picked.shape = value.shape
            graph.outputs[index] = picked


def _constant(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(array.shape), const_value=tensor)


def _branch(node: ir.Node, held: Sequence[ir.Value | None] = ()) -> ir.Graph:
    """A graph of one operator."""
    node.outputs[0].name, node.outputs[0].type = f"{node.name}_out", ir.TensorType(ir.DataType.FLOAT)
    node.metadata_props[NODE_KEY] = str(node.name)
    initializers = [value for value in held if value is not None]
    return ir.Graph([], node.outputs, nodes=[node], initializers=initializers, name=f"{node.name}_graph")


def _float_constant(original: ir.Node | None, node: ir.Node, index: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """What an operator's integer constant was made from; zeros for a bias that the quantizer added."""
    if original is None or original.op_type != node.op_type:
        return None
    present = index < len(original.inputs) and original.inputs[index] is not None
    if not present:
        return np.zeros(shape, np.float32)
    constant = constant_of(original, index)
    if constant is None:
        return None
    found = constant.numpy().astype(np.float32)
    if original.op_type == "Gemm":  # the quantizer takes both factors into the constants
        found = found * np.float32(original.attributes.get_float("alpha" if index == 1 else "beta", 1.0))
    if len(shape) == 1:  # a bias may be stored with fewer or more axes than its integers
        found = np.broadcast_to(found, shape).copy() if found.size == 1 else found.reshape(-1)
    return found


def ranking(
    calibrated: Calibrated,
    found: Sensitivity,
    macs: Mapping[str, float],
    extra: Mapping[str, int],
    *,
    most_macs: float,
    most_bytes: float,
    weigh: np.ndarray,
) -> tuple[tuple[frozenset[str], tuple[str, ...]], ...]:
    """Growing sets of operators to keep in float, each with those that are new in it, the best first.

    Args:
        macs: share of all multiply-accumulates by node key.
        extra: bytes that an operator in float has more.
        most_macs, most_bytes: sets stay within these.
        weigh: weight of each output's error.
    """

    def left(keys: frozenset[str]) -> tuple[float, Placement]:
        placement = calibrated.placement if not keys else with_float(calibrated, keys).placement
        integer = {node_key(n) for n in placement.int8}
        tensors = {str(v.name) for v in placement.values}
        total = sum(float(e @ weigh) for name, e in found.tensors.items() if name in tensors)
        return total + sum(float(e @ weigh) for key, e in found.weights.items() if key in integer), placement

    heaviest = max(sum(extra.values()), 1)

    def cost(keys: Iterable[str]) -> float:
        return sum(max(macs.get(key, 0.0), LEAST_COST) + extra.get(key, 0) / heaviest for key in keys)

    moves = _moves(calibrated.placement, calibrated)
    kept: frozenset[str] = frozenset()
    error, _ = start, _ = left(kept)
    sets: list[tuple[frozenset[str], tuple[str, ...]]] = []
    known: dict[frozenset[str], float] = {}
    near = _neighbours(moves)
    while error > ENOUGH * start:
        best: tuple[float, tuple[str, ...], frozenset[str]] | None = None
        for move in moves:
            new = move - kept
            inside = kept | move
            if (
                not new
                or sum(macs.get(k, 0.0) for k in inside) > most_macs
                or sum(extra.get(k, 0) for k in inside) > most_bytes
            ):
                continue
            if move not in known:
                known[move] = error - left(inside)[0]
            rate = known[move] / cost(new)
            name = tuple(sorted(new))
            if known[move] > 0 and (best is None or (-rate, name) < (-best[0], best[1])):
                best = (rate, name, move)
        if best is None:
            break
        kept |= best[2]
        error, _ = left(kept)
        sets.append((kept, best[1]))
        for move in near[best[2]]:
            known.pop(move, None)
    return tuple(sets)


def _moves(placement: Placement, calibrated: Calibrated) -> tuple[frozenset[str], ...]:
    """Every operator alone, and around every tensor all that make and read it in int8."""
    integer = {n: node_key(n) for n in placement.int8}
    moves: dict[frozenset[str], None] = {}
    for node, key in integer.items():
        if calibrated.table.rules[node.op_type].role == "compute":
            moves[frozenset((key,))] = None
    for value in placement.values:
        around = {integer[use.node] for use in value.uses() if use.node in integer}
        around |= {integer[n] for n in _makers(value, integer)}
        if around:
            moves[frozenset(around)] = None
    return tuple(sorted(moves, key=sorted))


def _makers(value: ir.Value, integer: Mapping[ir.Node, str]) -> list[ir.Node]:
    """The int8 operator that makes a tensor, also through an activation that the runtime folds into it."""
    producer = value.producer()
    if producer is None or producer in integer:
        return [] if producer is None else [producer]
    above = producer.inputs[0].producer() if producer.inputs and producer.inputs[0] is not None else None
    return [above] if above is not None and above in integer else []


def _neighbours(moves: Sequence[frozenset[str]]) -> dict[frozenset[str], set[frozenset[str]]]:
    """Moves that share an operator, or touch a third move that both share one with: their gains change together."""
    by_key: dict[str, set[frozenset[str]]] = {}
    for move in moves:
        for key in move:
            by_key.setdefault(key, set()).add(move)
    beside = {move: set().union(*(by_key[key] for key in move)) for move in moves}
    return {move: set().union(*(beside[other] for other in beside[move])) for move in moves}
