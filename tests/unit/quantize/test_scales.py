from __future__ import annotations

import numpy as np

from edgeopt.quantize.scales import LEAST, TRIED, search_scales


def error(weights: np.ndarray, scales: np.ndarray, importance: np.ndarray, limit: int) -> np.ndarray:
    spread = scales.astype(np.float64)[..., None]
    return ((np.clip(np.rint(weights / spread), -limit, limit) * spread - weights) ** 2 * importance).sum(2)


def test_an_outlier_is_cut_where_that_pays() -> None:
    rng = np.random.default_rng(0)
    weights = rng.uniform(-1, 1, (1, 6, 400))
    weights[0, :3, 0] = 1.6
    widest = np.abs(weights).max(2) / 7
    ones = np.ones((1, 1, 400))
    found = search_scales(weights, widest, 4, None)
    assert (found <= widest.astype(np.float32)).all()
    assert (found[0, :3] < 0.9 * widest[0, :3]).all()
    assert (error(weights, found, ones, 7) <= error(weights, widest, ones, 7) * (1 + 1e-6)).all()


def test_a_weight_that_matters_is_not_cut() -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, (1, 1, 400))
    weights[0, 0, 0] = 1.6
    widest = np.abs(weights).max(2) / 7
    importance = np.ones((1, 400))
    importance[0, 0] = 1e6
    found = search_scales(weights, widest, 4, importance)
    steps = 1.6 / found[0, 0]
    assert abs(np.clip(np.rint(steps), -7, 7) * found[0, 0] - 1.6) < 0.01


def test_it_is_the_best_of_what_is_tried() -> None:
    weights = np.random.default_rng(1).standard_normal((2, 3, 50))
    importance = np.random.default_rng(2).uniform(0.1, 2, (2, 50))
    widest = np.abs(weights).max(2) / 7
    tried = [
        error(weights, (widest * t).astype(np.float32), importance[:, None], 7) for t in np.linspace(1, LEAST, TRIED)
    ]
    found = error(weights, search_scales(weights, widest, 4, importance), importance[:, None], 7)
    np.testing.assert_allclose(found, np.min(tried, axis=0), rtol=1e-6)


def test_zeros_keep_their_scale() -> None:
    widest = np.full((1, 2), 2.0**-100, np.float32)
    np.testing.assert_array_equal(search_scales(np.zeros((1, 2, 9)), widest, 8, np.zeros((1, 9))), widest)
