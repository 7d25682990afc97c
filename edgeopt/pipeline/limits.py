"""The lines of a budget against what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from edgeopt.backends import Artifact
from edgeopt.pipeline.measure import Measured
from edgeopt.target import Budget

_UNITS = {"memory": "bytes of peak memory", "size": "bytes of artifact"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One budget line against a measured figure. A line that could not be measured is not ok."""

    name: str
    limit: float
    measured: float | None
    ok: bool

    @property
    def unit(self) -> str:
        """What the figures count."""
        return _UNITS.get(self.name, "ms")

    @property
    def excess(self) -> float:
        """By which factor the figure is over the limit; infinite where there is none."""
        return float("inf") if self.measured is None else self.measured / self.limit

    def shown(self, value: float) -> str:
        """A figure of this line without its unit."""
        return f"{value:.4g}" if self.unit == "ms" else f"{value:,.0f}"


def checked(precision: str, artifacts: Mapping[str, Artifact], measured: Measured, budget: Budget) -> tuple[Check, ...]:
    """The budget's lines against measured figures."""
    percentile = budget.latency_percentile
    lines = (
        ("memory", budget.peak_bytes, lambda: measured.peak_bytes(precision)),
        ("size", budget.artifact_bytes, lambda: artifacts[precision].bytes),
        (f"p{percentile * 100:g}", budget.latency_ms, lambda: measured.latency_ms(precision, percentile)),
        ("load", budget.load_ms, lambda: measured.load_ms(precision)),
    )
    return tuple(
        Check(name=name, limit=limit, measured=figure, ok=figure is not None and figure <= limit)
        for name, limit, ask in lines
        if limit is not None
        for figure in (ask(),)
    )


def broken_by(precision: str, artifacts: Mapping[str, Artifact], measured: Measured, budget: Budget) -> list[Check]:
    """The lines that an artifact does not hold; one that was not built holds none."""
    if precision not in artifacts:
        return [Check(name="artifact", limit=0, measured=None, ok=False)]
    return [check for check in checked(precision, artifacts, measured, budget) if not check.ok]


def shortfall(artifacts: Mapping[str, Artifact], measured: Measured, broken: Sequence[Check]) -> str:
    """For each broken line the best figure that any artifact reached, and what it lacks."""
    parts = []
    for line in broken:
        figures = {p: next(iter(checked(p, artifacts, measured, _only(line)))).measured for p in artifacts}
        known = {p: f for p, f in figures.items() if f is not None}
        if not known:
            parts.append(unmeasured(line, measured))
            continue
        best = min(known, key=lambda p: known[p])
        parts.append(lacking(line, known[best], best))
    return "over budget: " + "; ".join(parts)


def lacking(line: Check, figure: float, what: str) -> str:
    """The nearest that was reached of one line, and what it lacks."""
    return (
        f"the smallest {line.name} reached is {line.shown(figure)} {line.unit} ({what}); "
        f"the budget is {line.shown(line.limit)}: {line.shown(figure - line.limit)} too many"
    )


def unmeasured(line: Check, measured: Measured) -> str:
    """Why a line has no figure."""
    why = "nothing was measured" if measured.record is None else "this machine does not tell"
    if line.unit == "ms" and line.name != "load":
        why = measured.missing(float(line.name[1:]) / 100)
    return f"{line.name} could not be measured ({why}), so the budget of {line.limit:,.6g} {line.unit} is not held"


def _only(line: Check) -> Budget:
    if line.name == "memory":
        return Budget(peak_bytes=int(line.limit))
    if line.name == "size":
        return Budget(artifact_bytes=int(line.limit))
    if line.name == "load":
        return Budget(load_ms=line.limit)
    return Budget(latency_ms=line.limit, latency_percentile=float(line.name[1:]) / 100)
