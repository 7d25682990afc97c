"""What a network is, before any work: refused with a reason, or admitted with what a bundle has to say about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgeopt import findings, loaders
from edgeopt.errors import ModelError
from edgeopt.findings import baked, custom, quantized, training, types
from edgeopt.interpreter import Interpreter, refusal
from edgeopt.model import Model
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.request import Request
from edgeopt.target import Target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admitted:
    """A network that may be built.

    Attributes:
        model: as loaded; in eval mode where that was forced, with its operator library where one was given.
        warnings: for the bundle.
        precision: what the artifact that edgeopt does not quantize is called: ``float32``, ``float16``, ``bfloat16``,
            ``float64``, or ``prequantized``.
        runnable: False when operators are unknown: nothing of the network can be run here.
        asked_open: dimensions that the user asked to open, by the symbol given.
    """

    model: Model
    warnings: tuple[str, ...]
    precision: str
    runnable: bool
    asked_open: tuple[str, ...] = ()

    @property
    def quantizes(self) -> bool:
        """Whether int8 may be tried."""
        return self.runnable and self.precision == "float32"


def load(request: Request, target: Target) -> Admitted:
    """Load the network that is asked for, and judge it.

    Raises:
        ModelError: as ``loaders.load`` and :func:`admit`.
    """
    model = loaders.load(
        request.model,
        shapes=request.shapes,
        trust_pickle=request.trust_pickle,
        weights=request.weights,
        force_eval=request.force_eval,
    )
    return admit(
        model,
        target,
        force_eval=request.force_eval,
        custom_ops=request.custom_ops,
        keep_custom_ops=request.keep_custom_ops,
        shapes=request.shapes,
    )


def admit(
    model: Model,
    target: Target,
    *,
    force_eval: bool = False,
    custom_ops: Path | None = None,
    keep_custom_ops: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Admitted:
    """Judge a loaded network.

    Raises:
        ModelError: it was captured in training mode, is random, deals in strings, or has operators that nobody here
            knows; the remedy names the flag that goes on.
    """
    warnings = list(model.origin.notes)
    if force_eval:
        model, lines = training.to_eval(model)
        warnings += lines
    if custom_ops is not None:
        model = dataclasses.replace(model, origin=dataclasses.replace(model.origin, libraries=(custom_ops,)))
        Interpreter(model)  # a library that does not load, or does not hold the operators, is refused by the runtime
    unknown = custom.unknown_nodes(model)
    for finding in findings.look(model):
        if finding.level == "refusal" and not (finding.kind == "custom-operators" and (custom_ops or keep_custom_ops)):
            raise ModelError(finding.text, remedy=finding.remedy)
        if finding.level == "warning":
            warnings.append(finding.text)
    warnings += [finding.text for finding in quantized.refused_by_tensorrt(model, target)]
    runnable = not unknown or custom_ops is not None
    if unknown and custom_ops is not None:
        names = ", ".join(custom.operators(model))
        warnings.append(
            f"needs the operators {names} from a library like {custom_ops.name}, which is not in the bundle: it is "
            "machine code of the build host; the device needs its own"
        )
    elif unknown:
        names = ", ".join(custom.operators(model))
        warnings.append(
            f"UNVERIFIED: nothing could be run, because onnxruntime does not know {names}; the rewrites around them "
            "follow from their algebra alone"
        )
    held = quantized.count(model)
    precision = types.computes_in(model)
    if held:
        warnings.append(quantized.why_kept(held))
        precision = "prequantized"
    elif precision != "float32":
        warnings.append(
            f"the network computes in {precision}: int8 is not tried on it; give the network in float32 to have it done"
        )
    asked = tuple(symbol for sizes in (shapes or {}).values() for symbol in getattr(sizes, "open", {}).values())
    return Admitted(model=model, warnings=tuple(warnings), precision=precision, runnable=runnable, asked_open=asked)


def settle(admitted: Admitted, sets: Sets) -> tuple[Model, Sets]:
    """Run the probes once more: same outputs, and open dimensions that are open.

    Dimensions that are open in name only become numbers in the model and so in every artifact and in the contract,
    unless a number makes the runtime refuse the network: it works out shapes in branches that are never taken.

    Raises:
        ModelError: two runs on one input differ, or a dimension that the user asked to open is fixed inside.
    """
    model = admitted.model
    warnings = (*admitted.warnings, *sets.warnings)
    if not admitted.runnable:
        empty = dataclasses.replace(
            sets, calibration=None, evaluation=None, held_out=False, probes=(), probes_are_real=False
        )
        return model, dataclasses.replace(empty, warnings=warnings)
    _check_repeatable(model, sets)
    tolerance = baked.QUANTIZED_TOLERANCE if admitted.precision == "prequantized" else baked.TOLERANCE
    found = baked.find(model, sets.probes, tolerance=tolerance)
    for one in found:
        if any(symbol in admitted.asked_open for symbol in one.symbols):
            raise ModelError(
                f"{', '.join(one.symbols)} cannot be opened: {one.why}",
                remedy=f"Fix it: give {one.size} in its place in --shape.",
            )
    model, words = _fixed(model, found)
    sets, warnings = dataclasses.replace(sets, inputs=model.inputs), (*warnings, *words)
    if not admitted.quantizes:
        sets = dataclasses.replace(sets, calibration=None, held_out=False)
    return model, dataclasses.replace(sets, warnings=warnings)


def _fixed(model: Model, found: Sequence[baked.Baked]) -> tuple[Model, list[str]]:
    """The model with every number that it still loads with, and one line about each dimension."""
    changed = baked.fix(model, found)
    if not found or refusal(changed) is None or refusal(model) is not None:
        return changed, [f"{one.text}; the artifacts have {one.size} there" for one in found]
    words = []
    for one in found:
        changed = baked.fix(model, [one])
        why = refusal(changed)
        if why is None:
            model = changed
            words.append(f"{one.text}; the artifacts have {one.size} there")
        else:
            words.append(f"{one.text}; it is left open, because onnxruntime does not load the network with it: {why}")
    return model, words


def _check_repeatable(model: Model, sets: Sets) -> None:
    session = Interpreter(model)
    for feeds in sets.probes[:1]:
        first, again = session.run(feeds), session.run(feeds)
        differing = [n for n, value in first.items() if not _same(value, again[n])]
        if differing:
            raise ModelError(
                f"two runs on one input differ in {', '.join(differing)}: the network is not deterministic",
                remedy="Export it in eval mode (model.eval()) and without random operators.",
            )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
