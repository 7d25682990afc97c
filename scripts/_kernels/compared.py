"""One verdict of the plan beside what a runtime says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """One verdict: ``planned`` and ``happened`` are True for runs; None where the plan leaves it open."""

    where: str
    what: str
    planned: bool | None
    happened: bool
    plan: str
    said: str

    @property
    def agrees(self) -> bool:
        """Whether the two say the same; an open verdict contradicts nothing."""
        return self.planned is None or self.planned == self.happened


def compared(where: str, what: str, missing: Sequence[Any], refused: str) -> Compared:
    """A verdict from the reasons against a graph, beside what the runtime says; ``""`` where it takes it."""
    certain = any(one.certain for one in missing)
    planned = False if certain else None if missing else True
    plan = "; ".join(f"{one.operator} {one.why}" for one in missing)
    return Compared(where=where, what=what, planned=planned, happened=not refused, plan=plan, said=refused[:160])
