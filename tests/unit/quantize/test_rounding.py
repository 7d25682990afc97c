from __future__ import annotations

import itertools

import numpy as np
import pytest

from edgeopt.quantize.rounding import damped, round_second_order


def problem(seed: int, groups: int, rows: int, count: int, positions: int = 400) -> tuple[np.ndarray, ...]:
    """Weights, scales and second moments of inputs that go together, as those of real networks do."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((groups, positions, 2)) @ rng.standard_normal((groups, 2, count))
    x = np.maximum(common + 0.5 * rng.standard_normal((groups, positions, count)), 0)
    weights = rng.standard_normal((groups, rows, count))
    return weights, np.abs(weights).max(2) / 7, x.swapaxes(1, 2) @ x / positions


def cost(integers: np.ndarray, weights: np.ndarray, scales: np.ndarray, second: np.ndarray) -> np.ndarray:
    """E|(W - Q) x|^2 of every row, from its definition."""
    error = integers * scales[..., None] - weights
    return np.einsum("grk,gkl,grl->gr", error, second, error)


def nearest(weights: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.rint(weights / scales[..., None])


@pytest.mark.parametrize(("groups", "rows", "count"), [(1, 24, 90), (16, 1, 9), (3, 4, 25)])
def test_it_beats_rounding_to_nearest_in_every_row(groups: int, rows: int, count: int) -> None:
    weights, scales, second = problem(1, groups, rows, count)
    found = round_second_order(weights, scales, second, 4)
    assert found.dtype == np.int8
    assert np.abs(found).max() <= 7
    before, after = cost(nearest(weights, scales), weights, scales, second), cost(found, weights, scales, second)
    assert after.sum() < 0.6 * before.sum()
    assert (after <= before * 1.05).all()


def test_it_comes_near_the_best_of_all_roundings() -> None:
    """Six weights have 64 roundings up or down: all are tried."""
    weights, scales, second = problem(2, 1, 12, 6)
    found = cost(round_second_order(weights, scales, second, 4), weights, scales, damped(second))[0]
    floor = np.floor(weights[0] / scales[0][:, None])
    every = np.stack([floor + np.array(up) for up in itertools.product((0, 1), repeat=6)])
    best = cost(every, weights[0], scales[0], np.broadcast_to(damped(second), (64, 6, 6))).min(axis=0)
    assert found.sum() <= 1.15 * best.sum() + 1e-12


def test_inputs_that_do_not_go_together_are_rounded_to_nearest() -> None:
    weights, scales, _ = problem(3, 2, 5, 30)
    second = np.stack([np.diag(np.arange(1.0, 31))] * 2)
    np.testing.assert_array_equal(round_second_order(weights, scales, second, 4), nearest(weights, scales))


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    weights, scales, second = problem(4, 2, 5, 20)
    second[0] = 0
    second[1, 3] = second[1, :, 3] = 0
    found = round_second_order(weights, scales, second, 4)
    np.testing.assert_array_equal(found[0], nearest(weights, scales)[0])
    np.testing.assert_array_equal(found[1, :, 3], nearest(weights, scales)[1, :, 3])


def test_one_matrix_is_one_group_and_a_factor_has_no_influence() -> None:
    weights, scales, second = problem(5, 1, 8, 70)
    grouped = round_second_order(weights, scales, second, 8)
    np.testing.assert_array_equal(round_second_order(weights[0], scales[0], second[0], 8), grouped[0])
    np.testing.assert_array_equal(round_second_order(weights, scales, second * 2.0**20, 8), grouped)


def test_a_planted_wrong_order_of_weights_is_caught() -> None:
    """The oracle tells columns that are mixed up from those that are not."""
    weights, scales, second = problem(1, 1, 24, 90)
    mixed = np.roll(second, 1, axis=(1, 2))
    before = cost(nearest(weights, scales), weights, scales, second).sum()
    assert cost(round_second_order(weights, scales, mixed, 4), weights, scales, second).sum() > 0.6 * before
