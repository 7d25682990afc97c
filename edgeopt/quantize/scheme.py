"""Affine integer quantization: real = scale * (integer - zero point).

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", CVPR 2018. Activations are asymmetric per tensor, weights symmetric per output channel.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

MIN_SCALE = np.float32(2.0**-100)
"""Smallest scale written: well above float32 denormals, so that products of two scales stay normal."""

BIAS_LIMIT = 2**31 - 2**16
"""Largest |int32 bias|: head room so that the accumulator does not overflow at once."""

_LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class QParams:
    """Scale and zero point of one tensor; ``dtype`` is ``"int8"`` or ``"uint8"``."""

    scale: np.float32
    zero_point: int
    dtype: str

    @property
    def low(self) -> float:
        """Smallest real value that can be represented."""
        return float(self.scale) * (_LIMITS[self.dtype][0] - self.zero_point)

    @property
    def high(self) -> float:
        """Largest real value that can be represented."""
        return float(self.scale) * (_LIMITS[self.dtype][1] - self.zero_point)

    def within(self, low: float, high: float) -> QParams:
        """The same zero point with a scale small enough that no value lies outside ``[low, high]``, which contains 0.

        A runtime drops a Relu or Clip before a quantizer that saturates at the same bounds.
        """
        qmin, qmax = _LIMITS[self.dtype]
        scale = float(self.scale)
        if self.zero_point > qmin and math.isfinite(low):
            scale = min(scale, -low / (self.zero_point - qmin))
        if self.zero_point < qmax and math.isfinite(high):
            scale = min(scale, high / (qmax - self.zero_point))
        if scale == float(self.scale) or scale < MIN_SCALE:
            return self
        fitted = np.float32(scale)
        if float(fitted) > scale:  # compared in float64: numpy would round the other side first
            fitted = np.nextafter(fitted, np.float32(0))
        return dataclasses.replace(self, scale=fitted)


def activation_qparams(low: float, high: float, dtype: str) -> QParams:
    """Asymmetric parameters whose grid contains zero exactly and covers ``[low, high]``.

    A one-sided range puts the zero point at the end of the integer range, which is what lets a
    runtime drop a Relu before the quantizer.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    qmin, qmax = _LIMITS[dtype]
    scale = np.float32((high - low) / (qmax - qmin))
    if scale < MIN_SCALE:
        # A constant zero (or denormal) tensor: any finite scale represents it.
        zero_point = qmin if low == 0.0 else (qmin + qmax + 1) // 2
        return QParams(scale=np.float32(max(abs(low), abs(high), 2.0**-60) / 127), zero_point=zero_point, dtype=dtype)
    if low == 0.0 and scale * np.float32(qmax - qmin) > np.float32(high):
        scale = np.nextafter(scale, np.float32(0))  # stay inside a Clip's bound, or the runtime keeps the Clip
    zero_point = int(np.clip(np.rint(qmin - low / float(scale)), qmin, qmax))
    return QParams(scale=scale, zero_point=zero_point, dtype=dtype)


def quantize(values: np.ndarray, params: QParams) -> np.ndarray:
    """Real values to integers, round half to even, saturating."""
    qmin, qmax = _LIMITS[params.dtype]
    integers: np.ndarray = np.clip(np.rint(values / params.scale) + params.zero_point, qmin, qmax)
    return integers.astype(params.dtype)


def dequantize(integers: np.ndarray, params: QParams) -> np.ndarray:
    """Integers to real values, float32."""
    return ((integers.astype(np.int32) - params.zero_point) * params.scale).astype(np.float32)


def weight_scales(weights: np.ndarray, axis: int | None, bits: int) -> np.ndarray:
    """Symmetric scales, float32: one per index of ``axis``, or one in all when ``axis`` is None.

    A channel of zeros gets ``MIN_SCALE``: finite, positive, and it dequantizes to exactly 0.
    """
    axes = None if axis is None else tuple(a for a in range(weights.ndim) if a != axis)
    peak = np.max(np.abs(weights.astype(np.float64)), axis=axes, initial=0.0)
    scales: np.ndarray = np.maximum(peak / (2 ** (bits - 1) - 1), MIN_SCALE)
    return scales.astype(np.float32)


def fit_bias(scales: np.ndarray, bias: np.ndarray, activation_scale: np.float32) -> np.ndarray:
    """Raise weight scales until every bias fits int32 at ``activation_scale * scale``.

    A channel of tiny weights with an ordinary bias would otherwise saturate; its weights lose
    resolution that the bias dwarfs by construction.
    """
    needed = np.abs(bias.astype(np.float64)) / (BIAS_LIMIT * np.float64(activation_scale))
    fitted: np.ndarray = np.maximum(scales.astype(np.float64), needed)
    return fitted.astype(np.float32)


def quantize_weights(weights: np.ndarray, scales: np.ndarray, axis: int | None, bits: int) -> np.ndarray:
    """Weights to int8 with zero point 0, saturating at ``+-(2**(bits-1) - 1)``."""
    limit = 2 ** (bits - 1) - 1
    spread = expand(scales, weights.ndim, axis)
    integers: np.ndarray = np.clip(np.rint(weights.astype(np.float64) / spread), -limit, limit)
    return integers.astype(np.int8)


def expand(scales: np.ndarray, ndim: int, axis: int | None) -> np.ndarray:
    """Scales shaped to broadcast against a tensor of ``ndim`` dims along ``axis``."""
    if axis is None:
        return scales.reshape((1,) * ndim)
    return scales.reshape(tuple(-1 if a == axis else 1 for a in range(ndim)))


def quantize_bias(bias: np.ndarray, activation_scale: np.float32, scales: np.ndarray) -> np.ndarray:
    """Bias to int32 at ``activation_scale * scales`` (broadcast when per tensor)."""
    step = np.float32(activation_scale) * scales.astype(np.float32)
    return np.rint(bias.astype(np.float64) / step.astype(np.float64)).astype(np.int32)
