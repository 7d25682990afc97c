from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.quantize.ranges import BINS, Statistics

finite = st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32)


def fed(chunks: list[np.ndarray]) -> Statistics:
    statistics = Statistics(channel_axis=None)
    for chunk in chunks:
        statistics.add(chunk)
    return statistics


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_order_and_batching_do_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one = fed([np.array(values, np.float32)])
    many = fed([np.array([v], np.float32) for v in shuffled])
    assert (one.minimum, one.maximum, one.log2_width) == (many.minimum, many.maximum, many.log2_width)
    np.testing.assert_array_equal(one.counts, many.counts)


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60))
def test_histogram_equals_one_made_at_once(values: list[float]) -> None:
    """Oracle: floor(v / w) counted with Python numbers at the final width."""
    statistics = fed([np.array([v], np.float32) for v in values])
    assert int(statistics.counts.sum()) == len(values)
    if statistics.log2_width is None:
        assert all(v == 0 for v in values)
        return
    expected: dict[int, int] = {}
    for value in np.array(values, np.float32).tolist():
        index = math.floor(value / 2.0**statistics.log2_width) + BINS
        expected[index] = expected.get(index, 0) + 1
    assert {int(i): int(statistics.counts[i]) for i in np.flatnonzero(statistics.counts)} == expected


def test_a_planted_error_in_widening_is_caught() -> None:
    statistics = fed([np.float32([0.5, 1.5]), np.float32([100.0])])
    good = statistics.counts.copy()
    statistics.counts = np.roll(good, 1)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(statistics.counts, fed([np.float32([100.0, 0.5, 1.5])]).counts)


def test_percentile_against_numpy_within_three_bins() -> None:
    rng = np.random.default_rng(3)
    values = rng.standard_normal(200_000).astype(np.float32)
    statistics = fed(np.split(values, 50))
    low, high = statistics.percentile_range(99.9)
    width = 2.0 ** (statistics.log2_width or 0)
    assert abs(low - np.quantile(values, 0.0005)) <= 3 * width
    assert abs(high - np.quantile(values, 0.9995)) <= 3 * width


def test_hundred_percent_is_min_max_and_few_values_are_never_cut() -> None:
    values = np.float32([-3, 0.25, 9])
    assert fed([values]).percentile_range(100) == (-3.0, 9.0)
    assert fed([values]).percentile_range(99.0) == (-3.0, 9.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(finite, min_size=1, max_size=200), st.floats(50, 100), st.floats(50, 100))
def test_ranges_are_monotone_in_the_percentile(values: list[float], a: float, b: float) -> None:
    statistics = fed([np.array(values, np.float32)])
    (low_a, high_a), (low_b, high_b) = statistics.percentile_range(min(a, b)), statistics.percentile_range(max(a, b))
    assert low_b <= low_a
    assert high_a <= high_b


def test_large_tensors_are_strided_with_exact_extremes() -> None:
    values = np.zeros((1, 8, 200, 200), np.float32)
    values[0, 3, 17, 19] = 5.0
    values[0, 5, 1, 1] = -7.0
    statistics = fed([values])
    assert (statistics.minimum, statistics.maximum) == (-7.0, 5.0)
    assert statistics.strided
    assert int(statistics.counts.sum()) < values.size


def test_channel_means_and_their_order() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(3, 1, (1, 4, 5, 6)).astype(np.float32) for _ in range(30)]
    means = []
    for order in (samples, samples[::-1]):
        statistics = Statistics(channel_axis=1)
        for sample in order:
            statistics.add(sample)
        means.append(statistics.channel_mean)
    np.testing.assert_array_equal(means[0], means[1])
    np.testing.assert_allclose(means[0], np.concatenate(samples).mean(axis=(0, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(bad: float) -> None:
    with pytest.raises(FloatingPointError):
        fed([np.float32([1, bad])])


def test_extremes_of_float32_keep_finite_bins() -> None:
    statistics = fed([np.float32([3.4e38, -3.4e38, 1e-45, 0])])
    assert int(statistics.counts.sum()) == 4
    assert fed([np.float32([1e-45])]).counts.sum() == 1
