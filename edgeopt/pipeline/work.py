"""How much of a network's work each operator does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from edgeopt import passes
from edgeopt.memory import macs
from edgeopt.model import Model
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.pipeline.data import Sets


class Shares(NamedTuple):
    """Multiply-accumulates of one inference, and the share of each operator by node key."""

    total: float
    share: Mapping[str, float]


def mac_shares(model: Model, sets: Sets) -> Shares:
    """What each operator's work is; open dims are taken from a real sample. Unknown work counts as none."""
    found = macs(model)
    if None in found.values() and sets.probes:
        fixed = model.clone()
        for value in fixed.graph.inputs:
            if (given := sets.probes[0].get(str(value.name))) is not None:
                value.shape = ir.Shape(given.shape)
        found = macs(passes.apply(INFER_SHAPES, fixed).model)
    counts = {key: float(count or 0) for key, count in found.items()}
    total = sum(counts.values())
    return Shares(total=total, share={key: count / total if total else 0.0 for key, count in counts.items()})
