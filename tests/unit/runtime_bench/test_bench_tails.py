"""Intervals of percentiles: exact coverage, thresholds, a naive bootstrap, and simulated runs."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from runtime_bench.statistics import stats, tails
from runtime_bench.statistics.tails import binomial_cdf

from . import simulate


def exact_coverage(low: int | None, high: int | None, n: int, q: float) -> float:
    """Chance that ranks low and high enclose the percentile: that of low to high - 1 of n values being below it."""
    first, last = low or 0, (high or n + 1) - 1
    return math.fsum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(first, last + 1))


@pytest.mark.parametrize("n", [5, 12, 36, 50, 200])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.95])
def test_order_interval_is_the_narrowest_that_covers(n: int, q: float) -> None:
    """Exact on both sides: each miss has at most 2.5 %, and more with a rank nearer to the middle."""
    low, high = tails.order_interval(range(1, n + 1), q)
    assert exact_coverage(low, high, n, q) >= 0.95
    tail_low = 1 - exact_coverage(low, None, n, q)
    tail_high = 1 - exact_coverage(None, high, n, q)
    assert tail_low <= 0.025
    assert tail_high <= 0.025
    assert 1 - exact_coverage((low or 0) + 1, None, n, q) > 0.025
    if high is not None:
        assert 1 - exact_coverage(None, high - 1, n, q) > 0.025


@pytest.mark.parametrize(
    ("n", "q", "ranks"),
    [
        (50, 0.5, (18, 33)),
        (50, 0.95, (None, None)),
        (1000, 0.5, (469, 532)),
        (1000, 0.99, (983, 997)),
        (1000, 0.999, (None, None)),
        (3000, 0.99, (2959, 2981)),
        (10_000, 0.99, (9880, 9920)),
        (10_000, 0.999, (9983, 9997)),
    ],
)
def test_order_interval_against_tabulated_ranks(n: int, q: float, ranks: tuple[int | None, int | None]) -> None:
    low, high = tails.order_interval(range(1, n + 1), q)
    assert high == ranks[1]
    assert ranks[0] is None or low == ranks[0]


@pytest.mark.parametrize(("q", "needs"), stats.NEEDS.items())
def test_a_two_sided_interval_begins_at_needs(q: float, needs: int) -> None:
    assert tails.order_interval(range(needs - 1), q)[1] is None
    low, high = tails.order_interval(range(needs), q)
    assert low is not None
    assert high == needs - 1


@pytest.mark.parametrize(("q", "needs"), [(0.5, 11), (0.9, 64), (0.95, 130), (0.99, 662), (0.999, 6636)])
def test_loadgen_bound_begins_where_mlperf_says(q: float, needs: int) -> None:
    assert tails.loadgen_bound(range(needs - 1), q) is None
    assert tails.loadgen_bound(range(needs), q) == needs - 1


@pytest.mark.parametrize("n", [64, 100, 700])
def test_loadgen_bound_against_its_definition(n: int) -> None:
    """t grows while at most t failures have 1 %; t - 1 values are dropped. A bound that drops one more is caught."""
    t = 0
    while binomial_cdf(t + 1, n, 0.1) <= 0.01:
        t += 1
    bound = tails.loadgen_bound(range(1, n + 1), 0.9)
    assert bound == n - (t - 1)
    assert bound is not None
    # exactly: the bound lies below p90 with at most 1 %, the value after next would not
    assert exact_coverage(None, bound, n, 0.9) >= 0.99
    assert exact_coverage(None, bound - 2, n, 0.9) < 0.99


def naive_bootstrap(groups: list[list[int]], q: float, resamples: int, rank: int) -> tuple[int, int]:
    """The same draws, every resample written out; ``rank`` from either end of the sorted percentiles."""
    rng = random.Random(7)
    found = []
    for _ in range(resamples):
        drawn = rng.choices(range(len(groups)), k=len(groups))
        pooled = np.sort(np.concatenate([groups[i] for i in drawn]))
        found.append(int(pooled[max(math.ceil(q * len(pooled) - 1e-9), 1) - 1]))
    found.sort()
    return found[rank], found[-1 - rank]


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_bootstrap_equals_a_naive_one(q: float) -> None:
    """Processes of unequal length; levels widened to Phi(-2.2622 sqrt(10 / 9)) = 0.00855, so rank 4 of 500."""
    rng = random.Random(4)
    groups = simulate.process_effect(rng, 10, 40)
    groups[3] = groups[3][:7]
    groups[8] = groups[8] * 3
    result = tails.bootstrap_interval([*groups, []], q, resamples=500)
    assert result == naive_bootstrap(groups, q, 500, rank=4)
    assert result != naive_bootstrap(groups, q, 500, rank=12)  # the plain 2.5 % level, planted


def test_bootstrap_is_a_function_of_its_arguments() -> None:
    groups = simulate.process_effect(random.Random(4), 10, 40)
    assert tails.bootstrap_interval(groups, 0.9) == tails.bootstrap_interval(groups, 0.9)
    assert len({tails.bootstrap_interval(groups, 0.9, 50, seed=seed) for seed in range(5)}) > 1
    assert tails.bootstrap_interval([groups[0], []], 0.9) is None
    assert tails.bootstrap_interval([[5, 5], [5, 5]], 0.9) == (5, 5)


def test_clustered_interval_by_hand() -> None:
    # shares at or below the p90 (value 18): 1.0 and 0.8; their sd is 0.1414, the standard error 0.1 above iid's 0.067
    groups = [list(range(1, 11)), list(range(11, 21))]
    shares_error, t = 0.2 / math.sqrt(2) / math.sqrt(2), 12.7062
    half = t * shares_error / (0.9 * 0.1)
    low = math.ceil(20 / (1 + math.exp(half - math.log(9))))
    assert tails.clustered_interval(groups, 0.9) == (low, None)
    # twenty equal processes: the spread of independent calls, t with 19 degrees of freedom
    groups = [list(range(1, 101)) for _ in range(20)]
    half = 2.093 * math.sqrt(0.9 * 0.1 / 2000) / (0.9 * 0.1)
    ranks = [2000 / (1 + math.exp(sign * half - math.log(9))) for sign in (1, -1)]
    assert tails.clustered_interval(groups, 0.9) == (
        math.ceil(math.ceil(ranks[0]) / 20),
        math.ceil((math.ceil(ranks[1]) + 1) / 20),
    )


def test_tail_interval_names_its_method_and_its_doubts() -> None:
    def made(processes: int, iterations: int, q: float) -> tails.Interval | None:
        return tails.tail_interval(simulate.iid(random.Random(2), processes, iterations), q, resamples=200)

    assert made(4, 100, 0.9) is None
    assert made(10, 3, 0.9) is None
    assert made(10, 36, 0.99) is None
    for processes in (5, 9):
        few = made(processes, 100, 0.9)
        assert few is not None
        assert few.low_confidence
        assert few.method == tails.CLUSTERED
    enough = made(10, 100, 0.9)
    assert enough is not None
    assert not enough.low_confidence
    alone = made(4, 100, 0.95)
    assert alone is not None
    assert alone.method == tails.ORDER
    assert alone.low_confidence


def test_a_tail_that_the_processes_do_not_support_has_low_confidence() -> None:
    """One process holds all slow calls: no rank bounds p99 with the spread over processes."""
    groups = [[100] * 90 + list(range(200, 210)) if i == 3 else [100] * 100 for i in range(5)]
    found = tails.tail_interval(groups, 0.99, resamples=200)
    assert found is not None
    assert found.method == tails.UNCLUSTERED
    assert found.low_confidence


def test_tail_interval_holds_the_outer_bounds() -> None:
    groups = simulate.process_effect(random.Random(6), 10, 150)
    pooled = sorted(v for values in groups for v in values)
    for q in (0.9, 0.95, 0.99):
        found = tails.tail_interval(groups, q, resamples=300)
        drawn = tails.bootstrap_interval(groups, q, resamples=300)
        low, high = tails.order_interval(pooled, q)
        assert found is not None
        assert drawn is not None
        assert low is not None
        assert high is not None
        assert found.low <= min(drawn[0], low)
        assert found.high >= max(drawn[1], high)


@pytest.mark.parametrize("generator", simulate.GENERATORS, ids=lambda generator: generator.name)
def test_tail_intervals_cover(generator: simulate.Generator) -> None:
    """Ten processes, nominal 0.95. At least 0.90 for p90; p99 leaves a little for 200 runs of 0.90 to 0.95."""
    rng = random.Random(12)
    hits = {0.9: 0, 0.99: 0}
    for _ in range(200):
        groups = generator.make(rng, 10, 150)
        for q in hits:
            found = tails.tail_interval(groups, q, resamples=120)
            assert found is not None
            hits[q] += found.low <= generator.truth(q) <= found.high
    assert hits[0.9] / 200 >= 0.90
    assert hits[0.99] / 200 >= 0.85


def test_independent_calls_would_be_caught_in_the_tail() -> None:
    """The planted error: the plain order statistics of p90 fail the same bound where processes differ."""
    for generator in (simulate.AR1, simulate.PROCESS):
        rng = random.Random(12)
        hits = 0
        for _ in range(200):
            pooled = sorted(v for values in generator.make(rng, 10, 150) for v in values)
            low, high = tails.order_interval(pooled, 0.9)
            assert low is not None
            assert high is not None
            hits += low <= generator.truth(0.9) <= high
        assert hits / 200 < 0.70
