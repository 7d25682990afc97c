"""TorchScript networks that keep a state in their attributes between calls; runs in the child process.

What a call leaves for the next one, h' = g(x, h), becomes an input and an output: (y, h') = f(x, h). The network is run
twice first, so that it is past the branch that makes its first state, and recorded on the third call, with torch's own
recorder of operators. Numbers that it keeps (a sampling rate, a batch size) are taken as they are then. A caller starts
with zeros: that this gives what a fresh network gives is tried on a sequence, and refused where it does not.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from edgeopt.errors import ModelError
from edgeopt.loaders import _verify

STEPS = 6
"""Calls in a row for which the export must give what the network gives."""


class Held(NamedTuple):
    """An attribute that keeps a tensor: the path of its module (dotted, empty for the network) and its name."""

    owner: str
    name: str

    def get(self, module: Any) -> Any:
        """The present value in ``module``."""
        return getattr(_part(module, self.owner), self.name)

    def put(self, module: Any, value: Any) -> None:
        """Replace it."""
        setattr(_part(module, self.owner), self.name, value)


def _part(module: Any, owner: str) -> Any:
    for step in owner.split(".") if owner else ():
        module = getattr(module, step)
    return module


def find(module: Any, names: Sequence[str], example: Sequence[Any], values: Mapping[str, int]) -> list[Held]:
    """The tensors that one call of ``module`` (fresh, in eval mode) leaves changed for the next, in order of use."""
    graph, start = _inlined(module)
    written = [_held(node, start) for node in graph.findAllNodes("prim::SetAttr", True)]
    read = [_held(node, start) for node in _tensor_reads(graph)]
    tensors = list(dict.fromkeys(one for one in read if one is not None))
    versions = {held: held.get(module)._version for held in tensors}
    objects = {held: held.get(module) for held in tensors}
    module(**dict(zip(names, example)), **values)
    inside = [held for held in tensors if objects[held]._version != versions[held]]
    return [held for held in tensors if held in written or held in inside]


def numbers(module: Any) -> list[str]:
    """Attributes that are no tensors, and that ``forward`` both reads and writes: a state that no output can carry."""
    graph, _ = _inlined(module)
    reads, writes = (graph.findAllNodes(f"prim::{kind}Attr", True) for kind in ("Get", "Set"))
    kept = {node.s("name") for node in reads if node.output().type().kind() not in ("TensorType", "ClassType")}
    return sorted(kept & {node.s("name") for node in writes})


def shares_weights(module: Any) -> bool:
    """Whether a weight matrix has two readers, under one name or two."""
    import torch

    graph, start = _inlined(module)
    readers: dict[tuple[Any, bytes], int] = {}
    for node in _tensor_reads(graph):
        held = _held(node, start)
        tensor = None if held is None else held.get(module)
        if tensor is not None and tensor.dim() >= 2:
            # The archive holds them once, but torch.jit.load makes a copy for each name.
            content = hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).digest()
            readers[tensor.shape, content] = readers.get((tensor.shape, content), 0) + len(node.output().uses())
    return any(count > 1 for count in readers.values())


def _inlined(module: Any) -> tuple[Any, str]:
    """The graph of ``forward`` with all calls inlined, and the name of the network in it."""
    import torch

    graph = module.graph.copy()
    while graph.findAllNodes("prim::CallMethod", True):  # without optimization one pass goes one level down
        torch._C._jit_pass_inline(graph)
    return graph, next(iter(graph.inputs())).debugName()


def _tensor_reads(graph: Any) -> list[Any]:
    return [node for node in graph.findAllNodes("prim::GetAttr", True) if node.output().type().kind() == "TensorType"]


def _held(node: Any, start: str) -> Held | None:
    """The attribute that a GetAttr or SetAttr node names, by its way from the network; None for another object's."""
    path: list[str] = []
    value = next(iter(node.inputs()))
    while value.debugName() != start:
        step = value.node()
        if step.kind() != "prim::GetAttr":
            return None
        path.insert(0, step.s("name"))
        value = next(iter(step.inputs()))
    return Held(".".join(path), node.s("name"))


def export(
    fresh: Callable[[], Any],
    state: Sequence[Held],
    names: Sequence[str],
    example: Sequence[Any],
    values: Mapping[str, int],
    exported: str,
    label: str,
) -> list[str]:
    """Write the network with its state as inputs and outputs.

    Args:
        fresh: gives the network as it was loaded, with its first state.
        state: from ``find``.
        names, example, values: the call.
        exported: the file to write.
        label: what the user calls the network.

    Returns the names of the inputs that carry the state; the outputs have ``next_`` before them.

    Raises:
        ModelError: the state cannot become inputs and outputs, or does not start at zero.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    module = fresh()
    for _ in range(2):
        outputs = _call(module, names, example, values)
    held = [one.get(module).detach().clone() for one in state]
    fields = _state_names(state, names)

    def step(*tensors: Any) -> Any:
        given, before = tensors[: len(names)], tensors[len(names) :]
        for one, value in zip(state, before):
            one.put(module, value.clone())
        after = _call(module, names, given, values)
        return (*after, *(one.get(module) for one in state))

    try:
        recorded = make_fx(step, tracing_mode="real")(*example, *held)
        _rename_constants(recorded, module)
        program = torch.export.export(recorded, (*example, *held))
    except Exception as error:  # code of the file may raise anything
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{label} keeps a state ({', '.join(fields)}) that cannot become inputs and outputs: "
            f"{reason[0] if reason else type(error).__name__}",
            remedy="Save a module that takes its state as an argument and returns it.",
        ) from error
    returned = ["output"] if len(outputs) == 1 else [f"output_{n}" for n in range(len(outputs))]
    torch.onnx.export(
        program,
        (),
        exported,
        dynamo=True,
        opset_version=_verify.OPSET,
        input_names=[*names, *fields],
        output_names=[*returned, *(f"next_{name}" for name in fields)],
        external_data=False,
        verbose=False,
    )
    _compare(fresh(), state, names, example, values, held, exported, label)
    return fields


def _rename_constants(recorded: Any, module: Any) -> None:
    """Give the weights in the recording the names that they have in the network."""
    known = {tensor.data_ptr(): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    for node in recorded.graph.nodes:
        name = known.get(getattr(recorded, node.target).data_ptr()) if node.op == "get_attr" else None
        if name:
            renamed = name.replace(".", "_")
            setattr(recorded, renamed, getattr(recorded, node.target))
            node.target = renamed
    recorded.recompile()


def _call(module: Any, names: Sequence[str], example: Sequence[Any], values: Mapping[str, int]) -> list[Any]:
    from edgeopt.loaders._script import flat

    return flat(module(**dict(zip(names, example)), **values))


def _state_names(state: Sequence[Held], taken: Sequence[str]) -> list[str]:
    names: list[str] = []
    for one in state:
        base = one.name.strip("_") or "state"
        if base in taken or base in names:
            base = f"{one.owner.replace('.', '_')}_{base}".strip("_")
        while base in taken or base in names:
            base += "_state"
        names.append(base)
    return names


def _compare(
    network: Any,
    state: Sequence[Held],
    names: Sequence[str],
    example: Sequence[Any],
    values: Mapping[str, int],
    held: Sequence[Any],
    exported: str,
    label: str,
) -> None:
    """Run the export from zeros beside the fresh network, on a sequence of other inputs."""
    import torch

    session = _verify.open_session(exported)
    if session is None:
        sys.exit("it has a type that cannot be run here, and an export with a state is not taken unseen")
    read = {one.name for one in session.get_inputs()}
    generator = torch.Generator().manual_seed(1)
    fields = _state_names(state, names)
    carried = [torch.zeros_like(one).numpy() for one in held]
    for number in range(STEPS):
        tensors = [
            torch.randn(e.shape, generator=generator, dtype=e.dtype) if e.is_floating_point() else e for e in example
        ]
        wanted = _call(network, names, tensors, values)
        feeds = dict(zip(names, (t.numpy() for t in tensors))) | dict(zip(fields, carried))
        got = session.run(None, {name: array for name, array in feeds.items() if name in read})
        carried = got[len(wanted) :]
        after = [one.get(network) for one in state]
        if any(tuple(a.shape) != tuple(c.shape) for a, c in zip(after, carried)):
            raise _not_zero(label, fields)
        try:
            _verify.compare(got, [*wanted, *after], "the network")
        except SystemExit as error:
            raise _not_zero(label, fields, f" at call {number + 1}: {error}") from error


def _not_zero(label: str, fields: Sequence[str], why: str = "") -> ModelError:
    return ModelError(
        f"{label} keeps a state ({', '.join(fields)}); started from zeros its export differs from it{why}.",
        remedy="Save a module that takes its state as an argument and returns it.",
    )
