"""How wide an interval is: it covers the true drop about as often as it says, and groups make it wider."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.errors import CalibrationError
from edgeopt.metrics import MetricSpec, Rows, half_width, judged, named, scorer
from edgeopt.metrics.auc import roc_auc


def test_right_and_wrong_is_the_standard_error_of_the_differences() -> None:
    before, after = np.ones((400, 2)), np.ones((400, 2))
    after[:12, 0] = 0
    found = half_width(scorer(named("top1")), before, after)
    assert found == pytest.approx(1.96 * np.std([1] * 12 + [0] * 388) / 20)


def test_the_interval_of_a_mean_by_groups_covers() -> None:
    """20 photos of 20 crops each, all crops of a photo alike: by crop the interval misses far too often."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(20), 20)
    by_group = alone = 0
    for _ in range(400):
        before = np.ones((400, 2))
        after = before.copy()
        after[:, 0] -= np.repeat(rng.random(20) < 0.2, 20)
        drop = 1 - after[:, 0].mean()
        by_group += abs(drop - 0.2) <= half_width(scorer(named("top1")), before, after, groups)
        alone += abs(drop - 0.2) <= half_width(scorer(named("top1")), before, after)
    assert by_group > 0.85 * 400
    assert alone < 0.6 * 400


def test_the_interval_of_an_auc_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeopt.metrics.interval.RESAMPLES", 200)
    rng, auc = np.random.default_rng(2), scorer(named("auc"))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        truth = rng.integers(0, 2, n)
        shared = truth + rng.standard_normal(n)
        return np.c_[shared, truth], np.c_[shared + 0.7 * rng.standard_normal(n), truth]

    before, after = draw(200_000)
    ones = np.ones(len(before))
    true = roc_auc(after[:, 0], after[:, 1] > 0)(ones) - roc_auc(before[:, 0], before[:, 1] > 0)(ones)
    covered = 0
    for _ in range(120):
        before, after = draw(150)
        ones = np.ones(150)
        found = roc_auc(after[:, 0], after[:, 1] > 0)(ones) - roc_auc(before[:, 0], before[:, 1] > 0)(ones)
        half = half_width(auc, before, after)
        assert half is not None
        covered += abs(found - true) <= half
    assert 0.87 * 120 <= covered <= 120
    assert half < 0.1  # it is not wide because it is careless


def test_the_bootstrap_is_the_same_every_time_and_groups_widen_it() -> None:
    rng = np.random.default_rng(3)
    truth = np.repeat(rng.integers(0, 2, 30), 10)
    before = np.c_[truth + rng.standard_normal(300), truth]
    after = before + np.c_[np.repeat(rng.standard_normal(30), 10), np.zeros(300)]
    auc, groups = scorer(named("auc")), np.repeat(np.arange(30), 10)
    alone = half_width(auc, before, after)
    assert half_width(auc, before, after) == alone
    grouped = half_width(auc, before, after, groups)
    assert grouped is not None
    assert alone is not None
    assert grouped > 1.3 * alone
    assert half_width(auc, before, before) == 0


def test_one_group_tells_nothing() -> None:
    rows = np.ones((5, 2))
    assert half_width(scorer(named("top1")), rows, rows, np.zeros(5, np.int64)) is None
    assert half_width(scorer(named("auc")), rows, rows, np.zeros(5, np.int64)) is None


def test_a_ratio_is_weighted_by_length() -> None:
    cer = scorer(MetricSpec(name="cer", params={}))
    before = np.array([[0.5, 2.0], [0.0, 8.0]])
    after = np.array([[0.5, 2.0], [0.25, 8.0]])
    assert cer.prepare(before)(np.ones(2)) == pytest.approx(0.1)
    assert cer.prepare(after)(np.ones(2)) == pytest.approx(0.3)
    found = half_width(cer, before, after)
    # residuals of 0 and 2 errors around 0.2 errors a character
    assert found == pytest.approx(1.96 * np.hypot(0 - 0.4, 2 - 1.6) / 10)


def test_rows_of_unlike_length_and_figures_without_meaning_are_refused() -> None:
    mine = scorer(
        MetricSpec(name="m:f", params={"labels": False, "score": "m:g"}),
        function=lambda outputs, label: outputs["y"],
        score=lambda rows: float("nan"),
    )
    rows = Rows(mine)
    rows.add({"y": np.ones(2)}, {}, None)
    with pytest.raises(CalibrationError, match="gives 3 numbers for a sample and 2 for those before"):
        rows.add({"y": np.ones(3)}, {}, None)
    with pytest.raises(CalibrationError, match="is not defined on these 1 samples"):
        judged(rows, rows)
