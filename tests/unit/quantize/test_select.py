"""Ranges from statistics: their error against a search on the values themselves, and what they never do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.quantize.ranges import Statistics
from edgeopt.quantize.scheme import activation_qparams
from edgeopt.quantize.select import METHODS, range_of

RNG = np.random.default_rng(5)
COUNT = 40_000

NORMAL = RNG.standard_normal(COUNT)
DATA = {
    "normal": NORMAL,
    "relu": np.maximum(NORMAL, 0),
    "relu6": np.clip(3 * NORMAL + 1, 0, 6),
    "heavy": RNG.standard_t(3, COUNT),
    "outlier": np.append(NORMAL, 300.0),
    "negative": -np.abs(NORMAL),
    "gelu": NORMAL / (1 + np.exp(-1.702 * NORMAL)),
    "away from zero": RNG.uniform(5, 6, COUNT),
}


def seen(values: np.ndarray) -> Statistics:
    statistics = Statistics()
    statistics.add(np.asarray(values, np.float32)[:, None])
    return statistics


def error(values: np.ndarray, found: tuple[float, float]) -> float:
    """Mean squared error of the grid that is made from a range, on the values themselves."""
    grid = activation_qparams(*found, "uint8")
    scale = float(grid.scale)
    integers = np.clip(np.round(values / scale) + grid.zero_point, 0, 255)
    return float(((scale * (integers - grid.zero_point) - values) ** 2).mean())


@pytest.mark.parametrize("name", DATA)
def test_mse_range_is_as_good_as_the_best_of_a_search(name: str) -> None:
    values = DATA[name]
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    shares = np.geomspace(0.02, 1, 40)
    best = min(
        error(values, (low * a, high * b))
        for a, b in itertools.product(shares if low else [1], shares if high else [1])
    )
    found = error(values, range_of([seen(values)], "mse"))
    # The zero point is a whole number, which moves the error of a narrow negative side about.
    assert found <= best * (1.3 if name == "gelu" else 1.06)
    assert found <= error(values, (low, high)) * 1.005


def divergence(values: np.ndarray, threshold: float, bins: int) -> float:
    """Migacz's, on even bins of a one-sided tensor, straight from the values; both ends are told exactly."""
    counts, _ = np.histogram(values[values > 0], bins=bins, range=(0, threshold))
    outside = int((values > threshold).sum())
    original = counts.astype(np.float64)
    original[-1] += outside
    coarse = np.zeros(bins)
    for start in range(0, bins, bins // 255):
        step = [i for i in range(start, start + bins // 255) if 0 < i < bins - 1 and original[i] > 0]
        coarse[step] = counts[step].sum() / max(len(step), 1)
    coarse[[0, -1]] = counts[[0, -1]]
    p, q = original / original.sum(), coarse / coarse.sum()
    where = p > 0
    return float((p[where] * np.log(p[where] / np.maximum(q[where], 1e-9))).sum())


@pytest.mark.parametrize("tail", [1.0, 30.0])
def test_kl_range_is_as_good_as_a_search_of_migacz(tail: float) -> None:
    values = np.maximum(np.random.default_rng(1).standard_normal(500_000), 0)
    values[:5] = tail * np.linspace(5, 6, 5)
    low, high = range_of([seen(values)], "kl")
    assert low == 0
    candidates = [divergence(values, t, 255 * 8) for t in np.geomspace(1, values.max(), 60)]
    assert divergence(values, high, 255 * 8) <= min(candidates) * 1.25
    assert (high < 0.2 * values.max()) == (tail == 30)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", DATA)
def test_a_range_holds_zero_and_stays_within_what_was_seen(method: str, name: str) -> None:
    values = DATA[name].astype(np.float32)
    low, high = range_of([seen(values)], method, percentile=99.9)
    assert min(float(values.min()), 0.0) <= low <= 0 <= high <= max(float(values.max()), 0.0)
    assert low < high
    assert (low == 0) == (values.min() >= 0)
    assert (high == 0) == (values.max() <= 0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [3.0, -2.0, 0.0, 1e-30])
def test_q07_a_constant_tensor_is_kept_exactly(method: str, value: float) -> None:
    found = range_of([seen(np.full(500, value))], method, percentile=99.0)
    assert found == (min(np.float32(value), 0.0), max(np.float32(value), 0.0))
    scale = activation_qparams(*found, "uint8").scale
    assert np.isfinite(scale)
    assert scale > 0


def test_kl_keeps_what_piles_up_at_a_bound() -> None:
    """A fifth of the values are 6: on a grid up to 6 they are exact."""
    values = np.clip(8 * np.random.default_rng(1).standard_normal(200_000), 0, 6)
    assert range_of([seen(values)], "kl") == (0.0, 6.0)


@pytest.mark.parametrize("method", METHODS)
def test_bounds_of_a_clip_that_is_reached_are_kept(method: str) -> None:
    """A tenth of the values are 6: no method may take them down."""
    assert range_of([seen(DATA["relu6"])], method, percentile=99.9) == (0.0, 6.0)


@pytest.mark.parametrize("method", METHODS)
def test_an_output_of_the_graph_loses_nothing(method: str) -> None:
    output, other = seen(DATA["outlier"]), seen(1000 * DATA["heavy"])
    low, high = range_of([output], method, percentile=99.0, uncut=[output])
    assert (low, high) == (output.minimum, output.maximum)
    low, high = range_of([output, other], method, percentile=90.0, uncut=[output])
    assert low <= output.minimum
    assert high >= output.maximum
    assert high == other.maximum or method != "min-max"
    assert high < other.maximum or method != "percentile"


@pytest.mark.parametrize("method", METHODS)
def test_tensors_that_share_take_the_range_of_all_values_together(method: str) -> None:
    parts = [DATA["relu6"], 2 * DATA["normal"], DATA["gelu"]]
    together = range_of([seen(np.concatenate(parts))], method, percentile=99.9)
    assert range_of([seen(p) for p in parts], method, percentile=99.9) == together
    assert range_of([seen(p) for p in parts[::-1]], method, percentile=99.9) == together


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=40),
    st.sampled_from(METHODS),
    st.floats(50, 100),
)
def test_any_values_give_a_finite_range_within_their_extremes(values: list[float], method: str, share: float) -> None:
    low, high = range_of([seen(np.array(values))], method, percentile=share)
    assert min(*values, 0.0) <= low <= 0 <= high <= max(*values, 0.0)
    grid = activation_qparams(low, high, "int8")
    assert np.isfinite(grid.scale)
    assert grid.scale > 0


def test_nothing_seen_and_an_unknown_method() -> None:
    assert range_of([Statistics()], "mse") == (0.0, 0.0)
    with pytest.raises(ValueError, match="entropy"):
        range_of([Statistics()], "entropy")


def test_a_planted_wrong_range_is_caught() -> None:
    values = DATA["normal"]
    good = range_of([seen(values)], "mse")
    assert error(values, (good[0] * 0.8, good[1] * 0.8)) > 1.06 * error(values, good)
