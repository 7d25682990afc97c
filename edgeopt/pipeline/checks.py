"""Does a rewritten model still compute what it did: outputs on the probes, before and after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgeopt import passes, quality
from edgeopt.errors import ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.pipeline.data import Sets

MAX_LOSS_DB = 0.2
"""A rewrite of an int8 model may move its outputs this much further from the float model's: roundings that flip."""

KERNEL_ROUNDING = 1e-4
"""Even a rewrite that changes no value may let the runtime pick another kernel, which rounds differently."""

Outputs = list[Mapping[str, np.ndarray]]
"""Outputs by name, one mapping a probe."""


def int8_verified(before: Model, after: Model, reference: Outputs, pass_: passes.Pass, sets: Sets) -> tuple[bool, str]:
    """Whether an int8 model must refuse a rewrite, and what it changed.

    Where a float sum moves by an ulp one rounding to int8 may flip, so no tolerance for float models holds. What
    counts is the distance to the float model: its SQNR may not fall by more than ``MAX_LOSS_DB``.
    """
    own = runs(before, sets)
    outputs, change = verified(after, own, pass_, sets)
    if outputs is not None:
        return False, change
    try:
        outputs = runs(after, sets)
    except ModelError as refusal:
        return True, f"after it {refusal.message}"
    was, now = (_sqnr_db(reference, seen) for seen in (own, outputs))
    said = f"SQNR against the float model {now:.2f} dB, {was:.2f} dB before"
    return now < was - MAX_LOSS_DB, said


def _sqnr_db(reference: Outputs, outputs: Outputs) -> float:
    from runtime_bench import pooled_sqnr_db

    return pooled_sqnr_db(
        [list(r.values()) for r in reference], [[o[name] for name in r] for r, o in zip(reference, outputs)]
    )


def verified(model: Model, expected: Outputs, pass_: passes.Pass, sets: Sets) -> tuple[Outputs | None, str]:
    """Outputs on the probes and how far they moved; None and why not when the runtime or the tolerance refuses."""
    if not sets.probes:
        return [], "not verified: nothing of this network can be run"
    try:
        outputs = runs(model, sets)
    except ModelError as refusal:
        return None, f"after it {refusal.message}"
    error = max(quality.relative_error(a, b) for a, b in zip(expected, outputs))
    allowed = max(pass_.tolerance, KERNEL_ROUNDING)
    if error > allowed:
        return None, f"outputs changed by {error:.2g} of their range, more than {allowed:.0e} allowed"
    kind = "real inputs" if sets.probes_are_real else "seeded noise"
    return outputs, f"{f'largest change {error:.1e}' if error else 'no change'} on {kind}"


def runs(model: Model, sets: Sets) -> Outputs:
    """Outputs on the probes; none where there is nothing to run."""
    if not sets.probes:
        return []
    interpreter = Interpreter(model)
    return [interpreter.run(p) for p in sets.probes]
