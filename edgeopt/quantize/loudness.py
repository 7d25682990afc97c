"""How loud every channel is that matrix products read: its largest magnitude over a calibration set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.model import Model
from edgeopt.quantize.placement import constant_of
from edgeopt.quantize.streaming import Feeds, Group, Item, Samples, in_passes


def channel_peaks(model: Model, samples: Samples, *, budget: int | None = None) -> Mapping[str, np.ndarray]:
    """By tensor name, for the first factors of MatMul and Gemm of the main graph: max |x| along the last axis, float64.

    Exact, so the order of samples and how they are batched do not matter.

    Args:
        samples: the set, or a function that starts it anew.
        budget: bytes that one sample's tensors may hold; None takes all in one pass.

    Raises:
        CalibrationError: no samples, or a tensor that holds NaN or infinity.
    """
    made = {*model.graph.inputs, *(v for node in model.graph for v in node.outputs)}
    wanted: dict[str, Item] = {}
    for node in model.graph:
        source = node.inputs[0] if node.inputs else None
        weight = constant_of(node, 1) if node.op_type in ("MatMul", "Gemm") and node.domain == "" else None
        if weight is None or source not in made or source is None or source.dtype != ir.DataType.FLOAT:
            continue
        if not node.attributes.get_int("transA", 0):
            wanted.setdefault(str(source.name), Item(name=str(source.name), held=8 * max(weight.shape.numpy())))
    peaks: dict[str, np.ndarray] = {}

    def consume(group: Group, stream: Iterator[tuple[int, Feeds]]) -> int:
        for item in group:
            peaks.pop(item.name, None)
        for index, tensors in stream:
            for item in group:
                values = tensors[item.name]
                if values.size == 0:
                    continue
                if not np.isfinite(values).all():
                    raise CalibrationError(
                        f"calibration sample {index}: tensor {item.name} of the float model holds NaN or infinity",
                        remedy="The model overflows on it, or the preprocessing is not the one it was trained with.",
                    )
                peak = np.abs(values.reshape(-1, values.shape[-1])).max(axis=0).astype(np.float64)
                known = peaks.get(item.name)
                peaks[item.name] = peak if known is None else np.maximum(known, peak)
        return sum(item.held for item in group)

    if wanted:
        in_passes(model, list(wanted.values()), samples, budget, consume)
    return peaks
