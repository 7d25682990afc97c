"""Passes: Model -> Model rewrites. A pass is a value; the two tuples below are the whole registry."""

from __future__ import annotations

from edgeopt.model import ABSORBED
from edgeopt.passes._pass import Applied, Pass, Refusal, Rewritten, apply
from edgeopt.passes.convert_opset import CONVERT_OPSET
from edgeopt.passes.drop_initializer_inputs import DROP_INITIALIZER_INPUTS
from edgeopt.passes.fold_affine import FOLD_AFFINE
from edgeopt.passes.fold_batchnorm import FOLD_BATCHNORM
from edgeopt.passes.fold_constants import FOLD_CONSTANTS
from edgeopt.passes.fold_pad import FOLD_PAD
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.inline_functions import INLINE_FUNCTIONS
from edgeopt.passes.lift_constants import LIFT_CONSTANTS
from edgeopt.passes.matmul_add_to_gemm import MATMUL_ADD_TO_GEMM
from edgeopt.passes.mean_to_pool import MEAN_TO_POOL
from edgeopt.passes.merge_equal_nodes import MERGE_EQUAL_NODES
from edgeopt.passes.remove_identity import REMOVE_IDENTITY
from edgeopt.passes.remove_noops import REMOVE_NOOPS
from edgeopt.passes.remove_unused import REMOVE_UNUSED
from edgeopt.passes.share_initializers import SHARE_INITIALIZERS
from edgeopt.passes.simplify_reshapes import SIMPLIFY_RESHAPES
from edgeopt.passes.simplify_transposes import SIMPLIFY_TRANSPOSES

NORMALIZE: tuple[Pass, ...] = (
    INLINE_FUNCTIONS,  # first: the version converter does not look into functions
    DROP_INITIALIZER_INPUTS,
    LIFT_CONSTANTS,
    CONVERT_OPSET,
    INFER_SHAPES,
    REMOVE_IDENTITY,
    SHARE_INITIALIZERS,
    MERGE_EQUAL_NODES,
    FOLD_CONSTANTS,
    SIMPLIFY_TRANSPOSES,
    SIMPLIFY_RESHAPES,
    REMOVE_NOOPS,
    REMOVE_UNUSED,
)
"""Rewrites that bring any model into one form, in order. They change no weight that is used as it is."""

FUSIONS: tuple[Pass, ...] = (
    FOLD_PAD,
    MATMUL_ADD_TO_GEMM,
    FOLD_BATCHNORM,
    FOLD_AFFINE,
    MEAN_TO_POOL,
)
"""Rewrites that join operators, in order. Each is one step of a build, checked on real inputs."""

__all__ = ["ABSORBED", "FUSIONS", "NORMALIZE", "Applied", "Pass", "Refusal", "Rewritten", "apply"]
