"""The one type of a finding, and the words they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

NAMED = 4
"""How many nodes a sentence names before "and n more"."""

LEVELS = ("note", "warning", "refusal")
"""``note``: shown by inspect. ``warning``: also in the bundle. ``refusal``: a build stops, unless a flag says how."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about a network.

    Attributes:
        kind: ``training``, ``random``, ``quantized``, ``custom-operators``, ``subgraphs``, ``baked-dims``,
            ``fixed-dims``, ``half-floats``, or ``tensorrt``.
        text: one sentence without a full stop.
        nodes: keys of the nodes it is about.
        level: one of ``LEVELS``.
        remedy: what to do, for a refusal.
    """

    kind: str
    text: str
    nodes: tuple[str, ...] = ()
    level: str = "note"
    remedy: str | None = None


def listed(names: Sequence[str]) -> str:
    """``"a, b, c, d and 3 more"``."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``"1 node"``, ``"2 nodes"``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
