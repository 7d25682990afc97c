"""The quantizer's steps: one change each, compared with the float model on samples that calibrate, kept if it helps.

The evaluation set has no say here; it judges once, at the end.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from edgeopt import quantize
from edgeopt.errors import ModelError
from edgeopt.interpreter import Feeds
from edgeopt.model import Model, digest
from edgeopt.pipeline import mixed
from edgeopt.pipeline.search import FLIPS, Bench, Search, described, gate, result, shifts
from edgeopt.plan import MIXED, REDUCED, STATIC, Step, StepResult
from edgeopt.quality import Quality
from edgeopt.quantize import Calibrated, Choice, QuantizedModel
from edgeopt.quantize.dynamic import quantize_dynamic
from edgeopt.quantize.equalize import Equalized, equalize
from edgeopt.quantize.half import to_half
from edgeopt.quantize.loudness import channel_peaks
from edgeopt.quantize.moments import Moments, collect_moments
from edgeopt.quantize.smooth import smooth
from edgeopt.quantize.weights_alone import quantize_weights

MOMENT_SAMPLES = 32
"""Samples, up to twice as many, that second moments are taken of: each has tens of positions to tell apart weights."""

MAX_FALL = 0.02
"""A refinement may lower the agreement by this share: one or two samples of a hundred flip by chance."""

MAX_GROWTH = 1.01
"""A refinement may store this much more: weights that were one must not become two."""

SCALING = ("equalize", "smooth-quant")
"""Steps that scale channels of the float model, which is then calibrated again."""

FIRST_LOOK_DB = 0.4
"""What such a step has to gain where its ranges are from the few samples that judge it, which flatters it."""

CUTTING = ("mse", "kl")
"""Ranges that cut off as much as pays by SQNR, which can rise while clearly more answers are wrong."""

OF_WEIGHTS = ("weight-scales", "bias-correction", "second-order-rounding")
"""Steps that change weights and biases alone."""

LOST_TO_CHANCE_DB = 0.3
"""What a step that helps the weights may cost all in all: which roundings of activations flip is chance."""

LOST_FOR_METRIC_DB = 1.0
"""Where the metric gains clearly, a refinement may cost this much SQNR."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Trial:
    """What a step would go on with."""

    calibrated: Calibrated | None
    choice: Choice
    quantized: QuantizedModel


def try_quantize(
    step: Step, search: Search, bench: Bench, locked: Mapping[str, object] | None, *, thorough: bool = False
) -> StepResult:
    """Try one step of kind ``quantize``.

    Args:
        locked: what a lock says that the step found; not None keeps the step without a judgement.
        thorough: calibrate anew with every sample where a step needs that; else a first look is taken with fewer.
    """
    started = time.perf_counter()
    before = search.cost(search.model if search.quantized is None else search.quantized.model)
    if step.name == MIXED:
        return mixed.search_precision(step, search, bench, locked, started)
    if (idle := _idle(step, search, bench)) is not None and locked is None:
        return result(step, "skipped", idle, before, before, started)
    trial = _trial(step, search, bench, thorough or locked is not None)
    if isinstance(trial, str):
        return result(step, "skipped", trial, before, before, started)
    after = search.cost(trial.quantized.model)
    if bench.sets.calibration is None:
        _go_on(search, trial, None)
        return result(step, "kept", "not compared: no samples calibrate", before, after, started)
    try:
        seen, seconds = search.timed(trial.quantized, bench.sets)
    except ModelError as refusal:
        return result(step, "rolled-back", f"after it {refusal.message}", before, after, started)
    if step.name in REDUCED:
        refusal_reason = refused(seen, bench) if step.params.get("fallback") else None
        reason, better = described(seen), refusal_reason is None
        reason += f": {refusal_reason}" if refusal_reason else ""
    else:
        gained = _gain_of_weights(trial.quantized, search, bench) if step.name in OF_WEIGHTS else None
        needed = float(str(step.params.get("min_gain_db", 0)))
        if step.name in SCALING and not thorough and locked is None:
            needed = FIRST_LOOK_DB
        reason, better = judge_choice(seen, search.seen, needed, search.best, gained)
        if search.quantized is not None and after.weight_bytes > MAX_GROWTH * before.weight_bytes:
            grown = after.weight_bytes - before.weight_bytes
            reason, better = f"{reason}; but it stores {grown:,} bytes more", False
    if not better and locked is None:
        return result(step, "rolled-back", reason, before, after, started, seen)
    if step.name in SCALING and not thorough and locked is None:
        return try_quantize(step, search, bench, locked, thorough=True)
    _go_on(search, trial, seen)
    search.seconds = seconds
    return result(step, "kept", reason, before, after, started, seen)


def _go_on(search: Search, trial: _Trial, seen: Quality | None) -> None:
    search.calibrated, search.choice = trial.calibrated, trial.choice
    search.quantized, search.seen = trial.quantized, seen
    search.best = None if seen is None else better_answers(seen, search.best)


def _gain_of_weights(quantized: QuantizedModel, search: Search, bench: Bench) -> float:
    """What a step gains in decibels where activations are exact; their roundings would hide it."""
    assert search.quantized is not None
    before = search.of_weights(search.quantized, bench.sets)
    gain = search.of_weights(quantized, bench.sets) - before
    return gain if math.isfinite(gain) else 0.0


def _idle(step: Step, search: Search, bench: Bench) -> str | None:
    """Why a fallback is not needed."""
    if not step.params.get("fallback") or search.quantized is None or search.seen is None:
        return None
    return None if refused(search.seen, bench) else f"{search.quantized.precision} holds the limits on quality"


def _trial(step: Step, search: Search, bench: Bench, thorough: bool) -> _Trial | str:
    """What the step makes, or why it makes nothing.

    Args:
        thorough: spare no sample; else enough of them to see whether the step is worth that.

    Raises:
        ToolchainError, ModelError, QualityError: a type that was asked for cannot be had.
    """
    if step.name == STATIC:
        found = _calibrated(search.model, search.choice, bench, bench.sets.calibration_samples)
        return found or "no operator of this model has an integer kernel"
    if step.name in REDUCED:
        made = _reduced(REDUCED[step.name], search.model, bench)
        if made is None:
            return "no weight of this model can be stored in fewer bits"
        return _Trial(calibrated=None, choice=Choice(), quantized=made)
    calibrated = search.calibrated
    assert calibrated is not None
    if step.name in SCALING:
        scaled = _scaled(step, calibrated, bench)
        if isinstance(scaled, str):
            return scaled
        samples = bench.sets.calibration_samples if thorough else bench.sets.choice_samples
        return _calibrated(scaled.model, search.choice, bench, samples) or "no operator has an integer kernel any more"
    change = cast(Mapping[str, object], step.params["change"])
    if change.get("ranges") in CUTTING and bench.sets.choice_metric() is None:
        return "the calibration set has no labels and metric: nobody could tell what is lost by what is cut off"
    if step.name == "weight-scales" and search.choice.rounding == "second-order":
        return "second-order rounding has taken its place: scales that cut weights off leave it less room"
    choice = dataclasses.replace(search.choice, **change)  # type: ignore[arg-type]
    if choice.rounding == "second-order" and not calibrated.moments:
        calibrated = dataclasses.replace(calibrated, moments=_moments(calibrated, bench))
    if choice.bias == "empirical" and search.choice.bias != "empirical":
        calibrated = dataclasses.replace(calibrated, shifts=shifts(calibrated, search.choice, bench))
        if not calibrated.shifts:
            return "no operator in int8 takes a bias"
    return _Trial(calibrated=calibrated, choice=choice, quantized=quantize.quantize(calibrated, choice))


def _scaled(step: Step, calibrated: Calibrated, bench: Bench) -> Equalized | str:
    model, placement = calibrated.model, calibrated.placement
    if step.name == "equalize":
        return equalize(model, placement, bench.sets.choice_samples)
    if not any(n.op_type == "LayerNormalization" for n in model.graph):
        return "no LayerNormalization"
    return smooth(model, placement, _peaks(model, bench, bench.sets.choice_samples))


def _peaks(model: Model, bench: Bench, samples: Callable[[], Iterable[Feeds]]) -> Mapping[str, np.ndarray]:
    return bench.journal.remember(
        "peaks", lambda: bench.journal.scope, lambda: channel_peaks(model, samples, budget=bench.memory)
    )


def _calibrated(model: Model, choice: Choice, bench: Bench, samples: Callable[[], Iterable[Feeds]]) -> _Trial | None:
    scheme = quantize.scheme_for(model, bench.target.int8, bench.target.opset_max)
    which = "all" if samples == bench.sets.calibration_samples else "choice"
    key = [str(bench.backend.NAME), dataclasses.asdict(scheme), which, sorted(bench.exclude), bench.memory]
    found = quantize.calibrate(
        model,
        bench.backend.TABLE,
        scheme,
        samples,
        exclude=bench.exclude,
        budget=bench.memory,
        remember=lambda collect: bench.journal.remember("statistics", lambda: [digest(model), *key], collect),
    )
    if found is None:
        return None
    return _Trial(calibrated=found, choice=choice, quantized=quantize.quantize(found, choice))


def _moments(calibrated: Calibrated, bench: Bench) -> Mapping[str, Moments]:
    """Second moments of the inputs of everything that has weights in int8."""
    placement, rules = calibrated.placement, calibrated.table.rules
    nodes = [n for n in (*placement.int8, *placement.weight_only) if rules[n.op_type].weight is not None]
    return bench.journal.remember(
        "moments",
        lambda: bench.journal.scope,
        lambda: collect_moments(
            calibrated.model,
            nodes,
            lambda: bench.sets.choice_samples(MOMENT_SAMPLES),
            budget=bench.memory,
            peaks={name: max(seen.maximum, -seen.minimum) for name, seen in calibrated.statistics.items()},
        ),
    )


def _reduced(kind: str, model: Model, bench: Bench) -> QuantizedModel | None:
    """The model with another type than static int8, None where it has no weights.

    Raises:
        ToolchainError, ModelError, QualityError: this type is not for this runtime, or for this network.
    """
    target, name = bench.target, str(bench.backend.NAME)
    if kind == "dynamic":
        known = bench.sets.calibration is not None
        peaks = _peaks(model, bench, bench.sets.calibration_samples) if known else None
        return quantize_dynamic(model, bench.backend.TABLE, target.int8, exclude=bench.exclude, peaks=peaks)
    if kind in ("float16", "bfloat16"):
        samples = None if bench.sets.calibration is None else bench.sets.calibration_samples
        return to_half(model, cast(Any, kind), target, samples, exclude=bench.exclude)
    four = kind == "weights-int4"
    moments = None
    if four and bench.sets.calibration is not None:
        nodes = [n for n in model.graph if n.op_type in ("MatMul", "Gemm")]
        moments = bench.journal.remember(
            "moments",
            lambda: bench.journal.scope,
            lambda: collect_moments(model, nodes, bench.sets.calibration_samples, budget=bench.memory),
        )
    return quantize_weights(
        model,
        bits=4 if four else 8,
        backend=name,
        exclude=bench.exclude,
        moments=moments,
        release=target.runtime.get(name),
        opset_max=target.opset_max if name == "onnxruntime" else None,
    )


def refused(seen: Quality, bench: Bench) -> str | None:
    """Why what the choice samples saw is not good enough to ship, or None. The evaluation set may still refuse."""
    return gate(seen, bench.limits)


def judge_choice(
    seen: Quality,
    before: Quality | None,
    min_gain: float,
    best: Quality | None = None,
    of_weights: float | None = None,
) -> tuple[str, bool]:
    """What a quantizer choice did on calibration samples, and whether it helped.

    Clipping can raise SQNR while clearly more answers change, or the metric of the set falls, so all three have their
    say: SQNR has to gain ``min_gain`` dB and neither of the others may fall by more than ``MAX_FALL``, and by more than
    two samples. Where the metric itself gains as much, SQNR may even fall by ``LOST_FOR_METRIC_DB``.

    Args:
        before: without the choice.
        best: with the best answers so far: small falls of many steps do not add up.
        of_weights: what it gains with exact activations, in dB. Then this has to reach ``min_gain``, and all in all it
            may cost ``LOST_TO_CHANCE_DB``.
    """
    reason = described(seen)
    if before is None:
        return reason, True
    best = best or before
    if not seen.finite and before.finite:
        return f"{reason}: outputs that are no numbers", False
    gain = seen.sqnr_db - before.sqnr_db if math.isfinite(before.sqnr_db) and math.isfinite(seen.sqnr_db) else 0.0
    allowed = max(MAX_FALL, FLIPS / max(seen.samples, 1))
    if best.metric is not None and (metric_gain(seen, best) or 0.0) < -allowed:
        return f"{reason}: {gain:+.2f} dB, but the metric was {best.metric.shown(best.metric.artifact)}", False
    best_top1, top1 = (1.0 if q.agreement is None else q.agreement.top1 for q in (best, seen))
    if best_top1 - top1 > allowed:
        return f"{reason}: {gain:+.2f} dB, but agreement was {best_top1:.1%} without it", False
    if of_weights is not None:
        reason, lost = f"{reason}: {of_weights:+.2f} dB of the weights alone", gain < -LOST_TO_CHANCE_DB
        if lost or of_weights < min_gain:
            return f"{reason}, {gain:+.2f} dB all in all", False
    elif gain < min_gain and not ((metric_gain(seen, before) or 0.0) > allowed and gain > -LOST_FOR_METRIC_DB):
        return f"{reason}: {gain:+.2f} dB, less than {min_gain:g} dB gained", False
    return f"{reason}: {gain:+.2f} dB", True


def metric_gain(seen: Quality, before: Quality) -> float | None:
    """By how much the metric of the set is better, as a share; None where it is not known."""
    if seen.metric is None or before.metric is None:
        return None
    return (before.metric.drop - seen.metric.drop) / before.metric.scale


def better_answers(seen: Quality, best: Quality | None) -> Quality:
    """The one with the better answers of the two: by the metric, else by agreement."""
    if best is None:
        return seen
    gain = metric_gain(seen, best)
    if gain is None:
        gain = 0.0 if seen.agreement is None or best.agreement is None else seen.agreement.top1 - best.agreement.top1
    return seen if gain > 0 else best
