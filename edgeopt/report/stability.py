"""Whether the figures can be trusted: the grade of a measurement, its reasons and what to do about them, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import text
from edgeopt.report.grid import Cell, Grid, grid

Json = dict[str, Any]

GRADES = ("stable", "noisy", "unstable", "invalid")
"""From best to worst."""

SIGNS = {"stable": "✓", "noisy": "≈", "unstable": "⚠", "invalid": "✗", "info": "–"}
MEANING = {
    "stable": "nothing was found that puts the latencies in doubt",
    "noisy": "the latencies hold, with wider bounds than a quiet machine gives",
    "unstable": "do not compare or quote these latencies",
    "invalid": "these latencies do not say what they seem to say",
}


def ordered(stability: Mapping[str, Any] | None) -> list[Json]:
    """The reasons that force a grade, worst first; notes (``info``) are left out."""
    reasons = [r for r in (stability or {}).get("reasons", []) if r["severity"] in GRADES[1:]]
    return sorted(reasons, key=lambda r: -GRADES.index(r["severity"]))


def notes(stability: Mapping[str, Any] | None) -> list[Json]:
    """The reasons that force no grade."""
    return [r for r in (stability or {}).get("reasons", []) if r["severity"] not in GRADES]


def line(stability: Mapping[str, Any], first: str = "") -> str:
    """The grade with its worst reason, told for the subject ``first`` if it can be, and how many more there are."""
    found = grouped(stability, first)
    if not found:
        return str(stability["grade"])
    more = f" (and {text.plural(len(found) - 1, 'more reason')} in the report)" if len(found) > 1 else ""
    told, advice = found[0]
    return f"{stability['grade']}: {told}{': ' if advice else ''}{advice}{more}"


def kinds(reasons: Sequence[Json], first: str = "") -> list[list[Json]]:
    """Reasons of one kind together, in the order of the kinds; the one of the subject ``first`` leads its kind."""
    found: dict[tuple[str, str], list[Json]] = {}
    for reason in reasons:
        found.setdefault((reason["severity"], reason["code"]), []).append(reason)
    return [sorted(group, key=lambda r: r.get("subject") != first) for group in found.values()]


def grouped(stability: Mapping[str, Any] | None, first: str = "") -> list[tuple[str, str]]:
    """Kinds of reasons with advice, worst first, told for the subject ``first`` where it has them."""
    found = []
    for lead, *others in kinds(ordered(stability), first):
        also = ", ".join(str(r["subject"]) for r in others)
        told = str(lead["text"]).rstrip(".") + (f" (likewise {also})" if also else "")
        found.append((told, str(lead.get("advice") or "").rstrip(".")))
    return found


def badge(stability: Mapping[str, Any] | None, reason: str = "", first: str = "", most: int = 2) -> Json:
    """What the first screen shows: sign, word, meaning, and at most so many kinds of reasons with advice.

    Args:
        stability: None where nothing was measured; then ``reason`` says why.
        reason: see there.
        first: the subject whose reasons are told where several have the same.
        most: kinds of reasons.
    """
    if stability is None:
        return {"grade": "unknown", "sign": "–", "word": "not measured", "meaning": reason, "reasons": [], "more": 0}
    grade, found = stability["grade"], grouped(stability, first)
    return {
        "grade": grade,
        "sign": SIGNS[grade],
        "word": grade,
        "meaning": MEANING[grade],
        "reasons": found[:most],
        "more": max(0, len(found) - most),
    }


def table(reasons: Sequence[Json], first: str = "") -> Grid:
    """Kinds of reasons with their advice; what holds for further subjects stands below."""
    rows = []
    for lead, *others in kinds(reasons, first):
        word = f"{SIGNS.get(lead['severity'], '–')} {lead['severity'].replace('info', 'note')}"
        more = "; ".join(str(r["text"]).rstrip(".") for r in others)
        weight = Cell(text=word, css=lead["severity"])
        rows.append((weight, Cell(text=lead["text"], small=more), lead.get("advice") or "–"))
    return grid(("Grade", "=What was found", "=Advice"), rows)


def of_subject(stability: Mapping[str, Any] | None, names: Sequence[str]) -> str:
    """The worst grade among the named subjects and the reasons that concern all of them."""
    if stability is None:
        return "stable"
    grades = [g for n in names if (g := stability.get("subjects", {}).get(n)) in GRADES]
    grades += [r["severity"] for r in ordered(stability) if r.get("subject") is None]
    return max(grades, key=GRADES.index, default="stable")
