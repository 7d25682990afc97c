"""Trends and steps against published examples, exact enumeration and simulated runs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from runtime_bench.statistics import drift, stats, steps

from . import simulate

SEN_T, SEN_Y = [1, 2, 3, 4, 10, 12, 18], [9, 15, 19, 20, 45, 55, 78]
"""The example of Sen (1968): slope 4, 93 % interval 26/7 to 35/8."""

MANN_KENDALL = [12.9, 14.8, 13.2, 15.7, 13.8, 15.6, 12.9, 11.0, 17.3, 15.9, 19.0, 18.3, 20.1, 21.7]
"""Worked by hand in a course (Holy Cross, Montserrat): S = 54, one tie, Z = 2.9058."""


def chain(rng: random.Random, n: int, phi: float) -> list[float]:
    value, values = rng.gauss(0, 1), []
    for _ in range(n):
        values.append(value)
        value = phi * value + rng.gauss(0, math.sqrt(1 - phi * phi))
    return values


def test_theil_sen_against_the_published_interval() -> None:
    found = drift.theil_sen(SEN_T, SEN_Y, confidence=0.93)
    assert found == pytest.approx((4.0, 26 / 7, 35 / 8))
    # least squares, planted, gives 4.06 and no such bounds
    assert np.polyfit(SEN_T, SEN_Y, 1)[0] != pytest.approx(4.0, abs=0.01)


def test_theil_sen_ignores_order_and_outliers() -> None:
    t = list(range(20))
    y = [3.0 * v + 1 + 0.01 * (v % 3) for v in t]
    y[4], y[11] = 500.0, -90.0
    shuffled = random.Random(2).sample(list(zip(t, y)), 20)
    found = drift.theil_sen([p[0] for p in shuffled], [p[1] for p in shuffled])
    assert found == drift.theil_sen(t, y)
    assert found.low is not None
    assert found.high is not None
    assert 2.98 < found.low <= found.value <= found.high < 3.02


def test_theil_sen_against_numpy() -> None:
    rng = np.random.default_rng(3)
    t, y = rng.uniform(0, 9, 60), rng.normal(size=60)
    i, j = np.triu_indices(60, 1)
    assert drift.theil_sen(list(t), list(y)).value == pytest.approx(float(np.median((y[j] - y[i]) / (t[j] - t[i]))))


def test_theil_sen_of_many_points_is_thinned() -> None:
    rng = random.Random(5)
    t = list(range(5000))
    found = drift.theil_sen(t, [0.02 * v + rng.gauss(0, 10) for v in t])
    assert found.low is not None
    assert found.high is not None
    assert 0.019 < found.low < 0.02 < found.high < 0.021


def test_theil_sen_without_enough_points() -> None:
    assert drift.theil_sen([0, 1], [5, 8]) == (3.0, None, None)
    assert drift.theil_sen([1, 1, 2], [0, 4, 6]) == (4.0, None, None)
    with pytest.raises(ValueError, match="two different times"):
        drift.theil_sen([4, 4], [1, 2])
    assert drift.theil_sen(list(range(6)), [1, 3, 2, 5, 4, 6]).low is not None


@pytest.mark.parametrize("n", [8, 30])
def test_sen_interval_covers(n: int) -> None:
    rng = random.Random(6)
    hits = 0
    for _ in range(400):
        found = drift.theil_sen(range(n), [0.3 * i + rng.gauss(0, 1) for i in range(n)])
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.3 <= found.high
    assert hits / 400 >= 0.93


def test_sen_interval_allows_for_autocorrelation_when_told() -> None:
    rng = random.Random(6)
    hits = {False: 0, True: 0}
    for _ in range(200):
        y = chain(rng, 60, 0.7)
        for told in hits:
            found = drift.theil_sen(range(60), y, autocorrelated=told)
            assert found.low is not None
            assert found.high is not None
            hits[told] += found.low <= 0 <= found.high
    assert hits[False] / 200 < 0.75
    assert hits[True] / 200 >= 0.88


def test_mann_kendall_against_a_worked_example() -> None:
    score, p = drift.mann_kendall(MANN_KENDALL)
    assert score == 54
    assert p == pytest.approx(math.erfc(2.9058 / math.sqrt(2)), rel=1e-3)
    # without the tie the variance, and with it p, would differ by more than this
    untied = math.erfc(53 / math.sqrt(2 * 14 * 13 * 33 / 18))
    assert p != pytest.approx(untied, rel=1e-3)


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5, 6), (1, 1, 2, 3, 3, 3)])
def test_kendall_variance_is_that_of_all_permutations(values: Sequence[int]) -> None:
    scores = [drift._score(order) for order in itertools.permutations(values)]
    assert sum(scores) == 0
    exact = sum(score * score for score in scores) / len(scores)
    assert drift._kendall_variance(range(6), values) == pytest.approx(exact)


def test_kendall_variance_with_ties_in_both() -> None:
    t, values = (1, 1, 2, 3, 3), (5, 5, 6, 7, 7)

    def score(y: Sequence[int]) -> int:
        pairs = itertools.combinations(range(5), 2)
        return sum(int(np.sign(t[j] - t[i]) * np.sign(y[j] - y[i])) for i, j in pairs)

    scores = [score(order) for order in itertools.permutations(values)]
    assert drift._kendall_variance(t, values) == pytest.approx(sum(s * s for s in scores) / len(scores))


def test_mann_kendall_of_little() -> None:
    assert drift.mann_kendall([]) == (0, 1.0)
    assert drift.mann_kendall([1, 2]) == (1, 1.0)
    assert drift.mann_kendall([7] * 30) == (0, 1.0)
    score, p = drift.mann_kendall([1, 2, 3])
    assert score == 3
    assert p == pytest.approx(math.erfc(2 / math.sqrt(2 * 66 / 18)))
    assert drift.mann_kendall([3, 2, 1]) == (-3, p)


def test_the_level_of_mann_kendall_is_exact_for_ten_processes() -> None:
    """All orders of ten values, counted by their inversions: p is below 0.05 in 4.66 % of them."""
    orders = [1]
    for k in range(2, 11):
        orders = [sum(orders[max(0, i - k + 1) : i + 1]) for i in range(len(orders) + k - 1)]
    assert sum(orders) == math.factorial(10)
    variance = drift._kendall_variance(range(10), range(10))
    said = [math.erfc((abs(45 - 2 * i) - 1) / math.sqrt(2 * variance)) < 0.05 for i in range(46)]
    assert sum(n for n, alarm in zip(orders, said) if alarm) / math.factorial(10) == pytest.approx(0.0466, abs=1e-4)


@pytest.mark.parametrize("n", [10, 40])
def test_mann_kendall_is_quiet_and_not_deaf(n: int) -> None:
    """False alarms on independent values at most 5 % (400 runs: 7.2 % would be two standard errors more)."""
    rng = random.Random(9)
    runs = [chain(rng, n, 0) for _ in range(400)]
    assert sum(drift.mann_kendall(y)[1] < 0.05 for y in runs) / 400 <= 0.07
    trend = [[v + 5 * i / n for i, v in enumerate(y)] for y in runs]
    assert sum(drift.mann_kendall(y)[1] < 0.05 for y in trend) / 400 >= (0.85 if n == 10 else 0.99)


def test_mann_kendall_allows_for_autocorrelation() -> None:
    """AR(1) of 0.5 without a trend. The planted error, no correction, raises more than twice as many alarms."""
    rng = random.Random(10)
    runs = [chain(rng, 60, 0.5) for _ in range(300)]
    alarms = sum(drift.mann_kendall(y)[1] < 0.05 for y in runs) / 300
    plain = sum(drift.mann_kendall(y, autocorrelated=False)[1] < 0.05 for y in runs) / 300
    assert alarms <= 0.10
    assert plain > 0.17


def test_block_medians_by_hand() -> None:
    t = [100, 101, 109, 110, 111, 135, 139]
    values = [5, 1, 9, 2, 4, 8, 6]
    assert drift.block_medians(t, values, block_ns=10) == ([101, 110, 135], [5, 2, 6])
    assert drift.block_medians([], []) == ([], [])
    assert drift.block_medians([7], [3]) == ([7], [3])
    assert drift.block_medians(t, values, block_ns=1000) == ([110], [5])


@pytest.mark.parametrize("generator", simulate.GENERATORS, ids=lambda generator: generator.name)
def test_drift_over_processes_is_said_of_drift_alone(generator: simulate.Generator) -> None:
    """One median a process, in order of time: other noise stays below 5 % (8.8 %: three standard errors more)."""
    rng = random.Random(13)
    alarms = 0
    for _ in range(300):
        medians = [stats.percentile(values, 0.5) for values in generator.make(rng, 10, 60)]
        alarms += drift.mann_kendall(medians)[1] < 0.05
    if generator is simulate.LINEAR:
        assert alarms / 300 >= 0.99
    else:
        assert alarms / 300 <= 0.088


def exhaustive(points: Sequence[float], penalty: float, shortest: int) -> list[int]:
    """The best of all segmentations, each written out."""

    def cost(cuts: tuple[int, ...]) -> float:
        bounds = [0, *cuts, len(points)]
        parts = [np.asarray(points[a:b]) for a, b in itertools.pairwise(bounds)]
        return penalty * len(cuts) + sum(float(((part - part.mean()) ** 2).sum()) for part in parts)

    n = len(points)
    options = [
        cuts
        for count in range(n // shortest)
        for cuts in itertools.combinations(range(shortest, n - shortest + 1), count)
        if all(b - a >= shortest for a, b in itertools.pairwise(cuts))
    ]
    return list(min(options, key=cost))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("penalty", [0.5, 2.0, 8.0])
def test_partition_is_the_best_of_all(seed: int, penalty: float) -> None:
    rng = random.Random(seed)
    points = [2 * (i in range(4, 9)) - (i > 12) + rng.gauss(0, 0.6) for i in range(17)]
    assert steps._partition(points, penalty, 3) == exhaustive(points, penalty, 3)


def test_partition_oracle_can_fail() -> None:
    points = [0.0] * 6 + [5.0] * 6
    assert exhaustive(points, 1.0, 3) == [6]
    assert exhaustive(points, 100.0, 3) == []
    assert exhaustive([*points[:-1], 0.0], 1.0, 3) != exhaustive(points, 1.0, 7)


def test_changepoints_of_a_planted_step() -> None:
    rng = random.Random(3)
    values = [simulate.ns(0.2 * (i >= 90) - 0.1 * (i >= 150) + rng.gauss(0, 0.02)) for i in range(190)]
    assert steps.changepoints(values) == [90, 150]
    assert drift.changepoints is steps.changepoints
    assert steps.changepoints(values, penalty=1e9) == []
    long = [value for value in values for _ in range(10)]  # 1,900 calls: found to within a block of 10
    assert steps.changepoints(long) == [900, 1500]


def test_changepoints_of_little_or_constant_values() -> None:
    assert steps.changepoints([]) == []
    assert steps.changepoints([1, 9] * 9) == []
    assert steps.changepoints([1000] * 200) == []
    assert steps.changepoints([0] * 50 + [1] * 50) == []  # a clock that counts nothing
    assert steps.changepoints([1000] * 60 + [1100] * 60) == [60]


def test_changepoints_are_no_spikes() -> None:
    values = [1_000_000 + 1000 * (i % 7) for i in range(200)]
    for i in (3, 50, 51, 120, 199):
        values[i] *= 4
    assert steps.changepoints(values) == []


Make = Callable[[random.Random], list[int]]


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda rng: simulate.iid(rng, 1, 150)[0], 0.02),
        (lambda rng: simulate.ar1(rng, 1, 150, 0.5)[0], 0.05),
        (lambda rng: simulate.ar1(rng, 1, 150, 0.9)[0], 0.08),
        (lambda rng: simulate.spikes(rng, 1, 150)[0], 0.03),
        (lambda rng: simulate.two_modes(rng, 1, 150)[0], 0.05),
        (lambda rng: simulate.iid(rng, 1, 1500)[0], 0.02),
        (lambda rng: [1000 + 100 * (rng.random() < 0.2) for _ in range(150)], 0.03),
    ],
    ids=["iid", "phi .5", "phi .9", "spikes", "two modes", "many calls", "ticks of a clock"],
)
def test_changepoints_raise_few_false_alarms(make: Make, most: float) -> None:
    rng = random.Random(14)
    assert sum(bool(steps.changepoints(make(rng))) for _ in range(200)) / 200 <= most


def test_changepoints_find_the_step_of_the_generator() -> None:
    rng = random.Random(15)
    found = [steps.changepoints(simulate.step(rng, 1, 150)[0]) for _ in range(100)]
    assert sum(len(cuts) == 1 and abs(cuts[0] - 50) <= 2 for cuts in found) >= 98
    # the step at call 500 of 1,500 lies inside a block of 8 and must not become two
    found = [steps.changepoints(simulate.step(rng, 1, 1500)[0]) for _ in range(40)]
    assert sum(len(cuts) == 1 and abs(cuts[0] - 500) <= 8 for cuts in found) >= 39


def test_a_variance_that_ignores_autocorrelation_would_be_caught() -> None:
    """The planted error: the same search with the plain variance of the differences fails the bound above."""
    rng = random.Random(14)
    alarms = 0
    for _ in range(100):
        points = [math.log(value) for value in simulate.ar1(rng, 1, 150, 0.9)[0]]
        variance = math.fsum((b - a) ** 2 for a, b in itertools.pairwise(points)) / 149 / 2
        alarms += bool(steps._partition(points, 3 * math.log(150) * variance, 10))
    assert alarms / 100 > 0.5
