"""Networks captured in training mode: live Dropout, batch statistics, random operators.

1. Dropout is live where its ``training_mode`` is not false and its ratio is not 0. Before opset 12 it had no such input
   and never drops.
2. BatchNormalization computes batch statistics with ``training_mode`` 1 and, before opset 14, wherever outputs besides
   the first are declared.
3. Random operators give another result at every call, ``seed`` or not: no two runs of such a network can be compared.
4. A ``training_mode`` that is computed, or that a caller feeds, is left to the caller: two runs on one input tell.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.findings.finding import Finding, counted, listed
from edgeopt.model import Model, node_key

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators of the default domain whose result differs from call to call."""

_TRAINING_DOMAINS = ("ai.onnx.training", "ai.onnx.preview.training")

_EXPORT = "Call model.eval() before you export the network"
_RANDOM_REMEDY = "Export the network without them, or let the caller feed the noise as an input."


def find(model: Model) -> tuple[Finding, ...]:
    """What is left of training in the graph and its subgraphs."""
    live = [node for node in model.nodes() if is_live(node, _opset(model))]
    random = [node for node in model.nodes() if node.domain == "" and node.op_type in RANDOM]
    gradient = [node for node in model.nodes() if node.domain in _TRAINING_DOMAINS]
    found = []
    if live:
        keys = tuple(map(node_key, live))
        found.append(
            Finding(
                kind="training",
                text=f"captured in training mode: {listed([f'live {n.op_type} ({node_key(n)})' for n in live])}",
                nodes=keys,
                level="refusal",
                remedy=f"{_EXPORT}, or give --force-eval to take it as if that had been done.",
            )
        )
    for nodes, what, remedy in (
        (random, "random operator", _RANDOM_REMEDY),
        (gradient, "operator of a training graph", "Export the network for inference."),
    ):
        if nodes:
            keys = tuple(map(node_key, nodes))
            text = f"{counted(len(nodes), what, what.replace('operator', 'operators'))} ({listed(_ops(nodes))})"
            found.append(
                Finding(
                    kind="random" if nodes is random else "training",
                    text=text + (": every run gives another result" if nodes is random else ""),
                    nodes=keys,
                    level="refusal",
                    remedy=remedy,
                )
            )
    return tuple(found)


def is_live(node: ir.Node, opset: int) -> bool:
    """Rules 1 and 2."""
    if node.domain != "":
        return False
    if node.op_type == "Dropout" and opset >= 12:
        mode, ratio = _scalar(node, 2), _scalar(node, 1)
        return bool(mode) and ratio != 0
    if node.op_type == "BatchNormalization":
        declared = any(out.name for out in node.outputs[1:])
        return declared if opset < 14 else bool(node.attributes.get_int("training_mode", 0))
    return False


def to_eval(model: Model) -> tuple[Model, tuple[str, ...]]:
    """The network as if exported in eval mode, and what was changed, one line an operator type.

    A live Dropout becomes the identity, and its mask, where it is read, all true. BatchNormalization takes the
    statistics that are stored beside it.

    Raises:
        ModelError: something reads the statistics that a BatchNormalization computed from the batch.
    """
    if not any(is_live(node, _opset(model)) for node in model.nodes()):
        return model, ()
    changed = model.clone()
    opset = _opset(changed)
    done: dict[str, list[str]] = {}
    for node in [node for node in changed.nodes() if is_live(node, opset)]:
        done.setdefault(node.op_type, []).append(node_key(node))
        if node.op_type == "Dropout":
            _stop_dropping(node)
        else:
            _use_stored_statistics(node)
    lines = []
    if "Dropout" in done:
        keys = done["Dropout"]
        lines.append(f"--force-eval: {counted(len(keys), 'live Dropout')} switched off ({listed(keys)})")
    if "BatchNormalization" in done:
        keys = done["BatchNormalization"]
        text = f"{counted(len(keys), 'BatchNormalization')} set to the stored statistics ({listed(keys)})"
        lines.append(f"--force-eval: {text}")
    return changed, tuple(lines)


def _stop_dropping(node: ir.Node) -> None:
    """Dropout(x, ratio, true) -> Dropout(x): without the input the operator is the identity and its mask all true."""
    node.replace_input_with(2, None)
    node.resize_inputs(2 if node.inputs[1] is not None else 1)


def _use_stored_statistics(node: ir.Node) -> None:
    extra = [out for out in node.outputs[1:] if out.uses() or out.is_graph_output()]
    if extra:
        raise ModelError(
            f"BatchNormalization {node_key(node)} is in training mode and the network uses its batch statistics "
            f'("{extra[0].name}"), which do not exist in eval mode',
            remedy=f"{_EXPORT}: --force-eval cannot take these outputs away.",
        )
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def _opset(model: Model) -> int:
    return model.ir.opset_imports.get("", 1)


def _scalar(node: ir.Node, index: int) -> float | None:
    """The constant at an input, by its stored value; None when it is absent or computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = None if value is None else value.const_value
    if value is not None and tensor is None:
        producer = value.producer()
        attribute = (
            producer.attributes.get("value") if producer is not None and producer.op_type == "Constant" else None
        )
        tensor = None if attribute is None else attribute.as_tensor()
    return None if tensor is None or tensor.size != 1 else float(np.asarray(tensor.numpy()).reshape(-1)[0])


def _ops(nodes: list[ir.Node]) -> list[str]:
    return [f"{node.op_type} {node_key(node)}" for node in nodes]
