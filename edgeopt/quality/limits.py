"""Every limit of the gate with what was measured and how sure that is: what a person reads, beside the verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from edgeopt.budget import Budget
from edgeopt.plan import Drift
from edgeopt.quality.gating import DEFAULT_MAX_DROP, DROP_CEILING, FLOOR_DB, LOST_DB
from edgeopt.quality.result import Metric, Quality
from edgeopt.quality.spread import most_share

Measure = Literal["dB", "share", "index", "number", "samples"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit on quality and the figure that it binds.

    Attributes:
        name: what is limited: ``finite``, ``lost``, ``sqnr``, ``error``, ``drop``, ``shown-drop``, ``agreement``.
        of: the output, slice, metric or kind of answer.
        at_least: the figure must reach the limit; else it must not be over it.
        measured: infinite for the SQNR of an output without any error.
        low, high: the paired 95 % interval of ``measured``; None where there is none, ``note`` then says why.
        unit: of all four figures. ``share`` is of 1, of the float model's own value for a metric in a unit of its own.
        stated: a person asked for it; else it is a default.
    """

    name: str
    of: str
    limit: float
    at_least: bool
    measured: float
    low: float | None
    high: float | None
    unit: Measure
    stated: bool
    ok: bool
    note: str = ""


def limits(quality: Quality, budget: Budget) -> tuple[Limit, ...]:
    """All limits that ``gate`` looks at. It refuses exactly where one of them does not hold."""
    if not quality.samples:
        return ()
    found = [_finite(quality)]
    if quality.slices:
        found.append(_sqnr("lost", _worst(quality.slices), LOST_DB, quality, stated=False))
    if budget.min_sqnr_db is not None:
        found += [_sqnr("sqnr", drift, budget.min_sqnr_db, quality, stated=True) for drift in quality.outputs]
    found += [_error(d, budget.max_error[d.output], quality) for d in quality.outputs if d.output in budget.max_error]
    if quality.metric is not None:
        found += _drops(quality, quality.metric, budget.max_drop)
        if budget.max_drop is None and quality.outputs:
            found.append(_sqnr("lost", _worst(quality.outputs), LOST_DB, quality, stated=False))
    elif budget.max_drop is not None and quality.agreement is not None:
        found.append(_agreement(quality, budget.max_drop))
    if quality.metric is None and quality.outputs:
        found.append(_sqnr("sqnr", _worst(quality.outputs), FLOOR_DB, quality, stated=False))
    return tuple(found)


def _worst(drifts: tuple[Drift, ...]) -> Drift:
    return min(drifts, key=lambda d: d.sqnr_db)


def _finite(quality: Quality) -> Limit:
    broken = quality.broken or int(not quality.finite)
    none = f"at most {most_share(quality.units):.2%} of all inputs (95 %)" if quality.units and not broken else ""
    return Limit(
        name="finite",
        of="all outputs",
        limit=0.0,
        at_least=False,
        measured=float(broken),
        low=None,
        high=None,
        unit="samples",
        stated=False,
        ok=quality.finite,
        note=none,
    )


def _sqnr(name: str, drift: Drift, limit: float, quality: Quality, *, stated: bool) -> Limit:
    half = quality.half_widths_db.get(drift.output)
    why = "" if half is not None else "no error" if drift.sqnr_db == math.inf else "too few independent samples"
    return Limit(
        name=name,
        of=drift.output,
        limit=limit,
        at_least=True,
        measured=drift.sqnr_db,
        low=None if half is None else drift.sqnr_db - half,
        high=None if half is None else drift.sqnr_db + half,
        unit="dB",
        stated=stated,
        ok=not drift.sqnr_db < limit,
        note=why,
    )


def _error(drift: Drift, limit: float, quality: Quality) -> Limit:
    """A largest value has no interval; what the samples tell is how rare a larger one is."""
    ok = drift.max_abs <= limit
    rare = ""
    if ok and quality.units:
        rare = f"; at most {most_share(quality.units):.2%} of all inputs are over the limit (95 %)"
    return Limit(
        name="error",
        of=drift.output,
        limit=limit,
        at_least=False,
        measured=drift.max_abs,
        low=None,
        high=None,
        unit="number",
        stated=True,
        ok=ok,
        note=f"a maximum{rare}",
    )


def _drops(quality: Quality, metric: Metric, max_drop: float | None) -> Iterator[Limit]:
    scale, unit = metric.scale, "index" if metric.unit == "index" else "share"
    drop, half, paired = metric.drop / scale, metric.half_width, quality.paired
    low = high = None
    note = "too few independent samples"
    if paired is not None:
        low, high = paired.low, paired.high
        note = f"{paired.lost} right before and wrong after, {paired.gained} the other way round; adjusted interval"
    elif half is not None:
        low, high, note = drop - half / scale, drop + half / scale, ""
    most = DROP_CEILING if max_drop is None else max_drop

    def row(name: str, limit: float, measured: float, interval: tuple[float | None, float | None], said: str) -> Limit:
        return Limit(
            name=name,
            of=metric.name,
            limit=limit,
            at_least=False,
            measured=measured,
            low=interval[0],
            high=interval[1],
            unit="index" if unit == "index" else "share",
            stated=max_drop is not None,
            ok=not measured > limit,
            note=said,
        )

    yield row("drop", most, drop, (low, high), note)
    if max_drop is None:
        said = "the drop less 1.96 standard errors: what the samples show beyond chance"
        yield row("shown-drop", DEFAULT_MAX_DROP, drop - (half or 0.0) / scale, (None, None), said)


def _agreement(quality: Quality, max_drop: float) -> Limit:
    assert quality.agreement is not None
    share, interval = quality.agreement.top1, quality.agreement_interval or (None, None)
    return Limit(
        name="agreement",
        of=quality.agreement.of,
        limit=1 - max_drop,
        at_least=True,
        measured=share,
        low=interval[0],
        high=interval[1],
        unit="share",
        stated=True,
        ok=not 1 - share > max_drop,
        note="" if interval[0] is not None else "too few independent samples",
    )
