"""How a build ends that found nothing to ship: what it reached, what that lacks, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeopt import bundle
from edgeopt.backends.registry import BACKENDS, INSTALL
from edgeopt.errors import BenchError, BudgetError, EdgeoptError, QualityError
from edgeopt.memory import footprint
from edgeopt.pipeline import frontier
from edgeopt.pipeline.candidate import Brief
from edgeopt.pipeline.frontier import Point
from edgeopt.plan import StepResult
from edgeopt.report.text import size


def lacking(
    points: Sequence[Point], rows: Sequence[StepResult], diaries: Mapping[str, tuple[StepResult, ...]], brief: Brief
) -> EdgeoptError:
    """Why nothing ships: the nearest that was reached, what it lacks, what would help, and the diary.

    Args:
        points: what the candidates reached; one at least holds the limits on quality.
        rows: the candidates as steps.
        diaries: the steps of each candidate by its name.
    """
    point = frontier.nearest(points)
    objective = brief.request.objective
    assert point is not None
    if all(check.ok for check in point.checks):
        return BenchError(
            f"the objective {objective} needs a figure that was not measured here", remedy="Measure: --effort quick."
        )
    fitting = [p for p in points if p.refused is not None and all(c.ok for c in p.checks)]
    diary = bundle.diary_rows((*diaries.get(point.candidate, ()), *rows))
    if fitting:
        least = fitting[0]
        return QualityError(
            f"the budget needs {frontier.label(least, points)}, and {least.precision} does not hold the quality: "
            f"{least.refused}",
            remedy="Raise the limits on quality or the budget, add calibration data, or keep layers in float with "
            "--exclude.",
        )
    return BudgetError(
        frontier.shortfall(points),
        remedy=frontier.helps(points, brief.budget, _hints(brief)),
        diary=diary,
    )


def _hints(brief: Brief) -> Sequence[str]:
    """What was not tried, and how to have it tried."""
    request, words = brief.request, []
    if brief.sets.calibration is None and request.quantize == "auto" and brief.admitted.quantizes:
        words.append("Real inputs (--calib) would let int8 be tried.")
    if request.quantize != "auto":
        words.append(f"Without --quantize {request.quantize} other reductions would be tried.")
    missing = [n for n in brief.target.backends if n in BACKENDS and n in INSTALL and BACKENDS[n].probe() is not None]
    if request.backend is not None and len(brief.target.backends) > 1:
        words.append(f"Without --backend {request.backend} the target's other runtimes would be tried.")
    words += [f"{name} is not installed here: {INSTALL[name]}." for name in missing if request.backend is None]
    cost = footprint(brief.model)
    live = cost.peak_activation_bytes
    if brief.budget.peak_bytes is not None and live is not None and live > cost.weight_bytes:
        words.append(f"Activations are {size(live)} of it at the peak: a smaller input (--shape) helps most.")
    return words
