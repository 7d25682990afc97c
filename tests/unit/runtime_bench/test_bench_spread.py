"""Variance components, autocorrelation, robust spread and fences against tables, numpy and theory."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_bench.statistics import spread, stats

from . import simulate

TURNIPS = [
    [3.28, 3.09, 3.03, 3.03],
    [3.52, 3.48, 3.38, 3.38],
    [2.88, 2.80, 2.81, 2.76],
    [3.34, 3.38, 3.23, 3.26],
]
"""Calcium in four turnip leaves, four determinations each (Snedecor and Cochran): the mean squares are 0.2961 and
0.0066, the components 0.0724 between and 0.0066 within."""


def exponentials(groups: list[list[float]]) -> list[list[int]]:
    return [[round(1e9 * math.exp(v)) for v in values] for values in groups]


def test_variance_components_against_a_published_analysis() -> None:
    found = spread.variance_components(exponentials(TURNIPS))
    assert found.within**2 == pytest.approx(0.0066, abs=5e-5)
    assert found.between**2 == pytest.approx(0.0724, abs=5e-5)
    assert found.icc == pytest.approx(0.0724 / (0.0724 + 0.0066), abs=1e-3)
    # the planted error: the variance of the means, with the noise within left in it
    assert np.var(np.mean(TURNIPS, axis=1), ddof=1) != pytest.approx(found.between**2, abs=5e-4)


def test_variance_components_of_unequal_groups() -> None:
    """Unbiased over many runs: 3 % between, 5 % within, sizes from 5 to 60."""
    rng = random.Random(3)
    between, within = [], []
    for _ in range(300):
        groups = [values[: 5 + 11 * (i % 6)] for i, values in enumerate(simulate.process_effect(rng, 12, 60))]
        found = spread.variance_components([*groups, []])
        between.append(found.between**2)
        within.append(found.within**2)
    assert stats.mean(between) == pytest.approx(0.03**2, rel=0.08)
    assert stats.mean(within) == pytest.approx(0.05**2, rel=0.02)


def test_variance_components_without_a_difference() -> None:
    assert spread.variance_components([[5, 5], [5, 5]]) == (0, 0, 0)
    assert spread.variance_components([[10, 20], [20, 10]]).between == 0
    only = spread.variance_components([[10, 10], [20, 20]])
    assert only.within == 0
    assert only.icc == 1
    for groups in ([[1, 2]], [[1], [2]], []):
        with pytest.raises(ValueError, match="variance_components"):
            spread.variance_components(groups)


@pytest.mark.parametrize(
    ("values", "width", "needed"),
    [
        ([98, 102], 0.02, math.ceil(4 * 1.96**2 * 8 / 100**2 / 0.02**2)),
        ([99, 101, 100], 0.02, 4),
        ([90, 100, 110], 0.02, 385),
        ([90, 100, 110], 0.01, 1537),
        ([100, 100, 100], 0.02, 1),
    ],
)
def test_required_processes(values: list[float], width: float, needed: int) -> None:
    assert spread.required_processes(values, width) == needed


def test_required_processes_reach_the_width() -> None:
    """So many processes do give a 95 % interval of that width, on average."""
    rng = random.Random(4)
    needed = spread.required_processes([100 * (1 + 0.03 * z) for z in (-1, 0, 1)])
    assert needed == 35
    widths = []
    for _ in range(200):
        values = [rng.gauss(100, 3) for _ in range(needed)]
        widths.append(2 * 1.96 * stats.standard_deviation(values) / math.sqrt(needed) / 100)
    assert stats.mean(widths) == pytest.approx(0.02, rel=0.03)
    with pytest.raises(ValueError, match="required_processes"):
        spread.required_processes([100])


def test_autocorrelation_against_numpy() -> None:
    values = simulate.ar1(random.Random(5), 1, 300)[0]
    centered = np.asarray(values, float) - np.mean(values)
    expected = [float(centered[:-k] @ centered[k:] / (centered @ centered)) for k in range(1, 21)]
    assert spread.autocorrelation(values) == pytest.approx(expected)
    assert spread.autocorrelation(values[::-1]) == pytest.approx(expected)
    shifted = [float(centered[: -k - 1] @ centered[k + 1 :] / (centered @ centered)) for k in range(1, 21)]
    assert spread.autocorrelation(values) != pytest.approx(shifted)


def test_autocorrelation_of_little() -> None:
    assert spread.autocorrelation([4]) == []
    assert spread.autocorrelation([4, 4, 4]) == [0, 0]
    assert spread.autocorrelation([1, 2, 1, 2], lags=2) == [-0.75, 0.5]


def test_effective_size_against_theory() -> None:
    """AR(1): n (1 - phi) / (1 + phi), so 105 of 2,000 at 0.9."""
    rng = random.Random(6)
    sizes = [spread.effective_size(simulate.ar1(rng, 1, 2000)[0]) for _ in range(60)]
    assert stats.mean(sizes) == pytest.approx(2000 * 0.1 / 1.9, rel=0.25)
    independent = [spread.effective_size(simulate.iid(rng, 1, 2000)[0]) for _ in range(60)]
    assert stats.mean(independent) > 1700
    assert spread.effective_size([]) == 0
    assert spread.effective_size([3]) == 1
    assert spread.effective_size([3] * 50) == 50


def test_autocorrelation_alarm() -> None:
    """More than 0.3 at lag 1, the mean over the processes: always said of AR(1), never of independent calls."""
    rng = random.Random(7)
    for generator in (simulate.IID, simulate.AR1, simulate.SPIKES, simulate.PROCESS, simulate.MODES):
        alarms = 0
        for _ in range(60):
            rho = [spread.autocorrelation(values, 1)[0] for values in generator.make(rng, 10, 150)]
            alarms += stats.mean(rho) > 0.3
        assert alarms == (60 if generator is simulate.AR1 else 0)


def test_robust_spread_by_hand() -> None:
    values = [100, 101, 102, 103, 104, 105, 106, 107, 5000]
    assert spread.robust_cv(values) == pytest.approx(1.4826 * 2 / 104)
    assert spread.iqr(values) == 106 - 102
    assert spread.jitter([10, 12, 11, 15]) == pytest.approx(2 / 11)
    assert spread.jitter([10]) is None
    assert spread.robust_cv([0, 0]) == 0
    assert spread.trimmed_mean([1, 2, 3]) == 2


def test_robust_cv_estimates_the_deviation() -> None:
    values = simulate.iid(random.Random(8), 1, 20_000)[0]
    assert spread.robust_cv(values) == pytest.approx(simulate.NOISE, rel=0.03)


def test_fences_by_hand() -> None:
    values = [80, 90, 90, 100, 100, 100, 110, 110, 300]
    first, third, reach = 90, 110, 20
    assert spread.tukey(values) == (first - 3 * reach, first - 1.5 * reach, third + 1.5 * reach, third + 3 * reach)
    fences = spread.Fences(20, 40, 160, 180)
    assert spread.classify([19, 20, 39, 40, 160, 161, 180, 181, 999], fences) == (1, 2, 2, 2)


def test_fences_leave_the_steps_of_a_clock_alone() -> None:
    """Nearly all calls in one tick of the clock: the next tick is no outlier, 2 % more is."""
    values = [10_000] * 90 + [10_040] * 10
    assert spread.classify(values, spread.tukey(values)) == (0, 0, 0, 0)
    values += [10_150, 10_250]
    assert spread.classify(values, spread.tukey(values)) == (0, 0, 1, 1)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60))
def test_fences_are_in_order_and_count_each_value_once(values: list[int]) -> None:
    fences = spread.tukey(values)
    assert list(fences) == sorted(fences)
    counts = spread.classify(values, fences)
    beyond = sum(not fences.low_mild <= value <= fences.high_mild for value in values)
    assert sum(counts) == beyond
    assert fences.low_mild <= stats.percentile(values, 0.5) <= fences.high_mild


def test_outliers_are_said_of_spikes_and_rarely_of_noise() -> None:
    """Severe ones by the fences of each process: at most 1 call in 2,000 of noise, 9 in 10 spikes."""
    rng = random.Random(9)
    severe = {"iid": 0, "spikes": 0}
    for generator in (simulate.IID, simulate.SPIKES):
        for _ in range(40):
            for values in generator.make(rng, 10, 150):
                counts = spread.classify(values, spread.tukey(values))
                severe[generator.name] += counts.low_severe + counts.high_severe
    assert severe["iid"] <= 40 * 1500 / 2000
    assert severe["spikes"] >= 0.9 * simulate.SPIKE_SHARE * 40 * 1500
