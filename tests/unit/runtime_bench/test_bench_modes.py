"""Modes of a distribution: the coefficient against theory, false alarms and detection on simulated calls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from runtime_bench.statistics import modes

from . import simulate

Make = Callable[[random.Random], list[int]]


def mixture(rng: random.Random, n: int, centers: tuple[float, ...], shares: tuple[float, ...]) -> list[int]:
    return [simulate.ns(rng.choices(centers, shares)[0] + rng.gauss(0, 0.02)) for _ in range(n)]


def test_coefficient_against_numpy() -> None:
    rng = np.random.default_rng(3)
    x = rng.gamma(2, size=500)
    n, z = 500, (x - x.mean()) / x.std(ddof=1)
    g, k = (z**3).mean(), (z**4).mean() - 3
    expected = (g * g + 1) / (k + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
    assert modes.bimodality_coefficient(list(x)) == pytest.approx(expected)
    # the planted error: without the correction for the number of values
    assert modes.bimodality_coefficient(list(x)) != pytest.approx((g * g + 1) / (k + 3), rel=1e-3)


def test_coefficient_of_known_distributions() -> None:
    """1/3 for the normal distribution, 5/9 for the uniform one, 1 for two points."""
    rng = random.Random(4)
    assert modes.bimodality_coefficient([rng.gauss(0, 1) for _ in range(50_000)]) == pytest.approx(1 / 3, abs=0.01)
    assert modes.bimodality_coefficient([i / 50_000 for i in range(50_000)]) == pytest.approx(5 / 9, abs=1e-3)
    assert modes.bimodality_coefficient([0.0] * 5000 + [1.0] * 5000) == pytest.approx(1, abs=1e-3)
    assert modes.bimodality_coefficient([1, 2, 3]) is None
    assert modes.bimodality_coefficient([7.0] * 40) is None


def test_modes_of_the_generator() -> None:
    """70 % and 30 %, five standard deviations apart: always found, with centers and shares."""
    rng = random.Random(5)
    fast, slow = simulate.BASE_NS, simulate.BASE_NS * math.exp(simulate.MODE_DISTANCE * simulate.MODE_NOISE)
    for _ in range(60):
        groups = simulate.two_modes(rng)
        for found in (modes.modes([v for values in groups for v in values]), modes.modes_within(groups)):
            (first, large), (second, small) = found.modes
            assert first == pytest.approx(fast, rel=0.01)
            assert second == pytest.approx(slow, rel=0.015)
            assert large == pytest.approx(0.7, abs=0.04)
            assert large + small == pytest.approx(1)


@pytest.mark.parametrize(
    ("centers", "shares"),
    [
        ((0.0, 0.1), (0.9, 0.1)),
        ((0.0, 0.1), (0.5, 0.5)),
        ((0.0, 2.3), (0.6, 0.4)),
        ((0.0, 0.12, 0.24), (0.4, 0.3, 0.3)),
    ],
    ids=["small", "equal", "far", "three"],
)
def test_other_mixtures(centers: tuple[float, ...], shares: tuple[float, ...]) -> None:
    found = modes.modes(mixture(random.Random(6), 1500, centers, shares)).modes
    assert [center for center, _ in found] == pytest.approx([simulate.ns(c) for c in centers], rel=0.02)
    assert [share for _, share in found] == pytest.approx(shares, abs=0.04)


def test_modes_with_spikes_beside_them() -> None:
    rng = random.Random(7)
    values = mixture(rng, 1500, (0.0, 0.1), (0.7, 0.3))
    for i in range(0, 1500, 70):
        values[i] = round(values[i] * rng.uniform(1.5, 4))
    assert len(modes.modes(values).modes) == 2


def test_too_small_a_mode_is_none() -> None:
    rng = random.Random(8)
    assert len(modes.modes(mixture(rng, 3000, (0.0, 0.3), (0.97, 0.03))).modes) == 1
    assert len(modes.modes(mixture(rng, 3000, (0.0, 0.3), (0.92, 0.08))).modes) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: [round(5e6 * (1 + rng.gauss(0, 0.05))) for _ in range(1500)],
        lambda rng: simulate.spikes(rng, 1, 1500, 0.02)[0],
        lambda rng: simulate.spikes(rng, 1, 150, 0.02)[0],
        lambda rng: [round(5e6 * (1 + rng.uniform(0, 0.2))) for _ in range(1500)],
        lambda rng: [round(5e6 * (1 + rng.uniform(0, 0.2))) for _ in range(150)],
        lambda rng: [round(5e6 * (1 + 0.1 * rng.expovariate(1))) for _ in range(1500)],
        lambda rng: [round(500 * (1 + rng.gauss(0, 0.02))) // 41 * 41 for _ in range(1500)],
        lambda rng: [v for values in simulate.ar1(rng) for v in values],
    ],
    ids=["normal", "spikes", "few spikes", "uniform", "few uniform", "exponential", "ticks of a clock", "ar1"],
)
def test_one_kind_of_calls_is_one_mode(make: Make) -> None:
    """False alarms: at most 5 %, here over 100 runs."""
    rng = random.Random(9)
    assert sum(len(modes.modes(make(rng)).modes) > 1 for _ in range(100)) <= 5


def test_processes_that_differ_are_no_modes() -> None:
    """3 % between processes, 0.5 % within. Pooling them, the planted error, sees modes in every fifth run and more."""
    rng = random.Random(10)
    within = pooled = 0
    for _ in range(100):
        effects = [rng.gauss(0, 0.03) for _ in range(10)]
        groups = [[simulate.ns(effect + rng.gauss(0, 0.005)) for _ in range(100)] for effect in effects]
        within += len(modes.modes_within(groups).modes) > 1
        pooled += len(modes.modes([v for values in groups for v in values]).modes) > 1
    assert within <= 2
    assert pooled >= 20


def test_modes_within_puts_equal_shares_together() -> None:
    """Half of the calls in each mode: the median of a process may lie in either, its trimmed mean between them."""
    rng = random.Random(11)
    groups = [mixture(rng, 150, (0.0, 0.1), (0.5, 0.5)) for _ in range(10)]
    found = modes.modes_within([*groups, []]).modes
    assert [share for _, share in found] == pytest.approx([0.5, 0.5], abs=0.05)


def test_modes_of_little_or_constant_values() -> None:
    assert modes.modes([5]) == (None, [(pytest.approx(5), 1.0)])
    assert modes.modes([5] * 100) == (None, [(pytest.approx(5), 1.0)])
    assert modes.modes([0, 0, 0, 0, 1]).modes == [(pytest.approx(1), 1.0)]
    assert len(modes.modes([100] * 60 + [200] * 40).modes) == 1  # two ticks of a clock say nothing of modes


def test_many_values_are_thinned() -> None:
    values = mixture(random.Random(12), 30_000, (0.0, 0.1), (0.7, 0.3))
    assert [share for _, share in modes.modes(values).modes] == pytest.approx([0.7, 0.3], abs=0.03)
