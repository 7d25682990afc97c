"""Gates: limits on what B may cost against A, judged by the near end of the interval.

A gate is ``broken`` only where the whole interval lies beyond the limit, ``held`` where none of it does, else
``undecided``. ``not judged`` is a gate whose figure or interval is missing: it never passes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeopt.errors import BenchError, RegressionError

Json = Mapping[str, Any]

_SHARE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)")


_ROUNDING = 1e-12
"""A ratio of exactly 1.03 is within 3 %, whatever doubles make of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Shares of 1; None is no gate.

    Attributes:
        slowdown: of the median latency.
        growth: of the peak memory of runtime and model.
        drop: of the share of right answers.
    """

    slowdown: float | None = None
    growth: float | None = None
    drop: float | None = None


def parse_share(text: str) -> float:
    """Read ``3%`` or ``0.03``.

    Raises:
        ValueError: anything else; a bare number of 1 or more is refused, since 3 could be meant as 3 %.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a share like 3% or 0.03')
    value = float(match[1])
    if match[2]:
        value /= 100
    elif value >= 1:
        raise ValueError(f'"{text}" is ambiguous: write {match[1]}% or a share below 1')
    return value


def judge(limits: Limits, latency: Json, memory: Json, quality: Json) -> list[dict[str, Any]]:
    """The gates that were asked for, each with its state and one sentence.

    Args:
        latency, memory: ``ratio``, ``low``, ``high``, and ``reason`` where one is missing.
        quality: ``drop``, ``low``, ``high``, or ``compared`` False with a ``reason``.
    """
    gates = []
    if limits.slowdown is not None:
        gates.append(_ratio_gate("max-slowdown", "median latency", limits.slowdown, latency))
    if limits.growth is not None:
        gates.append(_ratio_gate("max-growth", "peak memory", limits.growth, memory))
    if limits.drop is not None:
        figure = f"{'rise' if quality.get('better') == 'lower' else 'drop'} in {quality.get('kind', 'quality')}"
        gates.append(_gate("max-drop", figure, limits.drop, _drop(quality), quality.get("reason"), _words(quality)))
    return gates


def _drop(quality: Json) -> tuple[float | None, ...]:
    """The drop and its interval as shares: of 1, or of A's own value where the metric is no share."""
    if not quality["compared"]:
        return (None, None, None)
    scale = max(abs(quality["a"]), 1e-30) if quality.get("unit") == "number" else 1.0
    return tuple(None if (value := quality[key]) is None else value / scale for key in ("drop", "low", "high"))


def _words(quality: Json) -> Callable[[float], str]:
    return {"number": change, "index": plain}.get(quality.get("unit", "share"), points)


def _ratio_gate(name: str, figure: str, limit: float, found: Json) -> dict[str, Any]:
    known = tuple(None if found[key] is None else found[key] - 1 for key in ("ratio", "low", "high"))
    return _gate(name, figure, limit, known, found.get("reason"), change)


def _gate(
    name: str, figure: str, limit: float, known: Sequence[float | None], reason: str | None, words: Any
) -> dict[str, Any]:
    value, low, high = known
    gate = {"name": name, "figure": figure, "limit": limit, "value": value, "low": low, "high": high}
    unit = {change: " %", points: " points"}.get(words)
    allowed = f"{limit:g} allowed" if unit is None else f"{100 * limit:g}{unit} allowed"
    if value is None or low is None or high is None:
        return {**gate, "state": "not judged", "text": f"{name}: {figure} was not compared: {reason or 'no interval'}"}
    reached = limit + _ROUNDING
    state = "broken" if low > reached else "held" if high <= reached else "undecided"
    text = f"{name}: {figure} {words(value)}, 95 % interval {words(low)} to {words(high)}; {allowed}"
    return {**gate, "state": state, "text": text}


def change(value: float) -> str:
    """A relative change as ``+3.1 %``."""
    return f"{100 * value:+.{_places(value)}f} %"


def points(value: float) -> str:
    """A drop in percentage points, as ``+0.25 points``; positive where B is worse."""
    return f"{100 * value:+.{_places(value)}f} points"


def plain(value: float) -> str:
    """A drop of a figure without a unit, as ``+0.0025``; positive where B is worse."""
    return f"{value:+.4f}"


def _places(value: float) -> int:
    return 2 if abs(value) < 0.0995 else 1


def enforce(gates: Sequence[Json], *, strict: bool) -> list[str]:
    """Raise for what a gate found; returns a warning for each undecided gate otherwise.

    Args:
        strict: an undecided gate counts as broken.

    Raises:
        RegressionError: at least one gate is broken; all of them are in the message.
        BenchError: a gate could not be judged.
    """
    by_state = {state: [g["text"] for g in gates if g["state"] == state] for state in ("broken", "undecided")}
    unjudged = [g["text"] for g in gates if g["state"] == "not judged"]
    failed = by_state["broken"] + [f"{text} (undecided, --strict)" for text in by_state["undecided"] if strict]
    longer = "An undecided gate needs more: --effort release, more --seconds, a larger set."
    if failed:
        told = "; ".join([*failed, *(f"{text} (not judged)" for text in unjudged)])
        raise RegressionError(f"B is worse than A: {told}", remedy=longer if not by_state["broken"] else None)
    if unjudged:
        raise BenchError("; ".join(unjudged), remedy=_remedy(gates))
    return [f"{text}: undecided, the interval reaches over the limit" for text in by_state["undecided"]]


def _remedy(gates: Sequence[Json]) -> str:
    names = {g["name"] for g in gates if g["state"] == "not judged"}
    if "max-drop" in names:
        return "Give --data SET to judge both on a set now, or leave --max-drop out."
    return "Measure longer (raise --seconds), on a machine that tells, or leave the gate out."
