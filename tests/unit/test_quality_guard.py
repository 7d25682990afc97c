"""Limits with their intervals, and the worst samples: against brute force and against the gate itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.budget import Budget
from edgeopt.metrics import named
from edgeopt.outcomes import paired_drop
from edgeopt.plan import Drift
from edgeopt.quality import Agreement, Metric, Quality, compare_all, gate, limits
from edgeopt.quality.spread import most_share, share_interval


def judged(
    reference: list[np.ndarray], test: list[np.ndarray], groups: list[int] | None = None, **options: Any
) -> Quality:
    feeds = [{"i": np.array(i)} for i in range(len(reference))]
    return compare_all(
        lambda f: {"y": reference[int(f["i"])]},
        {"": lambda f: {"y": test[int(f["i"])]}},
        feeds,
        groups=None if groups is None else np.array(groups),
        **options,
    )[""]


def noisy(seed: int, count: int, *shape: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Samples of unlike loudness with an error of unlike loudness."""
    rng = np.random.default_rng(seed)
    loud, error = rng.lognormal(0, 0.5, count), 0.1 * rng.lognormal(0, 0.7, count)
    reference = [(k * rng.standard_normal(shape)).astype(np.float32) for k in loud]
    return reference, [(r + e * rng.standard_normal(shape)).astype(np.float32) for r, e in zip(reference, error)]


def energies(reference: list[np.ndarray], test: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.float64(reference), np.float64(test)
    axes = tuple(range(1, a.ndim))
    return (a**2).sum(axes), ((a - b) ** 2).sum(axes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_the_interval_of_an_sqnr_is_the_linearized_one(seed: int, count: int) -> None:
    reference, test = noisy(seed, count, 1, 6)
    s, e = energies(reference, test)
    residual = s / s.sum() - e / e.sum()
    half = 1.96 * 10 / math.log(10) * math.sqrt(count / (count - 1) * (residual**2).sum())
    assert judged(reference, test).half_widths_db["y"] == pytest.approx(half, rel=1e-6, abs=1e-6)


def test_the_interval_of_an_sqnr_is_that_of_a_bootstrap() -> None:
    reference, test = noisy(1, 300, 1, 6)
    s, e = energies(reference, test)
    rng = np.random.default_rng(2)
    drawn = [10 * np.log10(s[k].sum() / e[k].sum()) for k in (rng.integers(0, 300, 300) for _ in range(3000))]
    assert judged(reference, test).half_widths_db["y"] == pytest.approx(1.96 * np.std(drawn), rel=0.1)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """A thousand sets of 100 samples whose true SQNR is known; an interval of half the width would cover 67 %."""
    rng = np.random.default_rng(3)
    inside = narrow = 0
    for _ in range(1000):
        s, e = rng.gamma(4, 1, 100), 0.01 * rng.gamma(2, 0.5, 100)  # means 4 and 0.01
        quality = judged(list(np.sqrt(s)[:, None]), list((np.sqrt(s) + np.sqrt(e))[:, None]))
        off = abs(quality.outputs[0].sqnr_db - 10 * math.log10(4 / 0.01))
        inside += off <= quality.half_widths_db["y"]
        narrow += off <= quality.half_widths_db["y"] / 2
    assert 0.93 < inside / 1000 < 0.97
    assert narrow / 1000 < 0.75


def test_a_channel_has_the_interval_of_its_own() -> None:
    reference, test = noisy(4, 20, 1, 3, 5)
    seen = judged(reference, test)
    alone = judged([r[:, 1] for r in reference], [t[:, 1] for t in test])
    assert seen.half_widths_db["y[axis1=1]"] == pytest.approx(alone.half_widths_db["y"])
    assert seen.half_widths_db["y[axis1=1]"] != pytest.approx(seen.half_widths_db["y[axis1=2]"])


def test_samples_of_one_group_are_one_unit() -> None:
    reference, test = noisy(5, 24, 1, 6)
    joined = [np.concatenate(values) for values in zip(reference[::2], reference[1::2])]
    tested = [np.concatenate(values) for values in zip(test[::2], test[1::2])]
    grouped = judged(reference, test, [k // 2 for k in range(24)])
    assert grouped.half_widths_db["y"] == pytest.approx(judged(joined, tested).half_widths_db["y"])
    assert grouped.half_widths_db["y"] != pytest.approx(judged(reference, test).half_widths_db["y"])
    assert grouped.units == 12


def test_a_group_that_comes_back_has_no_interval_rather_than_a_wrong_one() -> None:
    reference, test = noisy(6, 4, 1, 6)
    assert judged(reference, test, [0, 1, 0, 1]).half_widths_db == {}
    assert judged(reference, test, [0, 0, 0, 0]).half_widths_db == {}  # one unit tells nothing


def test_wilsons_interval_by_its_published_values() -> None:
    low, high = share_interval(bytearray([1] * 10))  # type: ignore[misc]
    assert (low, high) == (pytest.approx(0.7225, abs=1e-4), 1.0)
    low, high = share_interval(bytearray([1] * 81 + [0] * 182))  # type: ignore[misc]
    assert (low, high) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))  # Newcombe 1998


def test_the_rule_of_three() -> None:
    assert most_share(1000) == pytest.approx(3 / 1000, rel=0.01)
    assert (1 - most_share(20)) ** 20 == pytest.approx(0.05)


DRIFT = st.builds(
    Drift,
    output=st.sampled_from(["a", "b"]),
    sqnr_db=st.one_of(st.floats(-5, 60), st.sampled_from([math.inf, -math.inf, 6.0, 10.0])),
    cosine=st.just(1.0),
    max_abs=st.floats(0, 2),
)
SHARE = st.floats(0, 1)
METRIC = st.builds(
    Metric,
    name=st.just("m"),
    reference=SHARE,
    artifact=SHARE,
    half_width=st.one_of(st.none(), st.floats(0, 0.1)),
    better=st.sampled_from(["higher", "lower"]),
    unit=st.sampled_from(["share", "index", "number"]),
)
QUALITY = st.builds(
    Quality,
    samples=st.integers(1, 50),
    outputs=st.lists(DRIFT, min_size=1, max_size=3).map(tuple),
    slices=st.lists(DRIFT, max_size=3).map(tuple),
    agreement=st.one_of(st.none(), st.builds(Agreement, top1=SHARE, ties=st.just(0.0))),
    metric=st.one_of(st.none(), METRIC),
    finite=st.sampled_from([True, True, True, False]),
)
BUDGET = st.builds(
    Budget,
    max_drop=st.one_of(st.none(), st.sampled_from([0.0, 0.01, 0.5])),
    min_sqnr_db=st.one_of(st.none(), st.floats(1, 40)),
    max_error=st.dictionaries(st.sampled_from(["a", "b"]), st.floats(0.1, 2), max_size=2),
)


@settings(max_examples=400, deadline=None)
@given(QUALITY, BUDGET)
def test_the_gate_refuses_exactly_where_a_limit_does_not_hold(quality: Quality, budget: Budget) -> None:
    assert (gate(quality, budget) is None) == all(limit.ok for limit in limits(quality, budget))


def test_every_limit_has_its_figure_and_its_interval() -> None:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 5, 200)
    reference = [
        np.eye(5, dtype=np.float32)[[k]] + 0.1 * rng.standard_normal((1, 5)).astype(np.float32) for k in labels
    ]
    test = [r + 0.02 * rng.standard_normal((1, 5)).astype(np.float32) for r in reference]
    for k in (3, 30, 31):
        test[k] = np.roll(reference[k], 1)
    seen = judged(reference, test, labels=labels.tolist(), metric=named("top1"))
    found = {limit.name: limit for limit in limits(seen, Budget(max_drop=0.05, min_sqnr_db=10, max_error={"y": 5.0}))}
    assert set(found) == {"finite", "sqnr", "error", "drop"}
    before, after = np.ones(200, bool), np.ones(200, bool)
    after[[3, 30, 31]] = False
    pair = paired_drop(before, after)
    assert (found["drop"].measured, found["drop"].low, found["drop"].high) == (
        pytest.approx(0.015),
        pair.low,
        pair.high,
    )
    assert found["drop"].stated
    assert "3 right before and wrong after, 0 the other way round" in found["drop"].note
    half = seen.half_widths_db["y"]
    drift = seen.outputs[0]
    assert (found["sqnr"].low, found["sqnr"].high) == (drift.sqnr_db - half, drift.sqnr_db + half)
    assert found["error"].measured == drift.max_abs
    assert "1.49%" in found["error"].note  # 1 - 0.05^(1/200)
    assert {limit.name for limit in limits(seen, Budget())} == {"finite", "drop", "shown-drop", "lost"}


def test_nan_is_counted_by_sample() -> None:
    reference = [np.ones((1, 4), np.float32)] * 5
    test = [*reference[:3], np.full((1, 4), np.nan, np.float32), np.ones((1, 3), np.float32)]
    (finite, *_) = limits(judged(reference, test), Budget())
    assert (finite.measured, finite.ok) == (2.0, False)


def test_the_worst_samples_are_found_in_their_order() -> None:
    rng = np.random.default_rng(8)
    labels = [k % 4 for k in range(60)]
    reference = [np.eye(4, dtype=np.float32)[[k]] for k in labels]
    test = [r + 0.01 * rng.standard_normal((1, 4)).astype(np.float32) for r in reference]
    labels[20] = 3  # the float model is wrong here, and so is the artifact: another answer, nothing lost
    test[20] = np.float32([[0, 1, 0, 0]])
    test[41] = np.float32([[0, 0, 0.9, 0]])  # right before, wrong after
    test[50] = reference[50] + np.float32([[0, 0, 0.3, 0]])  # the same answer, a large error
    test[7] = np.full((1, 4), np.nan, np.float32)
    drawn: list[int] = []

    def look(feeds: Any) -> bytes:
        drawn.append(int(feeds["i"]))
        return f"{int(feeds['i'])}".encode()

    seen = judged(reference, test, worst=True, look=look, labels=labels, metric=named("top1")).worst
    assert seen[0].index == 7
    assert not seen[0].finite
    test[7] = reference[7]
    drawn.clear()
    seen = judged(reference, test, worst=True, look=look, labels=labels, metric=named("top1")).worst
    assert [sample.index for sample in seen[:3]] == [41, 20, 50]
    first = seen[0]
    assert (first.before, first.after, first.label) == ("class 1 (1)", "class 2 (0.9)", "1")
    assert (first.changed, first.score_before, first.score_after) == (True, 1.0, 0.0)
    assert (first.output, first.element, first.max_abs) == ("y", (0, 1), 1.0)
    assert (first.reference, first.artifact) == (1.0, 0.0)
    assert first.sqnr_db == pytest.approx(10 * math.log10(1 / 1.81))
    assert first.picture == b"41"
    assert len(seen) == 8
    assert len(drawn) < 60  # a sample that is not among the worst is never drawn
    assert judged(reference, test).worst == ()


def test_the_rank_of_an_error_is_against_the_mean_energy_not_the_sample_s_own() -> None:
    """A silent sample with a tiny error is not the worst although its own SQNR is."""
    reference = [np.ones((1, 2, 3), np.float32)] * 9 + [np.full((1, 2, 3), 1e-6, np.float32)]
    test = [r + np.float32(0.01 * (k == 4)) for k, r in enumerate(reference)]
    test[9] = reference[9] * 2
    seen = judged(reference, test, worst=True).worst
    assert seen[0].index == 4
    assert next(s for s in seen if s.index == 9).sqnr_db == pytest.approx(0, abs=1e-6)
