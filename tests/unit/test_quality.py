from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.budget import Budget
from edgeopt.errors import CalibrationError
from edgeopt.quality import Agreement, Metric, Quality, compare, gate, relative_error


def runs(
    reference: list[np.ndarray], test: list[np.ndarray], labels: list[int] | None = None, metric: str | None = None
) -> Quality:
    feeds = [{"i": np.array(i)} for i in range(len(reference))]
    return compare(
        lambda f: {"y": reference[int(f["i"])]},
        lambda f: {"y": test[int(f["i"])]},
        feeds,
        labels=None if labels is None else np.array(labels),
        metric=metric,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-4, 10))
def test_sqnr_cosine_and_max_error_against_their_definitions(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    reference = [rng.standard_normal((1, 2, 5)).astype(np.float32) for _ in range(4)]
    test = [(r + noise * rng.standard_normal(r.shape)).astype(np.float32) for r in reference]
    drift = runs(reference, test).outputs[0]
    a, b = (np.concatenate([x.ravel() for x in xs]).astype(np.float64) for xs in (reference, test))
    assert drift.sqnr_db == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()), abs=1e-9)
    assert drift.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-9)
    assert drift.max_abs == pytest.approx(np.abs(a - b).max())


def test_equal_is_infinite_and_a_planted_error_is_not() -> None:
    values = [np.ones((1, 4), np.float32)]
    assert math.isinf(runs(values, values).sqnr_db)
    assert runs(values, [np.float32([[1, 1, 1, 1.001]])]).sqnr_db < 70


def test_ties_are_wrong_and_counted() -> None:
    reference = [np.float32([[0, 1, 2]])] * 4
    test = [np.float32([[0, 2, 2]]), np.float32([[0, 1, 2]]), np.float32([[3, 1, 2]]), np.float32([[2, 2, 2]])]
    seen = runs(reference, test, labels=[2, 2, 2, 2], metric="top1")
    assert seen.agreement == Agreement(top1=0.25, ties=0.5)
    assert seen.metric == Metric(
        name="top1", reference=1.0, artifact=0.25, half_width=pytest.approx(1.96 * (0.1875 / 4) ** 0.5)
    )


def test_a_lost_channel_fails_although_the_whole_is_fine() -> None:
    """Boxes of 640 hide scores of 1 in every whole-tensor figure."""
    rng = np.random.default_rng(0)
    reference = [
        np.concatenate([rng.uniform(0, 640, (1, 4, 50)), rng.uniform(0, 1, (1, 3, 50))], axis=1).astype(np.float32)
    ]
    test = [reference[0].copy()]
    test[0][:, 4:] = 0
    seen = runs(reference, test)
    assert seen.outputs[0].cosine > 0.99999
    assert seen.outputs[0].sqnr_db > 40
    assert "y[axis1=" in str(gate(seen, Budget()))
    assert gate(runs(reference, [reference[0] * np.float32(1.001)]), Budget()) is None


def test_gate_by_metric_agreement_floor_and_finiteness() -> None:
    eye = [np.eye(4, dtype=np.float32)[i : i + 1] for i in range(4)]
    wrong = [*eye[:3], eye[0]]
    assert "falls from 100.00% to 75.00%" in str(gate(runs(eye, wrong, [0, 1, 2, 3], "top1"), Budget()))
    assert "more than 10.00% allowed" in str(gate(runs(eye, wrong, [0, 1, 2, 3], "top1"), Budget(max_drop=0.1)))
    assert gate(runs(eye, wrong, [0, 1, 2, 3], "top1"), Budget(max_drop=0.25)) is None
    assert "agreement" in str(gate(runs(eye, wrong), Budget(max_drop=0.01)))
    assert "below the floor" in str(gate(runs([e + 0 for e in eye], [np.float32(0.3) * e for e in eye]), Budget()))
    assert "NaN" in str(gate(runs(eye, [e * np.float32(np.nan) for e in eye]), Budget()))
    assert "shape" in str(gate(runs(eye, [e[:, :3] for e in eye]), Budget()))


def judged(metric: str, before: list[float], after: list[float], labels: list[float]) -> Quality:
    return runs(
        [np.float32([[v]]) for v in before],
        [np.float32([[v]]) for v in after],
        labels,
        metric,
    )


def test_a_metric_where_lower_is_better_drops_by_rising() -> None:
    seen = judged("mae", [1.0, 2.0, 3.0, 4.0], [1.2, 2.2, 3.2, 4.2], [1.1, 1.9, 3.1, 3.9])
    assert seen.metric is not None
    assert (seen.metric.better, seen.metric.unit) == ("lower", "number")
    assert seen.metric.drop == pytest.approx(seen.metric.artifact - seen.metric.reference)
    assert seen.metric.drop == pytest.approx(0.1, abs=1e-6)
    assert "MAE rises from 0.1 to 0.2, more than 5% of the float model's" in str(gate(seen, Budget()))
    assert "more than 50.00% of the float model's allowed" in str(gate(seen, Budget(max_drop=0.5)))
    assert gate(seen, Budget(max_drop=1.01)) is None
    better = judged("mae", [1.2, 2.2], [1.0, 2.0], [1.0, 2.0])
    assert better.metric is not None
    assert better.metric.drop < 0
    assert gate(better, Budget(max_drop=0.0)) is None


def test_probabilities_agree_on_their_side_of_a_half() -> None:
    seen = runs([np.float32([[p]]) for p in (0.2, 0.6, 0.9, 0.5)], [np.float32([[p]]) for p in (0.3, 0.4, 0.8, 0.5)])
    assert seen.agreement == Agreement(top1=0.75, ties=0.0, of="decision at 0.5")
    assert "decision at 0.5 agreement with the float model is 75.00%" in str(gate(seen, Budget(max_drop=0.1)))
    assert runs([np.float32([[1.5]])], [np.float32([[1.4]])]).agreement is None  # no probability
    other = judged("auc", [0.2, 0.6, 0.9, 0.5], [0.3, 0.4, 0.8, 0.5], [0, 1, 1, 0])
    assert other.metric is not None
    assert (other.metric.name, other.metric.reference, other.metric.artifact) == ("AUC", 1.0, 0.75)
    assert (other.metric.unit, other.metric.scale, other.metric.shown(0.75)) == ("index", 1.0, "0.7500")
    assert "AUC falls from 1.0000 to 0.7500, more than 0.05" in str(gate(other, Budget()))
    assert "AUC falls from 1.0000 to 0.7500, more than 0.2 allowed" in str(gate(other, Budget(max_drop=0.2)))
    assert gate(other, Budget(max_drop=0.25)) is None
    assert other.agreement == seen.agreement
    assert other.outcomes is not None
    assert (other.outcomes.kind, other.outcomes.judged_by) == ("agreement", "AUC")


def test_maps_and_numbers_keep_their_sqnr_and_have_no_answer() -> None:
    rng = np.random.default_rng(0)
    reference = [rng.standard_normal((1, 3, 4, 4)).astype(np.float32) for _ in range(3)]
    test = [r + np.float32(0.01) for r in reference]
    labels = [r[0].argmax(axis=0) for r in reference]
    seen = runs(reference, test, labels, "miou")
    assert seen.metric is not None
    assert (seen.metric.reference, seen.metric.artifact) == (1.0, 1.0)
    assert (seen.agreement, seen.outcomes) == (None, None)
    assert 30 < seen.sqnr_db < 50


def test_outputs_of_unlike_length_are_judged_as_a_whole() -> None:
    reference = [np.ones((1, n, 4), np.float32) for n in (3, 5, 3)]
    seen = runs(reference, [r * np.float32(1.01) for r in reference])
    assert all("[axis2=" in drift.output for drift in seen.slices)  # lengths are steps of time, fields are fields
    assert seen.outputs[0].sqnr_db == pytest.approx(40, abs=0.1)


def test_text_agrees_where_all_of_it_does() -> None:
    def text(*steps: int) -> np.ndarray:
        return np.eye(4, dtype=np.float32)[list(steps)][None]

    feeds = [{"i": np.array(i)} for i in range(2)]
    reference, test = [text(1, 2, 0), text(3, 3, 0)], [text(1, 0, 0), text(3, 0, 0)]
    labels = [(1, 2), (3,)]
    seen = compare(
        lambda f: {"y": reference[int(f["i"])]}, lambda f: {"y": test[int(f["i"])]}, feeds, labels=labels, metric="cer"
    )
    assert seen.agreement == Agreement(top1=0.5, ties=0.0, of="decoded text")
    assert seen.metric is not None
    assert (seen.metric.reference, seen.metric.artifact) == (0.0, pytest.approx(1 / 3))
    assert "CER rises from 0.00% to 33.33%" in str(gate(dataclasses.replace(seen, slices=()), Budget()))
    assert seen.outcomes is not None
    assert (seen.outcomes.kind, seen.outcomes.better) == ("CER", "lower")
    assert seen.outcomes.rows().tolist() == [[0.5, 2], [0, 1]]


def test_an_artifact_of_nan_or_another_shape_is_refused_and_not_judged() -> None:
    for broken in (np.float32([[np.nan]]), np.float32([[1, 2]])):
        seen = runs([np.float32([[1]])] * 2, [broken] * 2, [1, 2], "mae")
        assert seen.metric is None
        assert "NaN, infinity or another shape" in str(gate(seen, Budget()))


def test_labels_that_are_too_few_are_an_error() -> None:
    with pytest.raises(CalibrationError, match="there are 1 labels and more samples"):
        runs([np.float32([[1, 0]])] * 2, [np.float32([[1, 0]])] * 2, [0], "top1")


def test_relative_error() -> None:
    ref = {"y": np.float32([1, -4])}
    assert relative_error(ref, {"y": np.float32([1, -4])}) == 0
    assert relative_error(ref, {"y": np.float32([1, -3])}) == pytest.approx(0.25)
    assert relative_error(ref, {"y": np.float32([1, np.nan])}) == math.inf
    assert relative_error(ref, {"y": np.float32([1])}) == math.inf
    nan = {"y": np.float32([np.nan, 1])}
    assert relative_error(nan, nan) == 0


@pytest.mark.parametrize(("changed", "refused"), [(6, False), (15, False), (40, True)])
def test_the_default_gate_wants_the_drop_shown(changed: int, refused: bool) -> None:
    """Of 1,000 samples 6, 15 or 40 are lost: 0.6, 1.5 +- 0.8 and 4.0 +- 1.2 %; only the last is clearly above 1 %."""
    n = 1000
    reference = [np.float32([[1, 0]])] * n
    test = [np.float32([[0, 1]])] * changed + [np.float32([[1, 0]])] * (n - changed)
    seen = runs(reference, test, [0] * n, "top1")
    assert seen.metric is not None
    assert seen.metric.half_width == pytest.approx(1.96 * np.std([1] * changed + [0] * (n - changed)) / n**0.5)
    assert (gate(seen, Budget()) is not None) == refused
    assert (gate(seen, Budget(max_drop=0.01)) is not None) == (changed > 10)


@pytest.mark.parametrize("rows", [False, True])
def test_q05_one_scale_for_boxes_and_scores_is_seen_in_a_slice(rows: bool) -> None:
    """All scores become 0 while the cosine of the whole is 1: the gate looks at every slice, on either axis."""
    rng = np.random.default_rng(31)
    head = np.concatenate([rng.uniform(0, 640, (1, 4, 100)), rng.uniform(0, 1, (1, 3, 100))], axis=1)
    step = head.max() / 255
    real, rounded = head.astype(np.float32), (np.rint(head / step) * step).astype(np.float32)
    if rows:
        real, rounded = (np.ascontiguousarray(a.transpose(0, 2, 1)) for a in (real, rounded))
    seen = runs([real], [rounded])
    assert seen.outputs[0].cosine > 0.99999
    assert f"y[axis{2 if rows else 1}=" in str(gate(seen, Budget()))


def test_a_class_on_the_last_axis_that_no_sample_shows_refuses_nothing() -> None:
    reference = [np.full((1, 7, 3), 1e-4, np.float32) for _ in range(3)]
    for value in reference:
        value[:, :, 0] = 0.9
    seen = runs(reference, [r * np.float32([1, 3, 1]) for r in reference])
    assert all("axis2=1" not in drift.output for drift in seen.slices)


def test_stated_floors_bind_every_output() -> None:
    reference = [np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)]
    seen = runs(reference, [r + np.float32(0.05) for r in reference])
    assert "below the 30 dB asked for" in str(gate(seen, Budget(min_sqnr_db=30.0)))
    assert gate(seen, Budget(min_sqnr_db=20.0)) is None
    assert "largest error 0.05 is over the 0.04 asked for" in str(gate(seen, Budget(max_error={"y": 0.04})))
    assert gate(seen, Budget(max_error={"y": 0.06, "other": 0.001})) is None
