"""What changed in an operator's version, and the rule that takes it back.

``WIDER`` lists versions that only accept more element types than the one before, and texts that only say more
clearly what was meant. ``RULES`` holds the others. A version that is in neither is refused. Both were read from the
schemas of ONNX 1.23 (opset 28) and are tested on the node cases of the standard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeopt.passes.lower_opset import _attributes as attributes
from edgeopt.passes.lower_opset import _shaping as shaping
from edgeopt.passes.lower_opset import _spelled_out as spelled_out
from edgeopt.passes.lower_opset._site import Site

Rule = Callable[[Site], str | None]
"""Takes a node to the version before, or emits what replaces it; returns why it cannot."""

_WIDER = """
Acos-22 Acosh-22 Add-14 Asin-22 Asinh-22 Atan-22 Atanh-22 BatchNormalization-15 Cast-21 Cast-23 Cast-25 Cast-28
CastLike-21 CastLike-23 CastLike-25 Celu-28 Compress-28 Constant-19 Constant-21 Constant-23 Constant-24 Constant-25
ConstantOfShape-20 ConstantOfShape-21 ConstantOfShape-23 ConstantOfShape-24 ConstantOfShape-25 Conv-22 ConvTranspose-22
Cos-22 Cosh-22 CumSum-14 DeformConv-22 DepthToSpace-28 DequantizeLinear-19 DequantizeLinear-24 DequantizeLinear-25
DequantizeLinear-28 Det-22 Div-14 Dropout-22 Einsum-28 Elu-22 Equal-19 EyeLike-22 Flatten-21 Flatten-23 Flatten-24
Flatten-25 GRU-22 GlobalAveragePool-22 GlobalLpPool-22 GlobalMaxPool-22 GreaterOrEqual-16 GridSample-22 HardSigmoid-22
HardSwish-22 Identity-14 Identity-16 Identity-19 Identity-21 Identity-23 Identity-24 Identity-25 If-16 If-19 If-21
If-23 If-24 If-25 InstanceNormalization-22 IsInf-20 IsNaN-20 LSTM-22 LeakyRelu-16 LessOrEqual-16 Loop-16 Loop-19
Loop-21 Loop-23 Loop-24 Loop-25 LpNormalization-22 LpPool-22 MaxRoiPool-22 MaxUnpool-22 Mish-22 Mul-14
NegativeLogLikelihoodLoss-22 OneHot-28 PRelu-16 Pad-21 Pad-23 Pad-24 Pad-25 Pow-15 QLinearMatMul-21 QuantizeLinear-24
QuantizeLinear-25 QuantizeLinear-28 RNN-22 ReduceLogSum-28 ReduceLogSumExp-28 Relu-14 Reshape-19 Reshape-21 Reshape-23
Reshape-24 Reshape-25 ReverseSequence-28 RoiAlign-22 Round-22 Scan-16 Scan-19 Scan-21 Scan-23 Scan-24 Scan-25 Selu-22
Shape-19 Shape-21 Shape-23 Shape-24 Shape-25 Sin-22 Sinh-22 Size-19 Size-21 Size-23 Size-24 Size-25 Softplus-22
Softsign-22 SplitToSequence-24 Squeeze-21 Squeeze-23 Squeeze-24 Squeeze-25 Sub-14 Tan-22 ThresholdedRelu-22 TopK-24
Transpose-21 Transpose-23 Transpose-24 Transpose-25 Unique-28 Unsqueeze-21 Unsqueeze-23 Unsqueeze-24 Unsqueeze-25
Where-16 RandomNormal-22 RandomNormalLike-22 RandomUniform-22 RandomUniformLike-22 Multinomial-22 Bernoulli-22
"""


def _key(word: str) -> tuple[str, int]:
    op, _, version = word.rpartition("-")
    return op, int(version)


WIDER = frozenset(map(_key, _WIDER.split()))

_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"),
    "ReduceSumSquare",
)

RULES: Mapping[tuple[str, int], Rule] = {
    ("AffineGrid", 20): spelled_out.by_definition,
    ("Attention", 23): spelled_out.by_definition,
    ("Attention", 24): spelled_out.by_definition,
    ("Attention", 25): spelled_out.by_definition,
    ("AveragePool", 19): attributes.average_pool_19,
    ("AveragePool", 22): attributes.pool_22,
    ("BatchNormalization", 14): attributes.batch_normalization_14,
    ("BitShift", 28): attributes.bit_shift_28,
    ("BlackmanWindow", 17): spelled_out.by_definition,
    ("Cast", 19): attributes.saturate,
    ("Cast", 24): attributes.round_mode,
    ("CastLike", 15): spelled_out.cast_like,
    ("CastLike", 19): spelled_out.cast_like,
    ("CastLike", 24): spelled_out.cast_like,
    ("CausalConvWithState", 27): spelled_out.by_definition,
    ("CenterCropPad", 18): spelled_out.by_definition,
    ("DFT", 20): attributes.dft_20,
    ("DequantizeLinear", 21): attributes.dequantize_21,
    ("DequantizeLinear", 23): attributes.dequantize_23,
    ("GRU", 14): attributes.layout,
    ("Gelu", 20): spelled_out.gelu,
    ("GridSample", 20): attributes.grid_sample_20,
    ("GroupNormalization", 18): spelled_out.group_normalization,
    ("GroupNormalization", 21): spelled_out.group_normalization,
    ("HammingWindow", 17): spelled_out.by_definition,
    ("HannWindow", 17): spelled_out.by_definition,
    ("HardSwish", 14): spelled_out.hard_swish,
    ("LSTM", 14): attributes.layout,
    ("LayerNormalization", 17): spelled_out.layer_normalization,
    ("LinearAttention", 27): spelled_out.by_definition,
    ("LpPool", 18): attributes.lp_pool_18,
    ("MaxPool", 22): attributes.pool_22,
    ("Mish", 18): spelled_out.mish,
    ("Mod", 28): attributes.mod_28,
    ("Pad", 18): shaping.pad_18,
    ("Pad", 19): attributes.pad_19,
    ("QuantizeLinear", 19): attributes.saturate,
    ("QuantizeLinear", 21): attributes.quantize_21,
    ("QuantizeLinear", 23): attributes.quantize_23,
    ("RMSNormalization", 23): spelled_out.rms_normalization,
    ("RNN", 14): attributes.layout,
    ("Range", 27): attributes.range_27,
    ("ReduceMax", 20): spelled_out.boolean_reduction,
    ("ReduceMin", 20): spelled_out.boolean_reduction,
    ("Reshape", 14): shaping.reshape_14,
    ("Resize", 18): shaping.resize_18,
    ("Resize", 19): attributes.resize_19,
    ("RoiAlign", 16): attributes.roi_align_16,
    ("RotaryEmbedding", 23): spelled_out.by_definition,
    ("ScatterElements", 16): attributes.scatter_16,
    ("ScatterElements", 18): attributes.scatter_18,
    ("ScatterND", 16): attributes.scatter_16,
    ("ScatterND", 18): attributes.scatter_18,
    ("Shape", 15): shaping.shape_15,
    ("SpaceToDepth", 28): attributes.space_to_depth_28,
    ("Split", 18): shaping.split_18,
    ("SwiGLU", 28): spelled_out.by_definition,
    ("Swish", 24): spelled_out.swish,
    ("Trilu", 14): shaping.trilu_14,
    **{(op, 18): shaping.reduction_18 for op in _REDUCTIONS},
}
