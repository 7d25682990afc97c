"""Rules that take an attribute back, where its value says what the older version does anyway."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import attr_int, attr_ints, attr_str, dims, input_at, other_outputs_used
from edgeopt.passes.lower_opset._site import Site


def layout(site: Site) -> str | None:
    """RNN, GRU, LSTM before 14 have the sequence first."""
    if attr_int(site.node, "layout", 0):
        return "the batch comes first (layout 1)"
    site.drop("layout")
    return None


def batch_normalization_14(site: Site) -> str | None:
    """Before 14 one output means inference."""
    if attr_int(site.node, "training_mode", 0) or other_outputs_used(site.node):
        return "it is in training mode"
    site.drop("training_mode")
    return None


def saturate(site: Site) -> str | None:
    """Only conversions to 8-bit floats look at it, and those types are not known before 19."""
    site.drop("saturate")
    return None


def round_mode(site: Site) -> str | None:
    """Only conversions to float8e8m0 look at it, and that type is not known before 24."""
    site.drop("round_mode")
    return None


def dequantize_21(site: Site) -> str | None:
    """Blocks are new in 21."""
    if attr_int(site.node, "block_size", 0):
        return "its scales are one per block"
    site.drop("block_size")
    return None


def dequantize_23(site: Site) -> str | None:
    """The output has the type of the scale."""
    wanted = attr_int(site.node, "output_dtype", 0)
    if wanted and site.dtype(1) != ir.DataType(wanted):
        return "its output has another type than its scale"
    site.drop("output_dtype")
    return None


def quantize_23(site: Site) -> str | None:
    """The division is done in the type of the scale, before 23 in that of x, which is the same."""
    precision = attr_int(site.node, "precision", 0)
    kinds = {site.dtype(0), site.dtype(1)}
    if (precision and kinds != {ir.DataType(precision)}) or len(kinds) != 1:
        return "it divides in another precision than its input's"
    site.drop("precision")
    return None


def quantize_21(site: Site) -> str | None:
    """Blocks are new; the type of the result is that of a zero point, which can be zeros."""
    if attr_int(site.node, "block_size", 0):
        return "its scales are one per block"
    wanted = ir.DataType(attr_int(site.node, "output_dtype", 0) or ir.DataType.UINT8.value)
    if site.input(2) is None and wanted != ir.DataType.UINT8:
        scale = dims(site.value(1))
        if scale is None or None in scale or wanted not in (ir.DataType.INT8, ir.DataType.UINT8):
            return f"it makes {wanted.name.lower()} without a zero point"
        zero = site.constant(np.zeros([d for d in scale if d is not None]), wanted)
        site.node.resize_inputs(3)
        site.node.replace_input_with(2, zero)
    site.drop("output_dtype", "block_size")
    return None


def pad_19(site: Site) -> str | None:
    """``wrap`` is new."""
    return "its mode is wrap" if attr_str(site.node, "mode", "constant") == "wrap" else None


def resize_19(site: Site) -> str | None:
    """A way to sample, and two ways to keep the aspect ratio."""
    if attr_str(site.node, "coordinate_transformation_mode", "half_pixel") == "half_pixel_symmetric":
        return "it samples half_pixel_symmetric"
    return None


def grid_sample_20(site: Site) -> str | None:
    """The modes were renamed, volumes are new."""
    if len(dims(site.value(0)) or ()) != 4:
        return "its input is a volume, or of unknown rank"
    mode = attr_str(site.node, "mode", "linear")
    site.node.attributes["mode"] = ir.AttrString("mode", {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode))
    return None


def scatter_16(site: Site) -> str | None:
    """Reductions are new in 16."""
    if attr_str(site.node, "reduction", "none") != "none":
        return "it reduces"
    site.drop("reduction")
    return None


def scatter_18(site: Site) -> str | None:
    """``min`` and ``max`` are new in 18."""
    return "it reduces by min or max" if attr_str(site.node, "reduction", "none") in ("min", "max") else None


def roi_align_16(site: Site) -> str | None:
    """Before 16 there is no half-pixel shift."""
    if attr_str(site.node, "coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        return "it shifts its regions by half a pixel"
    site.drop("coordinate_transformation_mode")
    return None


def lp_pool_18(site: Site) -> str | None:
    """Dilations and ceil_mode are new in 18."""
    if attr_int(site.node, "ceil_mode", 0) or any(d != 1 for d in attr_ints(site.node, "dilations") or ()):
        return "it is dilated, or rounds its size up"
    site.drop("ceil_mode", "dilations")
    return None


def average_pool_19(site: Site) -> str | None:
    """Dilations are new in 19."""
    if any(d != 1 for d in attr_ints(site.node, "dilations") or ()):
        return "it is dilated"
    if (reason := _rounding(site)) is not None:
        return reason
    site.drop("dilations")
    return None


def pool_22(site: Site) -> str | None:
    """From 22 on a window that would start in the padding at the end is left out."""
    return _rounding(site)


def _rounding(site: Site) -> str | None:
    """Takes back a ceil_mode that rounds nothing up; why one that does may mean something else in the older version.

    Where the last window starts inside the data and the padding at its end is 0, the texts of all versions agree;
    how many elements an average counts beyond padding that is counted, they do not say.
    """
    node = site.node
    if not attr_int(node, "ceil_mode", 0):
        return None
    kernel = attr_ints(node, "kernel_shape") or []
    rank = len(kernel)
    strides, dilations = attr_ints(node, "strides") or [1] * rank, attr_ints(node, "dilations") or [1] * rank
    pads = attr_ints(node, "pads") or [0] * 2 * rank
    if attr_str(node, "auto_pad", "NOTSET") not in ("NOTSET", ""):
        return "it rounds its size up and pads by itself"
    spatial = (dims(input_at(node, 0)) or ())[2:]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations)]
    if len(spatial) == rank and all(
        size is not None and (size + pads[i] + pads[i + rank] - spans[i]) % strides[i] == 0
        for i, size in enumerate(spatial)
    ):
        site.drop("ceil_mode")
        return None
    if any(pads[rank:]) or any(s > span for s, span in zip(strides, spans)):
        return "it rounds its size up with padding at the end, or skips elements"
    if attr_int(node, "count_include_pad", 0):
        return "it rounds its size up and counts its padding"
    return None


def dft_20(site: Site) -> str | None:
    """The axis was an attribute, with another default: 1 in place of -2."""
    axis, rank = site.known(2), len(dims(site.value(0)) or ())
    if site.input(2) is not None and axis is None:
        return "its axis is computed"
    place = -2 if axis is None else int(np.asarray(axis).item())
    if place < 0:
        if not rank:
            return "its rank is not known"
        place += rank
    site.cut_inputs(2)
    site.node.attributes["axis"] = ir.AttrInt64("axis", place)
    return None


def range_27(site: Site) -> str | None:
    """It says in which type 16-bit floats are summed up; they are new, too."""
    site.drop("stash_type")
    return None


def space_to_depth_28(site: Site) -> str | None:
    """The other order of channels is new."""
    if attr_str(site.node, "mode", "DCR") != "DCR":
        return "its mode is CRD"
    site.drop("mode")
    return None


def mod_28(site: Site) -> str | None:
    """Remainders of floats with the sign of the divisor are new."""
    dtype = site.dtype()
    if not attr_int(site.node, "fmod", 0) and (dtype is None or dtype.is_floating_point()):
        return "it takes remainders of floats with the sign of the divisor"
    return None


def bit_shift_28(site: Site) -> str | None:
    """What shifting by more bits than there are gives was not said."""
    dtype, by = site.dtype(), site.known(1)
    if dtype is None or by is None or (np.asarray(by) >= dtype.bitwidth).any():
        return "it may shift by more bits than there are"
    return None
