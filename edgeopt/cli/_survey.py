"""How `edgeopt plan --target all` is shown: a table of profiles and backends, reasons below it, or JSON."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli import _options as options
from edgeopt.console import bytes_text, fields, result_table

if TYPE_CHECKING:
    from edgeopt.backends.operators import Missing
    from edgeopt.pipeline import Request
    from edgeopt.pipeline.fits import Need
    from edgeopt.pipeline.survey import Survey, Verdict

_NAMED = 3
"""Nodes that a reason names before "and n more"."""


def show(request: Request, *, as_json: bool) -> None:
    """Judge every profile and print the verdicts."""
    from edgeopt.pipeline.survey import survey

    found = survey(request)
    if as_json:
        options.emit_json(described(found))
        return
    open_dims = f" (open dimensions taken as {', '.join(found.assumed)})" if found.assumed else ""
    fields(
        [
            ("model", str(request.model)),
            ("inputs", ", ".join(found.inputs) + open_dims),
            ("computes in", f"{found.precision}, opset {found.opset}"),
            ("not counted", "the runtime itself; `edgeopt build` measures it"),
            *(("warning", text) for text in found.warnings),
            *(("not usable", f"{name}: {why}") for name, why in found.unusable),
        ],
        stream=sys.stdout,
    )
    numbers = _numbered(found.verdicts)
    click.echo()
    headers = ("target", "backend", "runs", "fits", *(f"{form} memory" for form in _FORMS), "why")
    result_table(headers, [_row(verdict, numbers) for verdict in found.verdicts], stream=sys.stdout)
    if numbers:
        click.echo()
        fields([(f"[{number}]", _sentence(missing)) for missing, number in numbers.items()], stream=sys.stdout)


_FORMS = ("float", "int8")


def _row(verdict: Verdict, numbers: dict[Missing, int]) -> tuple[str, ...]:
    release = f" {verdict.release}" if verdict.release else ""
    by_form = {need.form: need for need in verdict.needs}
    marks = " ".join(f"[{numbers[missing]}]" for missing in verdict.missing)
    why = "; ".join(filter(None, (marks, ", ".join(verdict.done), _over(verdict))))
    return (
        verdict.target,
        verdict.backend + release,
        _word(verdict.runs, "yes", "refused", "not known"),
        _word(verdict.fits, "yes", "no", "not known" if verdict.limits else "-"),
        *(_needed(by_form.get(form)) for form in _FORMS),
        why or "-",
    )


def _word(answer: bool | None, yes: str, no: str, neither: str) -> str:
    return neither if answer is None else yes if answer else no


def _needed(need: Need | None) -> str:
    if need is None:
        return "-"
    return f"over {bytes_text(need.weights)}" if need.model is None else bytes_text(need.model)


def _over(verdict: Verdict) -> str:
    """The limits, where no form is within them or where that is open."""
    if verdict.fits or not verdict.limits:
        return ""
    said = ", ".join(f"{name} {bytes_text(limit)} ({source})" for name, limit, source in verdict.limits)
    return f"limit: {said}" + ("" if verdict.fits is False else "; fix open dimensions with --shape")


def _numbered(verdicts: Sequence[Verdict]) -> dict[Missing, int]:
    found: dict[Missing, int] = {}
    for verdict in verdicts:
        for missing in verdict.missing:
            found.setdefault(missing, len(found) + 1)
    return found


def _sentence(missing: Missing) -> str:
    version = "" if missing.opset is None else f"-{missing.opset}"
    named = f"{missing.operator}{version}: " if missing.operator else ""
    more = f" and {len(missing.nodes) - _NAMED} more" if len(missing.nodes) > _NAMED else ""
    where = f" ({', '.join(missing.nodes[:_NAMED])}{more})" if missing.nodes else ""
    return f"{named}{missing.why}{where}. {missing.change}"


def described(found: Survey) -> dict[str, Any]:
    """The survey as plain JSON values."""
    raw = dataclasses.asdict(found)
    raw["verdicts"] = [_plain(verdict) for verdict in found.verdicts]
    raw["unusable"] = [{"target": name, "why": why} for name, why in found.unusable]
    return raw


def _plain(verdict: Verdict) -> dict[str, Any]:
    raw = dataclasses.asdict(verdict)
    raw["limits"] = [{"name": name, "bytes": limit, "from": source} for name, limit, source in verdict.limits]
    return raw
