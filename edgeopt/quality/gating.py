"""Is it good enough to ship: limits on a comparison, in order of what they say."""

from __future__ import annotations

from collections.abc import Iterable

from edgeopt.budget import Budget
from edgeopt.plan import Drift
from edgeopt.quality.result import Metric, Quality

LOST_DB = 6.0
"""A channel whose error is half its signal or more is lost, whatever the whole tensor says."""

FLOOR_DB = 10.0
"""Without labels: the error of every output stays below a tenth of its energy."""

DEFAULT_MAX_DROP = 0.01
"""When the user names no limit, the drop of the metric must not lie above this with its whole interval."""

DROP_CEILING = 0.05
"""And never above this, however few samples there are."""


def gate(quality: Quality, limits: Budget) -> str | None:
    """Why the artifact is not good enough, or None.

    In order: non-finite values; a channel of an output that is lost; limits that were stated for SQNR and largest
    errors; the metric's drop, and an output that is lost as a whole; without labels the agreement when a drop was
    asked for, and the SQNR floor. A limit that was asked for binds the drop itself; without one the drop must be shown:
    1 % of 400 samples is four of them, within chance.
    """
    max_drop = limits.max_drop
    if not quality.finite:
        return "the artifact gives NaN, infinity or another shape where the float model gives numbers"
    if (lost := _lost(quality.slices)) is not None:
        return lost
    if (over := _stated(quality, limits)) is not None:
        return over
    if quality.metric is not None:
        reason = _metric_reason(quality.metric, max_drop)
        return reason or (_lost(quality.outputs) if max_drop is None else None)
    if max_drop is not None and quality.agreement is not None and 1 - quality.agreement.top1 > max_drop:
        agreement, of = quality.agreement.top1, quality.agreement.of
        found = f"{of} agreement with the float model is {agreement:.2%} on {quality.samples} samples"
        return f"{found}, more than {max_drop:.2%} below 100 %"
    if quality.sqnr_db < FLOOR_DB:
        worst = min(quality.outputs, key=lambda d: d.sqnr_db)
        return f"{worst.output}: SQNR {worst.sqnr_db:.1f} dB is below the floor of {FLOOR_DB:.0f} dB"
    return None


def _stated(quality: Quality, limits: Budget) -> str | None:
    """A stated limit on SQNR or on the largest error of an output that does not hold."""
    for drift in quality.outputs:
        if limits.min_sqnr_db is not None and drift.sqnr_db < limits.min_sqnr_db:
            return f"{drift.output}: SQNR {drift.sqnr_db:.1f} dB is below the {limits.min_sqnr_db:g} dB asked for"
        most = limits.max_error.get(drift.output)
        if most is not None and not drift.max_abs <= most:
            return f"{drift.output}: largest error {drift.max_abs:.3g} is over the {most:g} asked for"
    return None


def _lost(found: Iterable[Drift]) -> str | None:
    for drift in found:
        if drift.sqnr_db < LOST_DB:
            return f"{drift.output} is lost: SQNR {drift.sqnr_db:.1f} dB, largest error {drift.max_abs:.3g}"
    return None


def _metric_reason(metric: Metric, max_drop: float | None) -> str | None:
    verb = "falls" if metric.artifact < metric.reference else "rises"
    moves = f"{metric.name} {verb} from {metric.shown(metric.reference)} to {metric.shown(metric.artifact)}"
    of = " of the float model's" if metric.unit == "number" else ""
    drop, half = metric.drop / metric.scale, (metric.half_width or 0.0) / metric.scale
    exact, round_ = (".4g", "g") if metric.unit == "index" else (".2%", ".0%")
    if max_drop is not None:
        return f"{moves}, more than {max_drop:{exact}}{of} allowed" if drop > max_drop else None
    if drop > DROP_CEILING:
        return f"{moves}, more than {DROP_CEILING:{round_}}{of}"
    if drop - half > DEFAULT_MAX_DROP:
        interval = f"95 % interval of the drop +-{half:{exact}}"
        return f"{moves} ({interval}), clearly more than {DEFAULT_MAX_DROP:{round_}}{of}"
    return None
