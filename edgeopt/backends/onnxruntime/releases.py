"""Which release of onnxruntime reads what: operator sets, IR versions, its own operators, its own format."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

OWN = "com.microsoft"
"""Domain of the runtime's own operators."""

RELEASES: tuple[tuple[str, int, int, int], ...] = (
    ("1.7.0", 13, 7, 2),
    ("1.8.0", 14, 7, 2),
    ("1.9.0", 15, 8, 2),
    ("1.11.0", 16, 8, 3),
    ("1.12.0", 17, 8, 3),
    ("1.14.0", 18, 8, 3),
    ("1.15.0", 19, 9, 3),
    ("1.17.0", 20, 9, 4),
    ("1.18.0", 21, 10, 5),
    ("1.21.0", 22, 10, 5),
    ("1.23.0", 23, 11, 5),
    ("1.24.1", 25, 13, 5),
    ("1.25.0", 26, 13, 5),
    ("1.32.0", 28, 14, 5),
)
"""Release, newest opset, IR version and ai.onnx.ml version that it reads; oldest first.

From 1.15 on each was tried with a stamped model; the older ones follow from the ONNX release they are built on.
"""

ORT_FORMATS: Mapping[str, str] = {"4": "1.8.0", "5": "1.13.0", "6": "1.16.0"}
"""Version of the ``.ort`` format -> the first release that reads it (6: 1.15 refuses it, 1.16 reads it, tried)."""

_OWN_OPERATORS = """
1.16.0: Attention AttnLSTM BeamSearch BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BifurcationDetector
  BitmaskBiasDropout BitmaskDropout CDist ComplexMul ComplexMulConj ConvTransposeWithDynamicPads CropAndResize
  DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention DequantizeBFP DequantizeLinear
  DequantizeWithOrder DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization ExpandDims FastGelu FusedConv
  FusedGemm FusedMatMul FusedMatMulActivation GatedRelativePositionBias GatherND Gelu GemmFastGelu GreedySearch
  GridSample GroupNorm Inverse Irfft IsAllFinite LongformerAttention MatMulFpQ4 MatMulInteger16 MatMulIntegerToFloat
  MaxpoolWithMask MulInteger MultiHeadAttention MurmurHash3 NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool
  PackedAttention PackedMultiHeadAttention Pad QAttention QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool
  QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid
  QLinearSoftmax QLinearWhere QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention
  QOrderedMatMul QuantizeBFP QuantizeLinear QuantizeWithOrder QuickGelu Range ReduceSumInteger RelativePositionBias
  RemovePadding RestorePadding Rfft SampleOp Sampling SkipLayerNormalization SkipSimplifiedLayerNormalization Snpe
  SparseToDenseMatMul Tokenizer TorchEmbedding TransposeMatMul Trilu Unique WordConvEmbedding
1.17.0: DynamicTimeWarping EPContext GemmFloat8 GroupQueryAttention MatMulBnb4 MatMulNBits MoE RotaryEmbedding
  SkipGroupNorm UnfoldTensor WhisperBeamSearch
1.18.0: GemmaRotaryEmbedding QMoE SparseAttention
1.20.0: GatherBlockQuantized
1.23.0: PagedAttention
1.26.0: CausalConvWithState LinearAttention
1.28.0: MatMulNBitsMlp MatMulNBitsQkv
1.30.0: EngramGate GatedAdd GatedDeltaNet GatedRMSNorm LinearAttentionGate MRotaryEmbedding
  MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight NGramHashMapping VarlenCausalConvWithState
1.31.0: BranchwiseRMSNorm DynamicSparseAttention HyperConnectionPostMix HyperConnectionPreMix
  PackedSparseAttentionIndexer ScaledSiLU SparseAttentionIndexer SparsePagedAttention VarlenNGramHashMapping
1.32.0: ConvStateReplay GatedDeltaNetStateReplay GatherPacked HyperConnectionLowRankMix Mamba2Verify MatMulNBitsQLoRA
  MatMulPacked MoEGroupRouter MoEPacked PackedSparseAttentionIndexerMerge RMSNormRotary RouterGateUpProj
  SpeculativePrefixCommit SwiGLU
"""
"""Release and the own operators that it brought; 1.16.0 is the oldest asked for its list, 1.32.0 the newest."""


def _since(text: str) -> dict[str, str]:
    found, release = {}, ""
    for word in text.split():
        if word.endswith(":"):
            release = word[:-1]
        else:
            found[word] = release
    return found


_SINCE: Mapping[str, str] = _since(_OWN_OPERATORS)

_FEATURES: Mapping[tuple[str, str], str] = {
    ("Attention", "rotary_embedding_dim"): "1.17.0",
    ("GatherBlockQuantized", "bits"): "1.23.0",
    ("GroupQueryAttention", "smooth_softmax"): "1.19.0",
    ("GroupQueryAttention", "softcap"): "1.20.0",
    ("GroupQueryAttention", "input 9"): "1.22.0",
    ("GroupQueryAttention", "input 10"): "1.22.0",
    ("MatMulNBits", "input 4"): "1.18.0",
    ("MatMulNBits", "input 5"): "1.19.0",
    ("MatMulNBits", "weight_prepacked"): "1.28.0",
    ("MultiHeadAttention", "unidirectional"): "1.17.0",
    ("MultiHeadAttention", "input 8"): "1.22.0",
    ("MultiHeadAttention", "input 9"): "1.22.0",
    ("RotaryEmbedding", "is_packed_batching"): "1.19.0",
}
"""Attributes and inputs that own operators got later."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnNode:
    """A node of the runtime's own domain: its operator, and the names of attributes and places of inputs it uses."""

    op: str
    uses: tuple[str, ...]


def version_key(version: str) -> tuple[int, ...]:
    """For comparison: the numbers of a version, three of them."""
    numbers = [int(n) for n in re.findall(r"\d+", version)[:3]]
    return tuple([*numbers, 0, 0, 0][:3])


def reads(version: str) -> tuple[int, int, int]:
    """Newest opset, IR and ai.onnx.ml version that a release reads; that of the oldest known one for older ones."""
    known = [r for r in RELEASES if version_key(r[0]) <= version_key(version)]
    _, opset, ir_version, ml = known[-1] if known else RELEASES[0]
    return opset, ir_version, ml


def oldest(
    *, opset: int, ir_version: int, ml: int = 0, own: Iterable[OwnNode] = (), ort_format: str | None = None
) -> str | None:
    """The oldest release that reads a model, None when no known one does."""
    fitting = [v for v, *top in RELEASES if opset <= top[0] and ir_version <= top[1] and ml <= top[2]]
    needed = fitting[:1]
    if ort_format is not None:
        needed.append(ORT_FORMATS.get(ort_format, ""))
    needed += [_own_since(node) for node in own]
    if not fitting or "" in needed:
        return None
    return max(needed, key=version_key)


def knows(op: str) -> bool:
    """Whether the release that brought an own operator is known, so that a file with it has an oldest one."""
    return op in _SINCE


def _own_since(node: OwnNode) -> str:
    """The release that has an own operator with what the node uses of it; "" when it is not in the table."""
    if node.op not in _SINCE:
        return ""
    return max([_SINCE[node.op], *(_FEATURES.get((node.op, use), "") for use in node.uses)], key=version_key)
