"""Passes: Model -> Model rewrites. A pass is a value; the two tuples below are the whole registry."""

from __future__ import annotations

from edgeopt.model import ABSORBED
from edgeopt.passes._pass import Applied, Pass, Refusal, Rewritten, apply
from edgeopt.passes.convert_opset import CONVERT_OPSET
from edgeopt.passes.drop_initializer_inputs import DROP_INITIALIZER_INPUTS
from edgeopt.passes.fold_affine import FOLD_AFFINE
from edgeopt.passes.fold_affine_before import FOLD_AFFINE_BEFORE
from edgeopt.passes.fold_batchnorm import FOLD_BATCHNORM
from edgeopt.passes.fold_constants import FOLD_CONSTANTS, fold_constants
from edgeopt.passes.fold_hard_sigmoid import FOLD_HARD_SIGMOID
from edgeopt.passes.fold_pad import FOLD_PAD
from edgeopt.passes.fold_pixels import FOLD_PIXELS
from edgeopt.passes.fuse_clip import FUSE_CLIP
from edgeopt.passes.fuse_gelu import FUSE_GELU
from edgeopt.passes.fuse_hard_sigmoid import FUSE_HARD_SIGMOID
from edgeopt.passes.fuse_hard_swish import FUSE_HARD_SWISH
from edgeopt.passes.fuse_instance_norm import FUSE_INSTANCE_NORM
from edgeopt.passes.fuse_layer_norm import FUSE_LAYER_NORM
from edgeopt.passes.fuse_leaky_relu import FUSE_LEAKY_RELU
from edgeopt.passes.fuse_sigmoid import FUSE_SIGMOID
from edgeopt.passes.fuse_softmax import FUSE_SOFTMAX
from edgeopt.passes.fuse_softplus import FUSE_SOFTPLUS
from edgeopt.passes.gather_one_hot import GATHER_ONE_HOT
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.inline_functions import INLINE_FUNCTIONS
from edgeopt.passes.lift_constants import LIFT_CONSTANTS
from edgeopt.passes.matmul_add_to_gemm import MATMUL_ADD_TO_GEMM
from edgeopt.passes.mean_to_pool import MEAN_TO_POOL
from edgeopt.passes.merge_constants import MERGE_CONSTANTS
from edgeopt.passes.merge_equal_nodes import MERGE_EQUAL_NODES
from edgeopt.passes.regroup_transposes import REGROUP_TRANSPOSES
from edgeopt.passes.remove_identity import REMOVE_IDENTITY
from edgeopt.passes.remove_noops import REMOVE_NOOPS
from edgeopt.passes.remove_unused import REMOVE_UNUSED
from edgeopt.passes.resolve_shapes import RESOLVE_SHAPES
from edgeopt.passes.share_initializers import SHARE_INITIALIZERS
from edgeopt.passes.simplify_concats import SIMPLIFY_CONCATS
from edgeopt.passes.simplify_reshapes import SIMPLIFY_RESHAPES
from edgeopt.passes.simplify_transposes import SIMPLIFY_TRANSPOSES
from edgeopt.passes.sink_transposes import SINK_TRANSPOSES

NORMALIZE: tuple[Pass, ...] = (
    INLINE_FUNCTIONS,  # first: the version converter does not look into functions
    DROP_INITIALIZER_INPUTS,
    LIFT_CONSTANTS,
    CONVERT_OPSET,
    INFER_SHAPES,
    REMOVE_IDENTITY,
    SHARE_INITIALIZERS,
    MERGE_EQUAL_NODES,
    RESOLVE_SHAPES,  # before folding: it makes the constants that folding goes on from
    FOLD_CONSTANTS,
    SIMPLIFY_TRANSPOSES,
    REGROUP_TRANSPOSES,
    SIMPLIFY_RESHAPES,
    SIMPLIFY_CONCATS,
    SINK_TRANSPOSES,
    REMOVE_NOOPS,
    REMOVE_UNUSED,
)
"""Rewrites that bring any model into one form, in order. They change no weight that is used as it is."""

FUSIONS: tuple[Pass, ...] = (
    # Chains that spell one function, before the passes that would take their Mul, Add and ReduceMean apart.
    FUSE_CLIP,  # first: it makes the Clip that HardSwish and HardSigmoid are found by
    FUSE_SIGMOID,
    FUSE_LEAKY_RELU,
    FUSE_HARD_SWISH,  # before HardSigmoid, which would take a part of it
    FUSE_HARD_SIGMOID,
    FUSE_GELU,
    FUSE_LAYER_NORM,
    FUSE_INSTANCE_NORM,
    FUSE_SOFTMAX,
    FUSE_SOFTPLUS,
    GATHER_ONE_HOT,
    FOLD_PAD,
    MATMUL_ADD_TO_GEMM,
    FOLD_BATCHNORM,
    FOLD_AFFINE,
    FOLD_AFFINE_BEFORE,
    FOLD_HARD_SIGMOID,
    MERGE_CONSTANTS,  # what found no weights to go into
    MEAN_TO_POOL,
    FOLD_PIXELS,
)
"""Rewrites that join operators, in order. Each is one step of a build, checked on real inputs."""


def normalize(fold_limit: int | None = None) -> tuple[Pass, ...]:
    """``NORMALIZE``, with another limit for folded constants, in bytes."""
    if fold_limit is None:
        return NORMALIZE
    return tuple(fold_constants(fold_limit) if p is FOLD_CONSTANTS else p for p in NORMALIZE)


__all__ = ["ABSORBED", "FUSIONS", "NORMALIZE", "Applied", "Pass", "Refusal", "Rewritten", "apply", "normalize"]
