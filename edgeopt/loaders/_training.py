"""What is left of training in a torch program, and a program switched to eval mode; runs in the child process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeopt.errors import ModelError

_EXPORT = "Call model.eval() before you export the network"
_NAMED = 4

_DROPOUT = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout")
_NORM = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_STATISTICS_ARE_OUTPUTS = ("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")


def refusal(label: str, live: Sequence[str], *, forced: str | None = None) -> ModelError:
    """The error for a network captured in training mode.

    Args:
        label: what the user calls the network.
        live: operators that still train, with their names.
        forced: why ``--force-eval`` could not help; None where it was not given.
    """
    more = f" and {len(live) - _NAMED} more" if len(live) > _NAMED else ""
    listed = ", ".join(live[:_NAMED]) + more
    remedy = f"{_EXPORT}, or give --force-eval to take it as if that had been done."
    why = ""
    if forced:
        why, remedy = f"; --force-eval cannot help: {forced}", f"{_EXPORT}."
    return ModelError(f"{label} is captured in training mode: {listed}{why}", remedy=remedy)


def live_nodes(graph: Any) -> list[Any]:
    """Nodes of a torch.fx graph, nested ones included, that behave otherwise in training than in use."""
    return [node for node in _nodes(graph) if _is_live(node)]


def described(nodes: Sequence[Any]) -> list[str]:
    """``live Dropout (dropout_1)``: operator and name, one a node."""
    return [f"live {_words(_operator(node))} ({node.name})" for node in nodes]


def switch(program: Any, label: str) -> None:
    """Edit an exported program so that it computes what eval mode does.

    Raises:
        ModelError: the batch's statistics are results of the program, which no rewrite can take away.
    """
    live = live_nodes(program.graph_module.graph)
    stuck = [node for node in live if _operator(node) in _STATISTICS_ARE_OUTPUTS]
    if stuck:
        why = "the program was decomposed, and gives the statistics of the batch as outputs"
        raise refusal(label, described(stuck), forced=why)
    for node in live:
        name = _operator(node)
        if name == "scaled_dot_product_attention":
            _set(node, "dropout_p", 0.0)
        else:
            _set(node, _flag(name), False)
    counters = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind.name == "BUFFER" and str(spec.target).rpartition(".")[2] == "num_batches_tracked"
    }
    for node in list(program.graph_module.graph.nodes):
        adds = node.op == "call_function" and _operator(node) == "add_" and not node.users
        if adds and getattr(node.args[0], "name", "") in counters:
            program.graph_module.graph.erase_node(node)
    for module in program.graph_module.modules():
        if hasattr(module, "recompile"):
            module.recompile()


def _nodes(graph: Any) -> list[Any]:
    found = list(graph.nodes)
    owner = graph.owning_module
    for child in owner.children() if owner is not None else ():
        if hasattr(child, "graph"):
            found.extend(_nodes(child.graph))
    return found


def _operator(node: Any) -> str:
    """``batch_norm`` of ``aten.batch_norm.default``; empty for what is no aten operator."""
    schema = getattr(node.target, "_schema", None)
    namespace, _, name = str(schema.name if schema is not None else "").partition("::")
    return name if namespace == "aten" else ""


def _is_live(node: Any) -> bool:
    if node.op != "call_function":
        return False
    name = _operator(node)
    plain = name.removesuffix("_")
    if plain in _DROPOUT:
        return _get(node, _flag(name)) is not False and _get(node, "p") != 0
    if name in _NORM:
        # Without stored statistics those of the batch are what the layer means, in eval mode too.
        return bool(_get(node, "training")) and _get(node, "running_mean") is not None
    if name == "_batch_norm_with_update" or plain == "bernoulli":
        return True
    if plain == "rrelu":
        return bool(_get(node, "training"))
    if name in _RECURRENT:
        return bool(_get(node, "train")) and _get(node, "dropout") != 0
    return name == "scaled_dot_product_attention" and (_get(node, "dropout_p") or 0) != 0


def _flag(name: str) -> str:
    return "training" if name in _NORM or name.startswith("rrelu") else "train"


def _get(node: Any, argument: str) -> Any:
    for position, described_as in enumerate(node.target._schema.arguments):
        if described_as.name == argument:
            if position < len(node.args):
                return node.args[position]
            return node.kwargs.get(argument, described_as.default_value)
    return None


def _set(node: Any, argument: str, value: object) -> None:
    for position, described_as in enumerate(node.target._schema.arguments):
        if described_as.name == argument and position < len(node.args):
            node.update_arg(position, value)
            return
    node.update_kwarg(argument, value)


def _words(operator: str) -> str:
    if operator.removesuffix("_") in _DROPOUT:
        return "Dropout"
    return "BatchNormalization" if "batch_norm" in operator else operator
