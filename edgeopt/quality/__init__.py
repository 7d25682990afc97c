"""Is the changed model still the model: drift against the float reference, agreement, the task's metric, the gate.

Everything streams: one sample's outputs are in memory at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from edgeopt import metrics
from edgeopt.calibration.types import Carried
from edgeopt.errors import CalibrationError
from edgeopt.metrics import Label, MetricSpec, Rows, Scorer
from edgeopt.outcomes import SampleDigest
from edgeopt.quality.gating import DEFAULT_MAX_DROP as DEFAULT_MAX_DROP
from edgeopt.quality.gating import DROP_CEILING as DROP_CEILING
from edgeopt.quality.gating import FLOOR_DB as FLOOR_DB
from edgeopt.quality.gating import LOST_DB as LOST_DB
from edgeopt.quality.gating import gate as gate
from edgeopt.quality.limits import Limit as Limit
from edgeopt.quality.limits import limits as limits
from edgeopt.quality.result import DIGITS as DIGITS
from edgeopt.quality.result import Agreement as Agreement
from edgeopt.quality.result import Metric as Metric
from edgeopt.quality.result import Quality as Quality
from edgeopt.quality.tally import MAX_SLICES as MAX_SLICES
from edgeopt.quality.tally import Tally
from edgeopt.quality.worst import WORST as WORST
from edgeopt.quality.worst import Look as Look
from edgeopt.quality.worst import Worst
from edgeopt.quality.worst import WorstSample as WorstSample

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carry:
    """Inputs that are outputs of the sample before, and for every sample whether a sequence starts with it.

    Every artifact then gets its own states, as on the device; the reference gets those in the samples.
    """

    inputs: tuple[Carried, ...]
    starts: Iterable[bool]


def compare(
    reference: Run,
    test: Run,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    labels: Iterable[Label] | None = None,
    metric: Scorer | MetricSpec | str | None = None,
) -> Quality:
    """Run both on every sample.

    Args:
        labels: one a sample, as the metric takes them.
        metric: the name of one without parameters will do, or a description that needs no file.

    Returns:
        The drift of every float output; integer outputs count towards ``max_abs`` only.

    Raises:
        CalibrationError: outputs or labels are not what the metric takes.
    """
    return compare_all(reference, {"": test}, samples, labels=labels, metric=metric)[""]


def compare_all(
    reference: Run,
    tests: Mapping[str, Run],
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    labels: Iterable[Label] | None = None,
    metric: Scorer | MetricSpec | str | None = None,
    groups: npt.NDArray[np.int64] | None = None,
    carry: Carry | None = None,
    worst: bool = False,
    look: Look | None = None,
) -> dict[str, Quality]:
    """``compare`` for several artifacts, with one run of the reference for each sample.

    Args:
        groups: number of the group of every sample, for intervals; each stands alone when None.
        carry: states that go from sample to sample.
        worst: keep the samples on which each artifact is worst.
        look: makes a picture of the inputs of those.
    """
    spec = metrics.named(metric) if isinstance(metric, str) else metric
    scorer = metrics.scorer(spec) if isinstance(spec, MetricSpec) else spec
    if scorer is not None and scorer.needs_label and labels is None:
        scorer = None
    known: Iterator[Label] = itertools.repeat(None) if labels is None or scorer is None else _each(labels)
    begins = itertools.repeat(True) if carry is None else iter(carry.starts)
    carried = () if carry is None else carry.inputs
    rows = None if scorer is None else Rows(scorer)
    tallies = {name: Tally(scorer, Worst(scorer, look) if worst else None) for name in tests}
    digest = SampleDigest(leave_out=[c.name for c in carried])
    units = itertools.repeat(None) if groups is None else iter(groups.tolist())
    last: dict[str, Mapping[str, np.ndarray]] = {}
    for feeds in samples:
        label, begin, unit = next(known), next(begins, True), next(units, None)
        digest.add(feeds, label)
        expected = reference(feeds)
        if rows is not None:
            rows.add(expected, feeds, label)
        for name, test in tests.items():
            fed = feeds if begin else {**feeds, **_states(carried, feeds, last[name])}
            found = test(fed)
            tallies[name].add(expected, found, fed, label, unit=unit, before=None if rows is None else rows.last)
            if carried:
                last[name] = found
    return {name: tally.quality(rows, digest.hexdigest(), groups) for name, tally in tallies.items()}


def _each(labels: Iterable[Label]) -> Iterator[Label]:
    """The labels one by one; asking for more is an error."""
    count = 0
    for label in labels:
        count += 1
        yield label.item() if isinstance(label, np.generic) else label
    raise CalibrationError(f"there are {count} labels and more samples.")


def _states(
    carried: tuple[Carried, ...], feeds: Mapping[str, np.ndarray], last: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The artifact's own states; one of another shape or type is left to the reference's and found by the tally."""
    own = {c.name: last[c.output] for c in carried}
    return {n: v for n, v in own.items() if v.shape == feeds[n].shape and v.dtype == feeds[n].dtype}


def relative_error(reference: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]) -> float:
    """max |difference| / max |reference| over all outputs: what a pass's tolerance bounds. NaN gives infinity."""
    worst = 0.0
    for name, value in reference.items():
        ref, got = np.asarray(value, np.float64), np.asarray(test[name], np.float64)
        if ref.shape != got.shape:
            return math.inf
        with np.errstate(invalid="ignore"):
            difference = float(np.max(np.abs(ref - got), initial=0.0))
        if not math.isfinite(difference):
            return 0.0 if np.array_equal(ref, got, equal_nan=True) else math.inf
        worst = max(worst, difference / max(float(np.max(np.abs(ref), initial=0.0)), 1e-30) if difference else 0.0)
    return worst
