"""Order statistics, Student t and ratios against tabulated values and a small simulation."""

from __future__ import annotations

import math
import random

import pytest

from runtime_bench import stats


@pytest.mark.parametrize(
    ("q", "expected"),
    [(0.5, 5), (0.9, 9), (0.91, 10), (0.1, 1), (0.07, 1), (1.0, 10), (0.0, 1)],
)
def test_percentile_is_an_observed_value(q: float, expected: int) -> None:
    values = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert stats.percentile(values, q) == expected


def test_percentile_does_not_slip_by_rounding() -> None:
    # 0.07 * 100 is 7.000000000000001 in binary; the 7th value is meant, not the 8th
    assert stats.percentile(list(range(1, 101)), 0.07) == 7
    assert stats.percentile(list(range(1, 1001)), 0.99) == 990


@pytest.mark.parametrize(("q", "needs"), [(0.90, 36), (0.95, 72), (0.99, 368)])
def test_needs_is_where_a_two_sided_interval_first_exists(q: float, needs: int) -> None:
    assert stats.NEEDS[q] == needs
    assert q**needs <= 0.025 < q ** (needs - 1)
    assert stats.supported_percentile([1] * (needs - 1), q) is None
    assert stats.supported_percentile([1] * needs, q) == 1


@pytest.mark.parametrize(
    ("p", "df", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.975, 5, 2.571),
        (0.975, 9, 2.262),
        (0.975, 10, 2.228),
        (0.975, 19, 2.093),
        (0.975, 30, 2.042),
        (0.975, 120, 1.980),
        (0.95, 1, 6.314),
        (0.95, 7, 1.895),
        (0.99, 8, 2.896),
        (0.995, 6, 3.707),
        (0.9995, 20, 3.850),
    ],
)
def test_t_quantile_against_the_table(p: float, df: int, table: float) -> None:
    assert stats.t_quantile(p, df) == pytest.approx(table, abs=6e-4)


def test_t_quantile_at_the_median_and_outside() -> None:
    assert stats.t_quantile(0.5, 7) == pytest.approx(0, abs=1e-12)
    for p, df in ((1.0, 3), (0.4, 3), (0.9, 0)):
        with pytest.raises(ValueError, match="t_quantile"):
            stats.t_quantile(p, df)


def test_spread() -> None:
    values = [2, 4, 4, 4, 5, 5, 7, 9]
    assert stats.mean(values) == 5
    assert stats.standard_deviation(values) == pytest.approx(math.sqrt(32 / 7))
    assert stats.coefficient_of_variation(values) == pytest.approx(math.sqrt(32 / 7) / 5)
    assert stats.median_absolute_deviation([1, 1, 2, 2, 4, 6, 9]) == 1
    assert stats.standard_deviation([3]) == 0
    assert stats.coefficient_of_variation([0, 0]) == 0


def test_ratio_by_hand() -> None:
    # log ratios of the medians: log 2, log 4 -> mean log(sqrt 8), sd = log 2 / sqrt 2, t(0.975, 1) = 12.7062
    result = stats.ratio([[100] * 3, [100] * 3], [[200] * 3, [400] * 3])
    half = 12.7062 * (math.log(2) / math.sqrt(2)) / math.sqrt(2)
    assert result.pairs == 2
    assert result.ratio == pytest.approx(math.sqrt(8))
    assert result.low == pytest.approx(math.sqrt(8) * math.exp(-half), rel=1e-4)
    assert result.high == pytest.approx(math.sqrt(8) * math.exp(half), rel=1e-4)


def test_ratio_pairs_by_position_and_skips_failed_processes() -> None:
    # paired, b is exactly 1.1 a in spite of a drifting machine; one failed process takes its partner with it
    a = [[100], [200], [300], [999]]
    b = [[110], [220], [330], []]
    result = stats.ratio(a, b)
    assert result.pairs == 3
    assert (result.low, result.ratio, result.high) == pytest.approx((1.1, 1.1, 1.1))


def test_ratio_with_one_pair_or_none_has_no_interval() -> None:
    assert stats.ratio([[100]], [[150]]) == (pytest.approx(1.5), None, None, 1)
    assert stats.ratio([[]], [[150]]) == (None, None, None, 0)


@pytest.mark.parametrize("pairs", [3, 10])
def test_interval_covers_the_true_ratio(pairs: int) -> None:
    """Process effects of 3 % on both sides, true ratio 0.8: the 95 % interval must hold it in about 95 % of runs."""
    rng = random.Random(5)
    hits = 0
    for _ in range(600):
        a = [[round(1e6 * rng.lognormvariate(0, 0.03))] for _ in range(pairs)]
        b = [[round(0.8e6 * rng.lognormvariate(0, 0.03))] for _ in range(pairs)]
        result = stats.ratio(a, b)
        assert result.low is not None
        assert result.high is not None
        hits += result.low <= 0.8 <= result.high
    assert 0.92 <= hits / 600 <= 0.98


def test_a_normal_quantile_in_place_of_t_would_be_caught() -> None:
    """The planted error: 1.96 instead of t covers far too little with three pairs, and the simulation sees it."""
    rng = random.Random(5)
    hits = 0
    for _ in range(600):
        logs = [rng.gauss(0, 0.042) for _ in range(3)]
        hits += abs(stats.mean(logs)) <= 1.96 * stats.standard_deviation(logs) / math.sqrt(3)
    assert hits / 600 < 0.90


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.5, 0.9, "faster"),
        (1.05, 1.2, "slower"),
        (0.99, 1.015, "equivalent"),
        (1.001, 1.019, "equivalent"),
        (0.9, 1.1, "inconclusive"),
        (0.99, 1.05, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_verdict(low: float | None, high: float | None, verdict: str) -> None:
    assert stats.verdict(stats.Ratio(1.0, low, high, 3)) == verdict
