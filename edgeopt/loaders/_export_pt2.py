"""Child process: a ``.pt2`` program, or one that a factory gave, becomes an ONNX file and is run beside it."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from edgeopt.loaders import _training, _verify


def main(exported: str, *, program: str, label: str, force_eval: bool) -> dict[str, Any]:
    """Load the program at ``program``, see that it is in eval mode, and export it."""
    quiet()
    loaded = _load(program)
    return {"notes": to_onnx(loaded, exported, label=label, force_eval=force_eval)}


def quiet() -> None:
    """Nothing but errors on stderr, and seeded random numbers."""
    warnings.simplefilter("ignore")
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)


def to_onnx(loaded: Any, exported: str, *, label: str, force_eval: bool) -> list[str]:
    """Export a ``torch.export`` program, then run both on the same input and compare; returns what was changed.

    Raises:
        ModelError: the program was captured in training mode and ``force_eval`` is off or cannot help.
    """
    import torch

    live = _training.live_nodes(loaded.graph_module.graph)
    if live and not force_eval:
        raise _training.refusal(label, _training.described(live))
    if live:
        _training.switch(loaded, label)
    weights = sum(t.numel() * t.element_size() for t in loaded.state_dict.values())
    with torch.no_grad():
        torch.onnx.export(
            loaded,
            (),
            exported,
            dynamo=True,
            opset_version=_verify.OPSET,
            external_data=weights > _verify.EXTERNAL_BYTES,
            # The exporter would store a table that two layers share a second time, transposed.
            optimize=not _shares_weights(loaded),
            output_names=_output_names(loaded),
            verbose=False,
        )
        if weights <= _verify.EXTERNAL_BYTES:
            _compare(loaded, exported)
    return [f"--force-eval: {', '.join(_training.described(live))} switched off"] if live else []


def _output_names(loaded: Any) -> list[str] | None:
    """The keys of a dict of tensors, which is what the program returns; None where it returns something else."""
    spec = loaded.call_spec.out_spec
    if spec is None or spec.type is not dict or not all(isinstance(key, str) and key for key in spec.context):
        return None
    leaf = all(child.num_leaves == 1 and child.num_children == 0 for child in spec.children())
    inputs = {node.name for node in loaded.graph.nodes if node.op == "placeholder"}
    return list(spec.context) if leaf and not inputs & set(spec.context) else None


def _shares_weights(loaded: Any) -> bool:
    """Whether a weight matrix has two readers, under one name or two."""
    names: dict[int, int] = {}
    held = {spec.arg.name: spec.target for spec in loaded.graph_signature.input_specs if spec.target}
    for node in loaded.graph_module.graph.nodes:
        tensor = loaded.state_dict.get(held.get(node.name)) if node.op == "placeholder" else None
        if tensor is not None and tensor.dim() >= 2:
            names[tensor.data_ptr()] = names.get(tensor.data_ptr(), 0) + len(node.users)
    return any(count > 1 for count in names.values())


class _Causes(logging.Handler):
    """Keeps the exceptions that torch logs before it raises one that says to look at the log."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.found.append(record.exc_info[1])


def _load(program: str) -> Any:
    import torch

    causes = _Causes()
    logger = logging.getLogger("torch.export")
    logger.addHandler(causes)
    logger.propagate = False
    try:
        return torch.export.load(program)
    except RuntimeError as error:
        cause = causes.found[0] if causes.found else error
        sys.exit(f"{type(cause).__name__}: {cause}")


def _compare(loaded: Any, exported: str) -> None:
    """Exit with the difference where the exported network computes something else than the program."""
    session = _verify.open_session(exported)
    if session is None:
        return
    for draw in _verify.DRAWS:
        outcome = _run(loaded, draw)
        if outcome is None:
            return
        feeds, wanted = outcome
        names = [i.name for i in session.get_inputs()]
        if len(names) != len(feeds):
            return  # an input that nothing reads has no counterpart
        got = session.run(None, {name: feed.numpy() for name, feed in zip(names, feeds)})
        _verify.compare(got, wanted)


def _run(loaded: Any, draw: str) -> tuple[list[Any], list[Any]] | None:
    """Made-up input tensors and the program's output tensors; None where it cannot be run on made-up values."""
    import torch

    values = {node.name: node.meta.get("val") for node in loaded.graph.nodes if node.op == "placeholder"}
    leaves: list[Any] = []
    for spec in loaded.graph_signature.input_specs:
        if spec.kind.name != "USER_INPUT":
            continue
        if hasattr(spec.arg, "value"):
            leaves.append(spec.arg.value)  # a constant, as exported
        else:
            leaves.append(_made_up(values[spec.arg.name], draw))
            if leaves[-1] is None:
                return None
    pytree = torch.utils._pytree
    args, kwargs = pytree.tree_unflatten(leaves, loaded.call_spec.in_spec)
    module = loaded.module()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        outputs = pytree.tree_leaves(module(*args, **kwargs))
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return None
    changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
    if changed:
        sys.exit(
            f"the program changes its own buffers ({', '.join(changed[:3])}), which ONNX cannot keep: it was exported "
            "in training mode (call .eval() first), or it keeps a state that has to become an input and an output"
        )
    tensors = [[t.detach() for t in side if isinstance(t, torch.Tensor)] for side in (leaves, outputs)]
    return tensors[0], tensors[1]


def _made_up(value: Any, draw: str) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    shape = [int(size) if isinstance(size, int) else _hint(size) for size in value.shape]
    return _verify.made_up(shape, value.dtype, draw)


def _hint(size: Any) -> int:
    hint = size.node.hint
    return int(hint) if hint is not None else 2
