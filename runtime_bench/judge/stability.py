"""Can the figures of a measurement be trusted? A grade with coded reasons, each with what to do about it.

- ``stable``: nothing puts the latencies in doubt.
- ``noisy``: they hold, with wider bounds than a quiet machine gives.
- ``unstable``: another run would give others; do not compare or quote them.
- ``invalid``: they are not what they claim to be, or there are none.

Every threshold stands in the reason that it made. On independent noise of 5 % the grade is ``stable`` in at least 19
of 20 measurements.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from runtime_bench.judge import conditions, reasons, validity
from runtime_bench.judge.comparison import compare
from runtime_bench.judge.reasons import Case, Reason
from runtime_bench.judge.summary import summarize

GRADES = ("stable", "noisy", "unstable", "invalid")
"""From best to worst."""

CHECKS: Sequence[Callable[[Case], Iterator[Reason]]] = (
    validity.no_sample,
    validity.provider,
    validity.precision,
    validity.failures,
    reasons.drift,
    reasons.warmup,
    reasons.spread,
    reasons.modality,
    reasons.processes,
    validity.memory,
    reasons.deadline,
    reasons.autocorrelation,
    validity.amount,
)


def summaries(measurement: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """``summarize`` for every subject of a measurement, by name."""
    arguments = measurement.get("load"), measurement.get("environment"), measurement.get("affinity")
    return {subject["name"]: summarize(subject, *arguments) for subject in measurement["subjects"]}


def grade(
    measurement: Mapping[str, Any], summarized: Optional[Mapping[str, Mapping[str, Any]]] = None
) -> dict[str, Any]:
    """Grade a measurement; a pure function of its JSON.

    Args:
        measurement: as ``protocol.measure`` returns it.
        summarized: ``summaries(measurement)``, where the caller has them.

    Returns ``{"grade", "subjects": {name: grade}, "reasons": [{"code", "severity", "subject", "value", "threshold",
    "text", "advice"}]}``. ``severity`` is the grade that a reason forces, ``info`` forces none; ``subject`` is None
    where it concerns all. Reasons come worst first.
    """
    known = summaries(measurement) if summarized is None else summarized
    found = list(chain.from_iterable(check(measurement) for check in conditions.CHECKS))
    for subject in measurement["subjects"]:
        case = Case(subject, known[subject["name"]], measurement)
        found += chain.from_iterable(check(case) for check in CHECKS)
    found += _slower_in_int8(measurement)
    found.sort(key=lambda reason: -_rank(reason.severity))
    names = [subject["name"] for subject in measurement["subjects"]]
    return {
        "grade": _worst(found),
        "subjects": {name: _worst([r for r in found if r.subject in (None, name)]) for name in names},
        "reasons": [reason._asdict() for reason in found],
    }


def derive(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """The ``results`` of a measurement: ``{"summaries": {name: summary}, "stability": grade}``."""
    known = summaries(measurement)
    return {"summaries": known, "stability": grade(measurement, known)}


def results(measurement: Mapping[str, Any]) -> Mapping[str, Any]:
    """The results that a measurement carries, or else those derived from it."""
    return measurement.get("results") or derive(measurement)


def _slower_in_int8(measurement: Mapping[str, Any]) -> Iterator[Reason]:
    """An int8 subject that takes longer than the first one that is not int8."""
    subjects = measurement["subjects"]
    others = [subject["name"] for subject in subjects if subject.get("precision") != "int8"]
    for name in [subject["name"] for subject in subjects if subject.get("precision") == "int8" and others]:
        found = compare(measurement, others[0], name)
        if found["verdict"] == "slower":
            text = "{}: takes {:.2f} times as long as {} here".format(name, found["ratio"], others[0])
            advice = "ship {} if memory allows, or measure on the target".format(others[0])
            yield Reason("int8_slower", "info", name, found["ratio"], 1, text, advice)


def _rank(severity: str) -> int:
    return GRADES.index(severity) if severity in GRADES else 0


def _worst(found: Sequence[Reason]) -> str:
    return GRADES[max((_rank(reason.severity) for reason in found), default=0)]
