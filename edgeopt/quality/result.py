"""What a comparison over a set found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from edgeopt.metrics.scorer import Better, Unit
from edgeopt.outcomes import Drop, Outcomes
from edgeopt.plan import Drift
from edgeopt.quality.worst import WorstSample

DIGITS: Mapping[Unit, str] = {"share": ".2%", "index": ".4f", "number": ".4g"}
"""How a value of a metric is written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """Share of samples on which the answer equals the float model's; a tie for the best class counts as wrong.

    ``of`` says what an answer is: ``"top-1"``, the side of a threshold, a decoded text.
    """

    top1: float
    ties: float
    of: str = "top-1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """The set's metric for the float model and for the artifact; ``drop`` is their difference.

    Attributes:
        half_width: of the paired 95 % interval of the drop, see ``metrics.half_width``; None where it is not known.
        better: ``"higher"`` or ``"lower"``.
        unit: ``"share"``: in percent, a drop in points; ``"index"``: a figure of at most 1 without a unit;
            ``"number"``: in a unit of its own.
    """

    name: str
    reference: float
    artifact: float
    half_width: float | None = 0.0
    better: Better = "higher"
    unit: Unit = "share"

    @property
    def drop(self) -> float:
        """What the artifact lost, in the metric's own unit; negative where it is better."""
        return self.reference - self.artifact if self.better == "higher" else self.artifact - self.reference

    @property
    def scale(self) -> float:
        """What a limit is a share of: 1, or the float model's own value of a metric in a unit of its own."""
        return max(abs(self.reference), 1e-30) if self.unit == "number" else 1.0

    def shown(self, value: float) -> str:
        """A value of the metric as a person reads it."""
        return f"{value:{DIGITS[self.unit]}}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """The comparison over a set: one Drift per output, the worst slices, agreement and metric where they exist.

    ``outcomes`` has the artifact sample by sample: by the metric where that is a mean over samples, else whether its
    answers are the float model's; None where the outputs hold no answer.

    Attributes:
        broken: samples with NaN, infinity or another shape where the float model gives numbers.
        units: samples, or groups of them, that are independent of each other.
        half_widths_db: of the 95 % interval of the SQNR, by output or slice; nothing where it is not known.
        agreement_interval: the 95 % interval of ``agreement.top1``.
        paired: of a metric that is right or wrong by sample, where each stands alone: what was lost and gained.
        worst: the samples on which the artifact is worst, where they were asked for.
    """

    samples: int
    outputs: tuple[Drift, ...]
    slices: tuple[Drift, ...]
    agreement: Agreement | None
    metric: Metric | None
    finite: bool
    outcomes: Outcomes | None = None
    broken: int = 0
    units: int = 0
    half_widths_db: Mapping[str, float] = dataclasses.field(default_factory=dict)
    agreement_interval: tuple[float, float] | None = None
    paired: Drop | None = None
    worst: tuple[WorstSample, ...] = ()

    @property
    def sqnr_db(self) -> float:
        """The lowest SQNR of any output."""
        return min((d.sqnr_db for d in self.outputs), default=math.inf)
