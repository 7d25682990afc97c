"""Weights in blocks: what the integers stand for, how they are packed, and that moments help the output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.quantize.blocks import Blocks, pack, quantize_blocks


def unpack(packed: np.ndarray) -> np.ndarray:
    """Oracle: the low half of a byte comes first."""
    return np.stack([packed % 16, packed // 16], axis=-1).reshape(*packed.shape[:-1], -1)


def matrix(seed: int, outputs: int, inputs: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    loud = rng.uniform(0.05, 2.0, (outputs, 1))
    return (rng.standard_t(4, (outputs, inputs)) * loud * scale).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(16, 70),
    st.sampled_from([4, 8]),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    st.booleans(),
)
def test_a_weight_inside_its_grid_is_off_by_half_a_step(
    seed: int, outputs: int, inputs: int, bits: int, scale: float, centred: bool
) -> None:
    rows = matrix(seed, outputs, inputs, scale)
    rows[0, ::3] = 0
    made = quantize_blocks(rows, bits, 16, centred=centred)
    top = 2**bits - 1
    assert made.integers.max() <= top
    assert made.zeros.max() <= top
    assert np.isfinite(made.scales).all()
    assert (made.scales > 0).all()
    assert not centred or (made.zeros == 2 ** (bits - 1)).all()
    restored = made.restored(inputs)
    step = np.repeat(made.scales, 16, axis=1)[:, :inputs]
    inside = (made.integers[:, :inputs] > 0) & (made.integers[:, :inputs] < top)
    assert (np.abs(restored - rows)[inside] <= (0.5 + 1e-4) * step[inside]).all()
    assert (restored[rows == 0] == 0).all()


def test_the_search_errs_no_more_than_the_full_range() -> None:
    rows = matrix(3, 24, 128)
    found = quantize_blocks(rows, 4, 32).restored(128)
    blocks = rows.reshape(24, 4, 32)
    low, high = np.minimum(blocks.min(2), 0), np.maximum(blocks.max(2), 0)
    scale = (high - low)[..., None] / 15
    zero = np.rint(-low[..., None] / scale)
    plain = ((np.clip(np.rint(blocks / scale) + zero, 0, 15) - zero) * scale).reshape(24, 128)
    error, before = (np.square(a - rows).reshape(24, 4, 32).sum(axis=2) for a in (found, plain))
    assert (error <= before * (1 + 1e-5)).all()
    assert error.sum() < 0.95 * before.sum()


@pytest.mark.parametrize("inputs", [32, 40, 48])
def test_packed_bytes_hold_every_integer_and_zero_point(inputs: int) -> None:
    made = quantize_blocks(matrix(4, 5, inputs), 4, 16)
    np.testing.assert_array_equal(unpack(made.packed()), made.integers)
    zeros = unpack(made.packed_zeros())
    np.testing.assert_array_equal(zeros[:, : made.zeros.shape[1]], made.zeros)
    assert (zeros[:, made.zeros.shape[1] :] == 8).all()
    swapped = Blocks(pack(made.integers[:, ::-1]), made.scales, made.zeros, 16, 4)
    assert not np.array_equal(unpack(swapped.integers), made.integers)  # the oracle knows the order of a byte


def test_moments_of_correlated_inputs_lower_the_error_of_the_output() -> None:
    rng = np.random.default_rng(5)
    mix = rng.standard_normal((64, 64)) @ np.diag(np.geomspace(1, 0.01, 64)) @ rng.standard_normal((64, 64))
    inputs = rng.standard_normal((2000, 64)) @ mix
    second = inputs.T @ inputs
    rows = matrix(6, 32, 64)
    errors = {}
    for name, known in (("nearest", None), ("moments", second), ("planted", np.linalg.inv(second))):
        error = quantize_blocks(rows, 4, 32, known).restored(64).astype(np.float64) - rows
        errors[name] = np.einsum("ok,kl,ol->", error, second, error)
    assert errors["moments"] < 0.4 * errors["nearest"]
    assert errors["planted"] > errors["moments"]  # moments of other inputs do not help these


def test_zero_and_denormal_blocks_have_finite_scales() -> None:
    rows = np.zeros((3, 32), np.float32)
    rows[1] = 1e-40
    rows[2, :16] = 1.0
    made = quantize_blocks(rows, 4, 16, np.zeros((32, 32)))
    assert np.isfinite(made.scales).all()
    assert (made.scales > 0).all()
    assert (made.restored(32)[0] == 0).all()
    np.testing.assert_allclose(made.restored(32)[2], rows[2], rtol=1e-6)


def test_the_same_matrix_gives_the_same_integers() -> None:
    rows, second = matrix(8, 16, 64), np.eye(64) + 0.3
    first, again = (quantize_blocks(rows, 4, 32, second) for _ in range(2))
    for a, b in zip(first[:3], again[:3], strict=True):
        np.testing.assert_array_equal(a, b)
