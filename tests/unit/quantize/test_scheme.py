from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.quantize import scheme

dtypes = st.sampled_from(["int8", "uint8"])
reals = st.floats(-(2.0**66), 2.0**66, allow_nan=False, width=32)


@settings(max_examples=200, deadline=None)
@given(reals, reals, dtypes)
def test_zero_is_exact_and_the_range_is_covered(a: float, b: float, dtype: str) -> None:
    low, high = min(a, b), max(a, b)
    params = scheme.activation_qparams(low, high, dtype)
    assert np.isfinite(params.scale)
    assert params.scale > 0
    zero = scheme.dequantize(scheme.quantize(np.float32([0]), params), params)
    assert zero[0] == 0
    slack = 0.51 * float(params.scale) + 1e-6 * max(abs(low), abs(high))
    assert params.low <= min(low, 0) + slack
    assert params.high >= max(high, 0) - slack


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), dtypes)
def test_round_trip_error_is_at_most_half_a_step(values: list[float], dtype: str) -> None:
    array = np.array(values, np.float32)
    params = scheme.activation_qparams(float(array.min()), float(array.max()), dtype)
    back = scheme.dequantize(scheme.quantize(array, params), params)
    # One more half step where a bound of the range falls between two integers.
    assert np.max(np.abs(back - array)) <= 1.01 * float(params.scale)
    again = scheme.dequantize(scheme.quantize(back, params), params)
    np.testing.assert_array_equal(again, back)


def test_a_planted_zero_point_error_is_caught() -> None:
    array = np.linspace(-1, 3, 50, dtype=np.float32)
    params = scheme.activation_qparams(-1, 3, "int8")
    wrong = scheme.QParams(scale=params.scale, zero_point=params.zero_point + 3, dtype="int8")
    back = scheme.dequantize(scheme.quantize(array, params), wrong)
    assert np.max(np.abs(back - array)) > 1.01 * float(params.scale)


def test_one_sided_ranges_use_the_whole_grid_and_stay_inside_a_clip() -> None:
    for high in (6.0, 5.999, 0.1, 1e-3, 777.7):
        params = scheme.activation_qparams(0.0, high, "int8")
        assert params.zero_point == -128
        assert np.float32(params.scale * np.float32(255)) <= np.float32(high)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_constant_zero_and_denormal_tensors(dtype: str) -> None:
    for low, high in ((0.0, 0.0), (1e-45, 1e-45), (-1e-40, 0.0)):
        params = scheme.activation_qparams(low, high, dtype)
        assert np.isfinite(params.scale)
        assert params.scale > np.finfo(np.float32).tiny


def test_q03_zero_and_tiny_channels() -> None:
    weights = np.ones((8, 3, 3, 3), np.float32)
    weights[1], weights[2], weights[3] = 0, 1e-6, 1e-40
    with np.errstate(all="raise", under="ignore"):
        scales = scheme.weight_scales(weights, 0, 8)
        integers = scheme.quantize_weights(weights, scales, 0, 8)
    assert np.isfinite(scales).all()
    assert (scales > 0).all()
    back = integers.astype(np.float32) * scheme.expand(scales, 4, 0)
    assert (back[1] == 0).all()
    np.testing.assert_allclose(back[2], 1e-6, rtol=0.01)


@pytest.mark.parametrize("bits", [7, 8])
def test_weights_within_half_a_step_and_symmetric(bits: int) -> None:
    weights = np.random.default_rng(1).standard_normal((6, 5, 3, 3)).astype(np.float32)
    scales = scheme.weight_scales(weights, 0, bits)
    integers = scheme.quantize_weights(weights, scales, 0, bits)
    assert np.abs(integers.astype(int)).max() == 2 ** (bits - 1) - 1
    error = np.abs(integers * scheme.expand(scales, 4, 0) - weights)
    assert (error <= 0.5001 * scheme.expand(scales, 4, 0)).all()


def test_q02_bias_never_saturates() -> None:
    scales = np.float32([1.5e-11, 1e-2, scheme.MIN_SCALE, scheme.MIN_SCALE])
    bias = np.float32([6.25, 0.125, -3.0, 0.5])
    activation = np.float32(0.0078)
    fitted = scheme.fit_bias(scales, bias, activation)
    stored = scheme.quantize_bias(bias, activation, fitted)
    assert np.abs(stored.astype(np.int64)).max() < 2**31 - 1
    np.testing.assert_allclose(stored * (activation * fitted).astype(np.float64), bias, rtol=0.01, atol=1e-4)
    assert fitted[1] == scales[1]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-0.5, 0.7), (0.0, 6.0), (-math.inf, 0.4), (-0.3, math.inf)])
def test_a_grid_within_the_bounds_of_a_clip(bounds: tuple[float, float], dtype: str) -> None:
    observed = max(bounds[0], -3.0), min(bounds[1], 3.0)
    free = scheme.activation_qparams(*observed, dtype)
    grid = free.within(*bounds)
    assert bounds[0] <= grid.low
    assert grid.high <= bounds[1]
    assert grid.zero_point == free.zero_point
    # At most one step is lost at either end.
    assert grid.low - observed[0] <= float(free.scale)
    assert observed[1] - grid.high <= float(free.scale)


def test_a_grid_that_fits_is_left_alone() -> None:
    grid = scheme.activation_qparams(-1.0, 2.0, "uint8")
    assert grid.within(-8.0, 8.0) is grid


@pytest.mark.parametrize(("dtype", "lowest"), [("int8", -128), ("uint8", 0)])
def test_a_tensor_of_zeros_has_a_one_sided_grid(dtype: str, lowest: int) -> None:
    grid = scheme.activation_qparams(0.0, 0.0, dtype)
    assert grid.zero_point == lowest
    assert grid.scale > 0
