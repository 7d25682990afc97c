"""A stated drop on few samples: what may be chance is not held against it, what is shown is."""

from __future__ import annotations

import dataclasses

import numpy as np

from edgeopt.outcomes import Drop, paired_drop
from edgeopt.pipeline.search import FLIPS, gate
from edgeopt.quality import Metric, Quality
from edgeopt.target import Budget

CER = Metric(name="CER", reference=0.05, artifact=0.055, half_width=0.0098, better="lower")
TOP1 = Metric(name="top-1", reference=0.80, artifact=0.78, half_width=0.02)


def seen(metric: Metric | None, *, paired: Drop | None = None, samples: int = 90) -> Quality:
    return Quality(samples=samples, outputs=(), slices=(), agreement=None, metric=metric, finite=True, paired=paired)


def raised(metric: Metric, artifact: float) -> Metric:
    return dataclasses.replace(metric, artifact=artifact)


def test_a_fractional_metric_may_miss_its_limit_by_a_standard_error() -> None:
    limits = Budget(max_drop=0.0025)
    assert gate(seen(raised(CER, 0.0574)), limits) is None
    assert "more than 0.75% allowed" in (gate(seen(raised(CER, 0.0576)), limits) or "")


def test_that_is_a_share_of_the_float_value_for_a_metric_in_a_unit_of_its_own() -> None:
    error = Metric(name="mae", reference=2.0, artifact=2.05, half_width=0.098, better="lower", unit="number")
    limits = Budget(max_drop=0.01)  # 0.02, and a standard error of 0.05
    assert gate(seen(raised(error, 2.069)), limits) is None
    assert gate(seen(raised(error, 2.071)), limits) is not None


def test_of_right_and_wrong_two_may_flip() -> None:
    limits, paired = Budget(max_drop=0.0025), paired_drop(np.ones(90, bool), np.arange(90) > 1)
    assert gate(seen(raised(TOP1, 0.80 - 2 / 90), paired=paired), limits) is None
    assert gate(seen(raised(TOP1, 0.80 - 3 / 90), paired=paired), limits) is not None
    assert FLIPS / 90 < 3 / 90


def test_where_nobody_knows_how_sure_a_drop_is_two_samples_are_chance() -> None:
    unsure = Metric(name="F1", reference=0.9, artifact=0.88, half_width=None)
    assert gate(seen(unsure), Budget(max_drop=0.0)) is None
    assert gate(seen(unsure, samples=1000), Budget(max_drop=0.0)) is not None
