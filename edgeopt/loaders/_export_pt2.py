"""Child process: ``python _export_pt2.py PROGRAM.pt2 MODEL.onnx``. torch's memory goes away with it.

Imports torch and onnxruntime, and nothing of edgeopt. Fails with a message on stderr and exit code 1.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from typing import Any

OPSET = 20
"""The opset that the passes work on; torch keeps 18 where it cannot convert."""

EXTERNAL_BYTES = 1_500_000_000
"""Weights in bytes from which they are written beside the model: one protobuf file ends at 2 GiB."""

LARGEST_ERROR, LARGEST_ERROR_HALF = 1e-3, 2e-2
"""Largest allowed max|difference| / max|reference| between the program and its export, for 32 and for 16 bits."""


def main(program: str, exported: str) -> None:
    """Export, then run both on the same input and compare."""
    warnings.simplefilter("ignore")
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.manual_seed(0)
    loaded = _load(program)
    weights = sum(t.numel() * t.element_size() for t in loaded.state_dict.values())
    with torch.no_grad():
        torch.onnx.export(
            loaded,
            (),
            exported,
            dynamo=True,
            opset_version=OPSET,
            external_data=weights > EXTERNAL_BYTES,
            verbose=False,
        )
        if weights <= EXTERNAL_BYTES:
            _compare(loaded, exported)


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
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return  # a type the CPU has no kernel for; the baseline run will say so
    # Two distributions: behind a Relu one of them alone may give zeros everywhere.
    for draw in ("randn", "rand"):
        outcome = _run(loaded, draw)
        if outcome is None:
            return
        feeds, wanted = outcome
        names = [i.name for i in session.get_inputs()]
        if len(names) != len(feeds):
            return  # an input that nothing reads has no counterpart
        got = session.run(None, {name: feed.numpy() for name, feed in zip(names, feeds)})
        if len(got) != len(wanted):
            sys.exit(f"the export has {len(got)} outputs, the program {len(wanted)}")
        for position, (ours, theirs) in enumerate(zip(got, wanted)):
            _compare_output(position, ours, theirs)


def _compare_output(position: int, ours: Any, theirs: Any) -> None:
    import numpy as np

    if tuple(ours.shape) != tuple(theirs.shape):
        sys.exit(f"output {position} has shape {tuple(ours.shape)}, in torch {tuple(theirs.shape)}")
    if not theirs.is_floating_point() or theirs.numel() == 0:
        return
    reference = theirs.double().numpy()
    if not np.isfinite(reference).all():
        return
    error = float(np.abs(ours.astype(np.float64) - reference).max()) / max(float(np.abs(reference).max()), 1e-6)
    allowed = LARGEST_ERROR if theirs.element_size() >= 4 else LARGEST_ERROR_HALF
    if not error <= allowed:
        sys.exit(
            f"output {position} of the ONNX export differs from the torch program by {error:.1e} of its largest value "
            f"(allowed {allowed:.0e}): the exporter changed the network, or the program draws random numbers"
        )


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

    if not isinstance(value, torch.Tensor) or value.dtype == torch.bfloat16:
        return None
    shape = [int(size) if isinstance(size, int) else _hint(size) for size in value.shape]
    if math.prod(shape) > 1 << 26:
        return None
    if value.dtype.is_floating_point:
        return getattr(torch, draw)(shape, generator=torch.Generator().manual_seed(0)).to(value.dtype)
    # Ones are valid as token numbers, as masks and as sizes.
    return torch.ones(shape, dtype=value.dtype)


def _hint(size: Any) -> int:
    hint = size.node.hint
    return int(hint) if hint is not None else 2


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
