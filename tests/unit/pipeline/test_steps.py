from __future__ import annotations

import pytest

from edgeopt.pipeline.steps import _judge_choice
from edgeopt.plan import Drift
from edgeopt.quality import Agreement, Quality


def seen(decibels: float, top1: float | None = None) -> Quality:
    drift = Drift(output="y", sqnr_db=decibels, cosine=1.0, max_abs=0.0)
    agreement = None if top1 is None else Agreement(top1=top1, ties=0.0)
    return Quality(samples=100, outputs=(drift,), slices=(), agreement=agreement, metric=None, finite=True)


@pytest.mark.parametrize(
    ("before", "after", "better", "words"),
    [
        (None, seen(20), True, "SQNR 20.0 dB on 100"),
        (seen(20), seen(20.05), False, "less than 0.1 dB"),
        (seen(20), seen(21), True, "+1.00 dB"),
        (seen(20, 0.98), seen(21, 0.97), True, "agreement 97.0%"),
        (seen(20, 0.98), seen(21, 0.95), False, "agreement was 98.0%"),
    ],
)
def test_a_refinement_must_gain_and_not_cost_agreement(
    before: Quality | None, after: Quality, better: bool, words: str
) -> None:
    reason, kept = _judge_choice(after, before)
    assert kept == better
    assert words in reason
