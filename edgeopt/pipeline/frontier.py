"""What candidates reached, which of them are worth having, and the words for a budget that none of them holds. Pure.

A point is one artifact of one candidate. Among those that hold the limits on quality a point is on the frontier when
no other is at least as good in bytes, memory, latency and quality and better in one (Pareto). An objective picks among
the points that hold the budget too. Figures closer than ``PARITY`` are the same to it, and the one that loses less
quality wins: measured memory and time never repeat exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.limits import Check, checked, lacking
from edgeopt.plan import StepResult
from edgeopt.quality import Quality
from edgeopt.report.text import size, size_unit
from edgeopt.target import Budget

PARITY = {"memory": 1.02, "latency": 1.05, "size": 1.0, "quality": 1.0}
"""A figure counts as the best one up to this factor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One artifact of one candidate.

    Attributes:
        candidate: name of the step.
        bytes, memory, runtime: of the file, of the peak that a budget counts, and of the runtime's part of that.
        predicted: bytes that the memory model said beforehand for the model's part; None where there is none.
        median_ms, load_ms: of a call, and of the longest load.
        loss: share of the metric or of the answers lost, 0 where neither is known.
        refused: why it does not hold the limits on quality, None where it does.
        checks: the lines of the budget.
        options: of the runner.
        kept: names of the steps of kind ``option`` that it has.
    """

    candidate: str
    backend: str
    precision: str
    bytes: int
    memory: int | None
    runtime: int | None
    predicted: int | None
    median_ms: float | None
    load_ms: float | None
    loss: float
    sqnr_db: float
    refused: str | None
    checks: tuple[Check, ...]
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    kept: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it holds the budget and the limits on quality."""
        return self.refused is None and all(check.ok for check in self.checks)

    @property
    def excess(self) -> float:
        """The worst line of the budget, as a factor of its limit."""
        return max((check.excess for check in self.checks), default=0.0)

    @property
    def figures(self) -> dict[str, float | None]:
        """What an objective or the frontier compares; less is better."""
        sqnr = 0.0 if self.sqnr_db == math.inf else 1e-3 * 10 ** (-max(self.sqnr_db, -100.0) / 20)
        quality = max(self.loss, 0.0) + sqnr  # SQNR decides where no answer changed
        return {"memory": self.memory, "latency": self.median_ms, "size": self.bytes, "quality": quality}


def points_of(made: Candidate, budget: Budget, *, plain: bool) -> list[Point]:
    """The artifacts of a candidate, the one that was not reduced only when ``plain``."""
    judged, measured = made.judged, made.measured
    outcome = judged.outcome
    found = []
    for precision, artifact in outcome.artifacts.items():
        if precision == outcome.plain and not plain:
            continue
        quality: Quality | None = judged.quality.get(precision)
        found.append(
            Point(
                candidate=f"{made.choice.name} {made.quantize}",
                backend=made.choice.name,
                precision=precision,
                bytes=artifact.bytes,
                memory=measured.peak_bytes(precision),
                runtime=measured.runtime_bytes(precision),
                predicted=made.predicted.get(precision),
                median_ms=measured.latency_ms(precision, 0.5),
                load_ms=measured.load_ms(precision),
                loss=_loss(quality),
                sqnr_db=math.inf if quality is None else quality.sqnr_db,
                refused=None if precision == outcome.plain else judged.refused,
                checks=checked(precision, outcome.artifacts, measured, budget),
                options=dict(artifact.options),
                kept=tuple(r.step.name for r in outcome.results if precision in _kept_by(r)),
            )
        )
    return found


def _kept_by(result: StepResult) -> Sequence[str]:
    """The artifacts that kept a run option."""
    found = result.found.get("kept", ()) if result.step.kind == "option" and result.status == "kept" else ()
    return found if isinstance(found, list | tuple) else ()


def _loss(quality: Quality | None) -> float:
    if quality is None:
        return 0.0
    if quality.metric is not None:
        return quality.metric.drop / quality.metric.scale
    return 0.0 if quality.agreement is None else 1 - quality.agreement.top1


def best(points: Sequence[Point], objective: str) -> Point | None:
    """The point to ship by an objective among those that fit; None where none does or none has the figure."""
    figures = [(point, point.figures) for point in points if point.fits and point.figures[objective] is not None]
    if not figures:
        return None

    def of(entry: tuple[Point, dict[str, float | None]], name: str) -> float:
        value = entry[1][name]
        return math.inf if value is None else value

    least = min(of(entry, objective) for entry in figures)
    equal = [entry for entry in figures if of(entry, objective) <= least * PARITY[objective]]
    return min(equal, key=lambda entry: (of(entry, "quality"), of(entry, "memory"), of(entry, "size")))[0]


def frontier(points: Sequence[Point]) -> list[Point]:
    """Points that hold the limits on quality and that no other such point dominates."""
    held = [point for point in points if point.refused is None]
    return [a for a in held if not any(_dominates(b, a) for b in held)]


def _dominates(b: Point, a: Point) -> bool:
    pairs = [(x, y) for x, y in zip(b.figures.values(), a.figures.values()) if x is not None and y is not None]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)


def section(points: Sequence[Point], chosen: Point | None, objective: str | None) -> dict[str, Any]:
    """The points as plain values, for the manifest and the report."""
    worth = frontier(points)
    return {
        "objective": objective,
        "points": [
            {
                **{key: value for key, value in vars(point).items() if key not in ("checks", "sqnr_db")},
                "options": dict(point.options),
                "kept": list(point.kept),
                "sqnr_db": point.sqnr_db if math.isfinite(point.sqnr_db) else None if point.sqnr_db > 0 else "-inf",
                "holds_budget": all(check.ok for check in point.checks),
                "over": {check.name: check.measured for check in point.checks if not check.ok},
                "on_frontier": point in worth,
                "chosen": point is chosen,
            }
            for point in points
        ],
    }


def label(point: Point, points: Sequence[Point]) -> str:
    """How a point is called among others."""
    several = len({p.backend for p in points}) > 1
    name = " with ".join(filter(None, (point.precision, " and ".join(point.kept))))
    return f"{name} in {point.backend}" if several else name


def said(point: Point) -> str:
    """What a point reached, in words."""
    parts = [size(point.bytes)]
    if point.memory is not None:
        foretold = "" if point.predicted is None else f" ({size(point.predicted)} of the model foretold)"
        parts.append(f"{size(point.memory)} at the peak{foretold}")
    if point.median_ms is not None:
        parts.append(f"{point.median_ms:.3g} ms")
    over = [f"{c.name} over by {_amount(c, c.measured - c.limit)}" for c in point.checks if c.measured and not c.ok]
    if point.refused is not None:
        over.append(point.refused)
    return f"{label(point, [point])}: {', '.join(parts)}" + (f"; {'; '.join(over)}" if over else "")


def nearest(points: Sequence[Point]) -> Point | None:
    """Of those that hold the limits on quality, the one whose worst line is nearest to its limit."""
    held = [point for point in points if point.refused is None]
    return min(held, key=lambda point: point.excess, default=None)


def shortfall(points: Sequence[Point]) -> str:
    """For each line that the nearest point breaks: the best that any reached, and what it lacks."""
    point = nearest(points)
    assert point is not None
    held = [p for p in points if p.refused is None]
    parts = []
    for index, line in enumerate(point.checks):
        if line.ok:
            continue
        known = [(figure, p) for p in held if (figure := p.checks[index].measured) is not None]
        figure, least = min(known, key=lambda entry: entry[0])
        parts.append(lacking(line, figure, label(least, points)))
    text = "over budget: " + "; ".join(parts)
    return text if len(parts) < 2 else f"{text}; the nearest to all of it is {label(point, points)}"


def helps(points: Sequence[Point], budget: Budget, hints: Sequence[str]) -> str:
    """What would help: a remedy in sentences.

    Args:
        hints: what was not tried, and how to have it tried.
    """
    point = nearest(points)
    assert point is not None
    words: list[str] = []
    runtimes = {p.backend: p.runtime for p in points if p.runtime is not None}
    limit = budget.peak_bytes
    if limit is not None and runtimes and min(runtimes.values()) >= limit:
        least = min(runtimes, key=lambda name: runtimes[name])
        words.append(
            f"No network fits: the runtime alone takes {size(runtimes[least])} ({least}). "
            f"The budget has to be above that."
        )
    else:
        raised = [_up(line) for line in point.checks if not line.ok]
        words.append(f"Raise the budget ({','.join(raised)}) or take a smaller network.")
        words += _nearer(point, points)
    return " ".join([*words, *hints])


def _amount(line: Check, value: float) -> str:
    return f"{value:.3g} ms" if line.unit == "ms" else size(value)


def _up(line: Check) -> str:
    """The limit that would be held, a little rounded up, as the option takes it."""
    figure = line.measured or 0.0
    factor, unit = (1.0, "ms") if line.unit == "ms" else size_unit(figure)
    value = figure / factor
    step = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1.0
    return f"{line.name}={math.ceil(value / step) * step:.6g}{unit}"


def _nearer(point: Point, points: Sequence[Point]) -> list[str]:
    """Those that would come nearer, and that quality alone keeps out."""
    nearer = [p for p in points if p.refused is not None and p.excess < point.excess]
    if not nearer:
        return []
    least = min(nearer, key=lambda p: p.excess)
    first = next(line for line in least.checks if line.excess == least.excess)
    reached = f"{first.name} {first.shown(first.measured or 0)} {first.unit}"
    return [f"{label(least, points)} comes nearer ({reached}) and is refused: {least.refused}."]
