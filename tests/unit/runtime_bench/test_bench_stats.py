"""Percentiles, Student t, ratios and proportions against tables, exact enumeration and simulated runs."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest

from runtime_bench.statistics import stats
from runtime_bench.statistics.binomial import binomial_cdf

from . import simulate


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


@pytest.mark.parametrize(("q", "needs"), [(0.90, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_needs_is_where_a_two_sided_interval_first_exists(q: float, needs: int) -> None:
    assert stats.NEEDS[q] == needs
    assert q**needs <= 0.025 < q ** (needs - 1)
    assert stats.supported_percentile([1] * (needs - 1), q) is None
    assert stats.supported_percentile([1] * needs, q) == 1


def test_names_of_percentiles() -> None:
    assert [stats.name_of(q) for q in stats.NEEDS] == ["p90", "p95", "p99", "p99.9"]


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


@pytest.mark.parametrize(
    ("p", "table"),
    [(0.5, 0.0), (0.8413447, 1.0), (0.95, 1.644854), (0.975, 1.959964), (0.995, 2.575829), (0.9999, 3.719016)],
)
def test_normal_quantile_against_the_table(p: float, table: float) -> None:
    assert stats.normal_quantile(p) == pytest.approx(table, abs=1e-6)
    assert stats.normal_quantile(1 - p) == pytest.approx(-table, abs=1e-6)
    assert stats.normal_cdf(stats.normal_quantile(p)) == pytest.approx(p, abs=1e-12)


def test_normal_quantile_outside() -> None:
    for p in (0.0, 1.0):
        with pytest.raises(ValueError, match="normal_quantile"):
            stats.normal_quantile(p)


def test_binomial_cdf_against_exact_fractions() -> None:
    for n, p in itertools.product((1, 7, 30), (Fraction(1, 100), Fraction(1, 2), Fraction(9, 10))):
        total = Fraction(0)
        for k in range(n + 1):
            total += math.comb(n, k) * p**k * (1 - p) ** (n - k)
            assert binomial_cdf(k, n, float(p)) == pytest.approx(float(total), rel=1e-11)
    assert binomial_cdf(-1, 5, 0.3) == 0
    assert binomial_cdf(5, 5, 0.3) == 1
    assert binomial_cdf(0, 5, 0.0) == 1
    assert binomial_cdf(4, 5, 1.0) == 0


def test_binomial_cdf_of_many_trials() -> None:
    """80,000 trials: the tail agrees with the one counted from the other side and is not lost to rounding."""
    n, p = 80_000, 0.999
    for k in (79_880, 79_919, 79_920, 79_921, 79_960):
        assert binomial_cdf(k, n, p) + binomial_cdf(n - k - 1, n, 1 - p) == pytest.approx(1, abs=1e-9)
    # misses of which 80 are expected are nearly Poisson
    poisson = math.fsum(math.exp(-80 + i * math.log(80) - math.lgamma(i + 1)) for i in range(60))
    assert binomial_cdf(59, n, 1 - p) == pytest.approx(poisson, rel=0.01)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.3085),
        (1, 10, 0.0025, 0.4450),
        (5, 10, 0.1871, 0.8129),
        (10, 10, 0.6915, 1.0),
        (0, 100, 0.0, 0.0362),
        (3, 100, 0.0062, 0.0852),
        (0, 0, 0.0, 1.0),
    ],
)
def test_proportion_interval_against_the_table(k: int, n: int, low: float, high: float) -> None:
    assert stats.proportion_interval(k, n) == pytest.approx((low, high), abs=6e-5)


def test_proportion_interval_never_covers_too_little() -> None:
    """Exact coverage over all outcomes; Wald's textbook interval, planted, is caught."""

    def coverage(interval: object, n: int, p: float) -> float:
        held = [k for k in range(n + 1) if interval(k, n)[0] <= p <= interval(k, n)[1]]  # type: ignore[operator]
        return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in held)

    def wald(k: int, n: int) -> tuple[float, float]:
        half = 1.96 * math.sqrt(k / n * (1 - k / n) / n)
        return k / n - half, k / n + half

    chances = [0.005, 0.01, 0.05, 0.2, 0.5, 0.77]
    assert min(coverage(stats.proportion_interval, 40, p) for p in chances) >= 0.95
    assert min(coverage(wald, 40, p) for p in chances) < 0.5
    with pytest.raises(ValueError, match="proportion_interval"):
        stats.proportion_interval(3, 2)


def test_spread() -> None:
    values = [2, 4, 4, 4, 5, 5, 7, 9]
    assert stats.mean(values) == 5
    assert stats.standard_deviation(values) == pytest.approx(math.sqrt(32 / 7))
    assert stats.coefficient_of_variation(values) == pytest.approx(math.sqrt(32 / 7) / 5)
    assert stats.median_absolute_deviation([1, 1, 2, 2, 4, 6, 9]) == 1
    assert stats.standard_deviation([3]) == 0
    assert stats.coefficient_of_variation([0, 0]) == 0
    assert stats.trimmed_mean([1000, *range(1, 20)], 0.05) == pytest.approx(sum(range(2, 20)) / 18)
    assert stats.trimmed_mean([1, 2, 9], 0.05) == 4
    with pytest.raises(ValueError, match="trimmed_mean"):
        stats.trimmed_mean([1], 0.5)


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


def test_welch_ratio_by_hand() -> None:
    # logs: a has mean 0 and variance 0.02, b has mean 0.3 and variance 0.01; the squared errors 0.01 and 0.0033...
    a = [math.exp(-0.1), math.exp(0.1)]
    b = [math.exp(0.2), math.exp(0.3), math.exp(0.4)]
    result = stats.welch_ratio(a, b)
    variance = 0.02 / 2 + 0.01 / 3
    freedom = variance**2 / ((0.02 / 2) ** 2 / 1 + (0.01 / 3) ** 2 / 2)
    assert 1 < freedom < 2  # rounded down to 1: t = 12.7062
    half = 12.7062 * math.sqrt(variance)
    assert result.pairs == 2
    assert result.ratio == pytest.approx(math.exp(0.3))
    assert result.low == pytest.approx(math.exp(0.3 - half), rel=1e-4)
    assert result.high == pytest.approx(math.exp(0.3 + half), rel=1e-4)


def test_welch_ratio_without_enough_processes() -> None:
    assert stats.welch_ratio([], [1.0]) == (None, None, None, 0)
    assert stats.welch_ratio([2.0, 2.0], [1.0]) == (pytest.approx(0.5), None, None, 1)
    assert stats.welch_ratio([2.0, 2.0], [1.0, 1.0]) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5), 2)


@pytest.mark.parametrize("spreads", [(0.03, 0.03), (0.01, 0.06)])
def test_welch_ratio_covers_whatever_the_spreads(spreads: tuple[float, float]) -> None:
    rng = random.Random(8)
    hits = 0
    for _ in range(400):
        a = [rng.lognormvariate(0, spreads[0]) for _ in range(20)]
        b = [rng.lognormvariate(math.log(1.1), spreads[1]) for _ in range(5)]
        result = stats.welch_ratio(a, b)
        assert result.low is not None
        assert result.high is not None
        hits += result.low <= 1.1 <= result.high
    assert 0.92 <= hits / 400 <= 0.99


def test_a_pooled_variance_in_place_of_welch_would_be_caught() -> None:
    """The planted error: Student's pooled variance with the noisier side the smaller one covers far too little."""
    rng = random.Random(8)
    hits = 0
    for _ in range(400):
        a = [rng.gauss(0, 0.01) for _ in range(20)]
        b = [rng.gauss(0, 0.06) for _ in range(5)]
        pooled = (19 * stats.standard_deviation(a) ** 2 + 4 * stats.standard_deviation(b) ** 2) / 23
        half = stats.t_quantile(0.975, 23) * math.sqrt(pooled * (1 / 20 + 1 / 5))
        hits += abs(stats.mean(b) - stats.mean(a)) <= half
    assert hits / 400 < 0.90


RUNS = 200


@pytest.fixture(scope="module", params=simulate.GENERATORS, ids=lambda generator: generator.name)
def coverage(request: pytest.FixtureRequest) -> tuple[str, dict[str, float]]:
    """Share of simulated runs of 10 processes in which each 95 % interval held the truth."""
    rng = random.Random(31)
    rows = [simulate.covered(request.param, rng, resamples=0) for _ in range(RUNS)]
    names = [name for name in rows[0] if rows[0][name] is not None]
    return request.param.name, {name: sum(bool(row[name]) for row in rows) / RUNS for name in names}


def test_intervals_cover_on_every_kind_of_latency(coverage: tuple[str, dict[str, float]]) -> None:
    """Ten processes, nominal 0.95: at least 0.90, for the median and for both ratios."""
    _, found = coverage
    for name in ("median", "ratio", "unpaired ratio"):
        assert found[name] >= 0.90


def test_taking_all_calls_for_independent_would_be_caught(coverage: tuple[str, dict[str, float]]) -> None:
    """The planted error: an interval of the pooled calls fails the bound that the process medians hold."""
    name, found = coverage
    assert (found["pooled median"] < 0.90) == (name in ("ar1", "process effect"))


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
