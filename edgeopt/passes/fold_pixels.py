"""uint8 -> Cast -> arithmetic, axes, channel order -> Conv becomes uint8 -> Transpose -> Cast -> Conv.

What stands between the bytes u and the Conv is, per input channel c, x[c] = a[c] u[p[c]] + b[c]. With m = -b / a

    conv(x, W) = conv(u - m, W'),   W'[:, p[c]] = W[:, c] a[c]          always: zeros that the Conv pads stay zeros
               = conv(u, W') + sum over c and taps of W[:, c] b[c]      without padding: the offset is one bias

1. The operators: Cast to float, Mul, Add, Sub, Div by a constant per channel, Transpose, Gather that reorders channels.
2. Transposes are joined into one and done on bytes, a quarter of the memory traffic.
3. With padding one Sub of m stays, unless m is 0 everywhere: in the border the Conv has to see x = 0, which is u = m.
4. A Gather of bytes before a grouped Conv stays, whose channels have their place.
5. Refused: a second consumer, weights that are not constant or shared, a factor of 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    Array,
    all_finite,
    attr_int,
    attr_ints,
    attr_str,
    constant,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_constant,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
    value_names,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten

Vector = npt.NDArray[np.float64]


@dataclasses.dataclass(kw_only=True)
class _Chain:
    """What lies between bytes and a Conv, found from its end.

    Attributes:
        value: where the walk has come to.
        perm: axis of ``value`` for each axis of what the Conv reads.
        order: channel of ``value`` for each channel that the Conv reads.
        factor, offset: x = factor * value + offset, per channel that the Conv reads.
        nodes: passed so far, last ones first; ``cast`` is one of them.
        grouped: the channels that the Conv reads have their place.
    """

    value: ir.Value
    perm: list[int]
    order: list[int]
    factor: Vector
    offset: Vector
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    cast: ir.Node | None = None
    grouped: bool = False


def _walk(conv: ir.Node) -> _Chain | str | None:
    """The chain before a Conv, why it cannot be folded, or None when no bytes are at its beginning."""
    value, weight = input_at(conv, 0), input_at(conv, 1)
    if value is None or weight is None or weight.const_value is None:
        return None
    rank = len(weight.const_value.shape)
    channels = weight.const_value.shape.numpy()[1] * attr_int(conv, "group", 1)
    chain = _Chain(
        value=value,
        perm=list(range(rank)),
        order=list(range(channels)),
        factor=np.ones(channels),
        offset=np.zeros(channels),
        grouped=attr_int(conv, "group", 1) > 1,
    )
    why = None
    while (node := chain.value.producer()) is not None and node.graph is conv.graph:
        if chain.cast is not None and why_not_private(chain.value):
            break  # bytes that others read too are a fine place to begin
        if not _pass_by(chain, node):
            break
        why = why or (None if chain.cast is not None and node is not chain.cast else why_not_private(node.outputs[0]))
    if chain.cast is None:
        return None
    return why or chain


def _pass_by(chain: _Chain, node: ir.Node) -> bool:
    """Take one more operator into the chain; False when it is none of those that can be folded."""
    source = input_at(node, 0)
    if is_op(node, "Cast") and chain.cast is None:
        if attr_int(node, "to", 0) != ir.DataType.FLOAT or source is None or source.dtype != ir.DataType.UINT8:
            return False
        chain.cast = node
    elif is_op(node, "Transpose"):
        perm = attr_ints(node, "perm") or list(reversed(range(len(chain.perm))))
        chain.perm = [perm[axis] for axis in chain.perm]
    elif is_op(node, "Gather") and not chain.grouped:
        indices = integers(input_at(node, 1))
        axis = attr_int(node, "axis", 0) % len(chain.perm)
        shape = dims(input_at(node, 1))
        if indices is None or shape is None or len(shape) != 1 or axis != chain.perm[1] or not _has_all(chain, source):
            return False
        found = [i % len(chain.order) for i in indices]
        if sorted(found) != sorted(chain.order):
            return False
        chain.order = [found[c] for c in chain.order]
    elif is_op(node, "Mul", "Add", "Sub", "Div") and chain.cast is None:
        side = 1 if constant(input_at(node, 1)) is not None else 0
        source = input_at(node, 1 - side)
        if not _has_all(chain, source) or not _arithmetic(chain, node, constant(input_at(node, side)), side == 0):
            return False
    else:
        return False
    if source is None or is_constant(source):
        return False
    chain.value = source
    chain.nodes.append(node)
    return True


def _has_all(chain: _Chain, value: ir.Value | None) -> bool:
    """Whether a tensor has the channels that the Conv reads: none is left out, none comes from broadcasting."""
    shape = dims(value)
    return shape is not None and shape[chain.perm[1]] == len(chain.order)


def _arithmetic(chain: _Chain, node: ir.Node, array: Array | None, constant_first: bool) -> bool:
    vector = None if array is None else _per_channel(array, chain.perm[1], len(chain.perm), len(chain.order))
    if vector is None or (constant_first and node.op_type == "Div"):
        return False
    k = vector[chain.order]
    if node.op_type == "Mul":
        chain.factor = chain.factor * k
    elif node.op_type == "Div":
        with np.errstate(divide="ignore", invalid="ignore"):
            chain.factor = chain.factor / k
    elif node.op_type == "Add":
        chain.offset = chain.offset + chain.factor * k
    elif constant_first:
        chain.offset, chain.factor = chain.offset + chain.factor * k, -chain.factor
    else:
        chain.offset = chain.offset - chain.factor * k
    return True


def _per_channel(array: Array, axis: int, rank: int, channels: int) -> Vector | None:
    """A constant as one value per channel of the tensor that it meets; None when it is anything else."""
    if array.ndim > rank or array.dtype != np.float32:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def is_padded(conv: ir.Node) -> bool:
    """Whether a Conv may read zeros around its input."""
    auto = attr_str(conv, "auto_pad", "NOTSET")
    return auto.startswith("SAME") or (auto == "NOTSET" and any(attr_ints(conv, "pads") or []))


def input_scaled(weight: Array, groups: int, factor: Vector) -> npt.NDArray[np.float64]:
    """Weights [O, I / groups, ...] with input channel c multiplied by ``factor[c]``."""
    view = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]).astype(np.float64)
    scaled: npt.NDArray[np.float64] = view * factor.reshape(groups, 1, -1, *(1,) * (weight.ndim - 2))
    return scaled.reshape(weight.shape)


def _fold(model: ir.Model, conv: ir.Node, chain: _Chain) -> str | bool:
    weight, old_bias, groups = input_at(conv, 1), input_at(conv, 2), attr_int(conv, "group", 1)
    array, bias = constant(weight), constant(old_bias)
    if weight is None or array is None or array.dtype != np.float32:
        return "weights are not constant" if array is None else f"weights are {array.dtype}"
    if old_bias is not None and bias is None:
        return "bias is not constant"
    if not (all_finite(chain.factor, chain.offset) and (chain.factor != 0).all()):
        return "a channel is multiplied by 0"
    shuffled = chain.order != sorted(chain.order)
    mean = -chain.offset / chain.factor
    subtracts = is_padded(conv) and bool((mean != 0).any())
    wanted = ["Sub"] * subtracts + ["Cast"] + ["Transpose"] * (chain.perm != sorted(chain.perm))
    if [n.op_type for n in chain.nodes] == wanted and (chain.factor == 1).all() and not shuffled:
        return False
    if len(weight.uses()) > 1 or weight.is_graph_output():
        return "weights are shared with another node"
    inverse = np.argsort(chain.order)
    with np.errstate(over="ignore", invalid="ignore"):
        new_weight = input_scaled(array, groups, chain.factor).astype(np.float32)
        shift = input_scaled(array, groups, chain.offset).reshape(array.shape[0], -1).sum(axis=1)
        new_bias = ((0 if bias is None else bias.astype(np.float64)) + shift).astype(np.float32)
    if shuffled:
        new_weight = np.ascontiguousarray(new_weight[:, inverse])
    if not all_finite(new_weight, new_bias):
        return "the folded weights are not finite"
    _rebuild(model, conv, chain, mean[inverse] if subtracts else None)
    weight.const_value = ir.Tensor(new_weight, name=weight.name)
    if chain.offset.any() and not subtracts:
        assert conv.graph is not None
        if len(conv.inputs) < 3:
            conv.resize_inputs(3)
        conv.replace_input_with(2, new_constant(model, conv.graph, f"{conv.outputs[0].name}.bias", new_bias))
        drop_if_unused(old_bias)
    return True


def _rebuild(model: ir.Model, conv: ir.Node, chain: _Chain, mean: Vector | None) -> None:
    """Put Transpose, Cast and Sub in the place of the chain."""
    graph, read = conv.graph, conv.inputs[0]
    assert graph is not None
    assert read is not None
    taken = value_names(model)
    last, added = chain.value, []

    def then(op: str, *operands: ir.Value, kind: ir.DataType, shape: ir.Shape | None, **attrs: int | list[int]) -> None:
        nonlocal last
        node = ir.node(op, [last, *operands], attributes=attrs)
        last = node.outputs[0]
        base = f"{chain.value.name}.{op}"
        name = next(n for n in (base, *(f"{base}_{i}" for i in range(2, 2 + len(taken)))) if n not in taken)
        taken.add(name)
        last.name, last.type, last.shape = name, ir.TensorType(kind), shape
        added.append(node)

    float32 = ir.DataType.FLOAT
    shape = read.shape
    if shape is None and chain.value.shape is not None:
        shape = ir.Shape([chain.value.shape[axis] for axis in chain.perm])
    if chain.perm != sorted(chain.perm):
        then("Transpose", kind=ir.DataType.UINT8, shape=shape, perm=chain.perm)
    then("Cast", kind=float32, shape=shape, to=int(float32))
    if mean is not None:
        sides = (1, -1, *(1,) * (len(chain.perm) - 2))
        vector = mean.astype(np.float32).reshape(sides)
        then("Sub", new_constant(model, graph, f"{chain.value.name}.mean", vector), kind=float32, shape=shape)
    graph.insert_before(conv, added)
    conv.replace_input_with(0, last)
    for node in chain.nodes:
        out = node.outputs[0]
        if out.uses() or out.is_graph_output():
            break
        record_absorbed(conv, node)
        inputs = node.inputs
        graph.remove(node, safe=True)
        drop_if_unused(*inputs)


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if not is_op(node, "Conv"):
            continue
        chain = _walk(node)
        if chain is None:
            continue
        outcome = chain if isinstance(chain, str) else _fold(model, node, chain)
        if isinstance(outcome, str):
            refusals.append(Refusal(node_key(node), outcome))
        else:
            count += outcome
    return Rewritten(count=count, refusals=tuple(refusals))


FOLD_PIXELS = Pass(
    name="fold-pixels",
    rewrite=_rewrite,
    tolerance=1e-4,
    gain="no arithmetic on the pixels of an image: it is part of the first Conv",
)
