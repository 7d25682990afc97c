from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.quantize.ranges import BINS, OCTAVES, SUB, Statistics

finite = st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32)


def fed(chunks: list[np.ndarray], axis: int | None = None) -> Statistics:
    statistics = Statistics(channel_axis=axis)
    for chunk in chunks:
        statistics.add(chunk)
    return statistics


def same(one: Statistics, other: Statistics) -> None:
    """Bit for bit."""
    assert (one.minimum, one.maximum, one.strided, one.channel_count) == (
        other.minimum,
        other.maximum,
        other.strided,
        other.channel_count,
    )
    for a, b in zip(one.histogram(), other.histogram(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in ((one.channel_mean, other.channel_mean), (one.channel_peak, other.channel_peak)):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            np.testing.assert_array_equal(a, b)


@settings(max_examples=80, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_q09_order_and_batching_do_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    same(fed([np.array(values, np.float32)]), fed([np.array([v], np.float32) for v in shuffled]))


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, list[int], list[int], int]:
    """Samples of wildly different size, an order of them and a way to cut them into batches."""
    count = draw(st.integers(1, 9))
    shape = draw(st.sampled_from([(3,), (3, 5), (4, 6, 7), (5, 1), (2, 90, 400)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = np.float32(10.0) ** rng.integers(-20, 20, (count, *(1,) * len(shape))).astype(np.float32)
    values = rng.standard_normal((count, *shape)).astype(np.float32) * scale
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, count), max_size=count)) | {0, count})
    return values, list(order), cuts, draw(st.integers(1, len(shape)))


@settings(max_examples=60, deadline=None)
@given(batches())
def test_q09_every_statistic_is_bit_equal_in_any_order_and_batch(case: tuple) -> None:
    values, order, cuts, axis = case
    shuffled = values[order]
    for chosen in (axis, -1):
        one = fed([values[i : i + 1] for i in range(len(values))], chosen)
        same(one, fed([shuffled[a:b] for a, b in itertools.pairwise(cuts)], chosen))
        same(one, fed([values], chosen))


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60), st.integers(0, 60))
def test_merged_statistics_are_those_of_all_values(values: list[float], cut: int) -> None:
    array = np.array(values, np.float32)
    parts = [fed([p]) for p in (array[:cut], array[cut:])]
    same(Statistics.merged(parts), fed([array]))


@settings(max_examples=80, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60))
def test_histogram_holds_every_value_between_its_edges(values: list[float]) -> None:
    """Oracle: the counts of numpy's own search among the same edges."""
    array = np.array(values, np.float32)
    edges, counts = fed([array]).histogram()
    assert int(counts.sum()) == array.size
    assert (np.diff(edges) >= 0).all()
    assert (edges[0], edges[-1]) == (array.min(), array.max())
    for low, high, count in zip(edges, edges[1:], counts):
        if not count:
            continue
        # Below the smallest normal number all values share the bin at zero.
        tiny = max(float(np.abs(array).max()) * 2.0 ** (1 - OCTAVES), 2.0**-126)
        assert high - low <= max(max(abs(low), abs(high)) / SUB, tiny)
        inside = (array >= low) & (array <= high)
        assert int(inside.sum()) >= count


def test_a_planted_error_in_widening_is_caught() -> None:
    statistics = fed([np.float32([0.5, 1.5]), np.float32([100.0])])
    statistics._sides[False] = np.roll(statistics._sides[False], 1)
    with pytest.raises(AssertionError):
        same(statistics, fed([np.float32([100.0, 0.5, 1.5])]))


def test_percentile_against_numpy_within_a_bin() -> None:
    values = np.random.default_rng(3).standard_normal(200_000).astype(np.float32)
    low, high = fed(np.split(values, 50)).percentile_range(99.9)
    assert abs(low / np.quantile(values, 0.0005) - 1) <= 1 / SUB
    assert abs(high / np.quantile(values, 0.9995) - 1) <= 1 / SUB


def test_an_outlier_does_not_take_the_resolution_from_the_rest() -> None:
    """A histogram of even bins up to 1000 would hold all of the others in four."""
    values = np.random.default_rng(3).standard_normal(100_000).astype(np.float32)
    with_outlier = fed([np.append(values, np.float32(1000))])
    low, high = with_outlier.percentile_range(99.0)
    assert abs(low / np.quantile(values, 0.005) - 1) <= 2 / SUB
    assert abs(high / np.quantile(values, 0.995) - 1) <= 2 / SUB
    assert with_outlier.percentile_range(100) == (float(values.min()), 1000.0)


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
    assert statistics.count < values.size


@pytest.mark.parametrize("channels", [96, 384, 15])
def test_a_stride_visits_every_channel(channels: int) -> None:
    """Channels last: a stride with a factor in common with their number would skip some of them for good."""
    values = np.broadcast_to(np.arange(1, channels + 1, dtype=np.float32), (1, 9 * 65_536 // channels, channels))
    statistics = fed([values])
    edges, counts = statistics.histogram()
    ones = 1.0 + np.arange(channels)
    found = counts[np.searchsorted(edges, ones, side="right").clip(1, counts.size) - 1]
    assert (found > 0).all()


def test_channel_means_against_numpy() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(3, 1, (1, 4, 5, 6)).astype(np.float32) for _ in range(30)]
    statistics = fed(samples, 1)
    together = np.concatenate(samples)
    np.testing.assert_allclose(statistics.channel_mean, together.mean(axis=(0, 2, 3), dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(statistics.channel_peak, np.abs(together).max(axis=(0, 2, 3)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(bad: float) -> None:
    with pytest.raises(FloatingPointError):
        fed([np.float32([1, bad])])


@pytest.mark.parametrize(
    "values", [[3.4e38, -3.4e38, 1e-45, 0], [1e-45], [0, -0.0], [-0.0], [-3, 0], [5, 5], [2.0**127, -(2.0**-149)]]
)
def test_extremes_of_float32_keep_finite_bins(values: list[float]) -> None:
    statistics = fed([np.float32(values)])
    edges, counts = statistics.histogram()
    assert int(counts.sum()) == statistics.count == len(values)
    assert np.isfinite(edges).all()
    assert (edges[0], edges[-1]) == (np.float32(min(values)), np.float32(max(values)))
    assert statistics.nbytes <= 2 * 8 * (BINS + 1)


def test_nothing_seen_is_an_empty_histogram() -> None:
    edges, counts = fed([np.zeros((0, 3), np.float32)]).histogram()
    assert counts.size == 0
    assert edges.size == 1
