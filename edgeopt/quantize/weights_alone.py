"""Weights alone: stored in 8 or 4 bits, computed with in float.

    y = f(x, W)     becomes  y = f(x, DQ(Wq, s))                 DQ: DequantizeLinear along the output channels
    Gather(W, i)    becomes  Cast(Gather(Wq, i)) * Gather(s, i)  rows are restored after they are looked up
    MatMul(x, W)    becomes  MatMulNBits(x, Wq, s, z)            in 4 bits; an operator of onnxruntime, see ``blocks``

A matrix of 4 bits for another runtime stands behind a DequantizeLinear in blocks (opset 21). What has no 4-bit kernel
is stored in 8 bits. The first layer reads raw values, whose quiet parts vanish in the rounding errors of the loud ones
when its weights have 8 bits (a Fourier basis, say): it is stored in float16 where that is cheap.

What onnxruntime 1.32 holds at run time (measured): DequantizeLinear before a MatMul becomes MatMulNBits of 8 bits,
before other operators it restores the weight at every inference; the float16 is cast once, when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize import embeddings
from edgeopt.quantize.blocks import Blocks, quantize_blocks
from edgeopt.quantize.emit import Emitter
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.moments import Moments
from edgeopt.quantize.sites import Site, Weight, find, first_layers, reads_matrix
from edgeopt.quantize.stored import Stored, described, second_of, store

OWN = "com.microsoft"
"""Domain of onnxruntime's own operators."""

MATMUL_NBITS_SINCE = (1, 17)
"""First release of onnxruntime with MatMulNBits."""

BLOCKED_OPSET = 21
"""Opset whose DequantizeLinear takes blocks and 4-bit integers."""

BLOCKED_IR = 10
"""IR version that has 4-bit integers."""

MIN_BLOCK = 16

RAW_SHARE = 0.25
"""A first layer of up to this share of all weights is stored in 16 bits."""


def quantize_weights(
    model: Model,
    *,
    bits: int,
    backend: str,
    block: int = 32,
    exclude: Set[str] = frozenset(),
    moments: Mapping[str, Moments] | None = None,
    release: str | None = None,
    opset_max: int | None = None,
) -> QuantizedModel | None:
    """Store weights in ``bits`` bits, also those of subgraphs; None where no weight is found.

    Args:
        bits: 8 or 4.
        backend: ``"onnxruntime"`` gets its own operator for 4 bits, others standard ones.
        block: weights that share a scale in 4 bits, a power of two from 16 on.
        exclude: node keys that stay in float.
        moments: of the inputs of operators by node key; their weights are rounded by what it does to the output.
        release: of the runtime on the device, None for any that is new enough.
        opset_max: newest opset that an ``.onnx`` file may have; 4 bits take 21 where the runtime has no operator of its
            own. None for any, and for a backend that writes another format.
    """
    changed = model.clone()
    found = find(changed, exclude)
    if not found.weights:
        return None
    emitter = Emitter(changed)
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    own = backend == "onnxruntime"
    for weight in behind_first(emitter, found.weights, counts, notes):
        keys = [node_key(site.node) for site in weight.sites]
        size = _block_size(weight, block) if bits == 4 else None
        if not (_has_nbits(release) if own else opset_max is None or opset_max >= BLOCKED_OPSET):
            size = None
        if size is None:
            if bits == 4:
                notes |= dict.fromkeys(keys, "its weight is stored in 8 bits: no 4-bit kernel")
            stored = store(weight, 8, second=second_of(weight, moments))
            counts |= dict.fromkeys(keys, stored.scales.size)
            for site in weight.sites:
                restore(emitter, site, stored, look_up=own)
            continue
        look_ups = any(site.node.op_type == "Gather" for site in weight.sites)
        blocks = quantize_blocks(weight.rows, 4, size, second_of(weight, moments), centred=look_ups)
        counts |= dict.fromkeys(keys, blocks.scales.size)
        if own:
            _own_blocks(emitter, weight, blocks)
        else:
            _standard_blocks(emitter, weight, blocks)
    emitter.finish()
    return described(model, changed, found, (), counts, notes, f"int{bits}-weights")


def behind_first(
    emitter: Emitter, weights: Sequence[Weight], counts: dict[str, int], notes: dict[str, str]
) -> Iterator[Weight]:
    """The weights that are to be stored in integers, in order; a first layer on the way is stored in 16 bits.

    Args:
        counts, notes: take what becomes of the first layer, by node key.
    """
    for weight, is_raw in zip(weights, first_layers(weights, RAW_SHARE), strict=True):
        if not is_raw:
            yield weight
            continue
        keep_half(emitter, weight)
        keys = [node_key(site.node) for site in weight.sites]
        notes |= dict.fromkeys(keys, "the first layer: its weight is stored in 16 bits")
        counts |= dict.fromkeys(keys, 0)


def restore(emitter: Emitter, site: Site, stored: Stored, *, look_up: bool) -> None:
    """Let a reader compute in float from integers.

    Args:
        look_up: an embedding restores what it looked up, not its table.
    """
    node = site.node
    if node.op_type == "Gather" and look_up:
        embeddings.look_up(emitter, site, stored)
        return
    integers = stored.integers(emitter, node, turned=site.turned)
    base, per_tensor = stored.weight.name, stored.scales.ndim == 0
    scale = emitter.constant(base, "scale", stored.scales)
    zero = emitter.constant(base, "zero_point", np.zeros(stored.scales.shape, np.int8))
    attributes = {} if per_tensor else {"axis": site.axis}
    dq = emitter.before(node, "DequantizeLinear", [integers, scale, zero], attributes=attributes, shape=integers.shape)
    emitter.feed(node, site.index, dq.outputs[0])


def keep_half(emitter: Emitter, weight: Weight) -> None:
    """Store a weight in float16 and let its readers cast it."""
    for site in weight.sites:
        array = weight.rows.T if site.turned else weight.rows
        half = emitter.constant(weight.name, "half", np.ascontiguousarray(array.astype(np.float16)))
        cast = emitter.before(
            site.node, "Cast", [half], attributes={"to": int(ir.DataType.FLOAT)}, shape=ir.Shape(array.shape)
        )
        emitter.feed(site.node, site.index, cast.outputs[0])


def _has_nbits(release: str | None) -> bool:
    return release is None or tuple(int(n) for n in release.split(".")[:2]) >= MATMUL_NBITS_SINCE


def _block_size(weight: Weight, block: int) -> int | None:
    """Block length for a weight in 4 bits; None where a reader has no use for blocks or the rows are too short."""
    if weight.rows.ndim != 2 or any(site.node.op_type not in ("MatMul", "Gemm", "Gather") for site in weight.sites):
        return None
    size = block
    while size > MIN_BLOCK and size > weight.rows.shape[1]:
        size //= 2
    if size > weight.rows.shape[1]:
        return None
    if not all(site.node.op_type == "Gather" or reads_matrix(site.node) for site in weight.sites):
        return None
    look_ups = [site.node for site in weight.sites if site.node.op_type == "Gather"]
    known = all(n.inputs[1] is not None and n.inputs[1].shape is not None for n in look_ups)
    return size if known and not (look_ups and weight.rows.shape[1] % size) else None


def _own_blocks(emitter: Emitter, weight: Weight, blocks: Blocks) -> None:
    """onnxruntime's MatMulNBits, and look-ups of packed rows; both read the same bytes."""
    base, (outputs, inputs) = weight.name, weight.rows.shape
    count = blocks.scales.shape[1]
    look_ups = [site for site in weight.sites if site.node.op_type == "Gather"]
    packed = blocks.packed() if look_ups else blocks.packed().reshape(outputs, count, -1)
    data = emitter.constant(base, "packed", packed)
    scales = emitter.constant(base, "scales", blocks.scales.reshape(outputs, count, 1)) if look_ups else None
    zeros = None if look_ups else emitter.constant(base, "zero_points", blocks.packed_zeros().reshape(-1))
    for site in look_ups:
        assert scales is not None
        embeddings.look_up_blocks(emitter, site, data, scales, blocks)
    for site in weight.sites:
        node = site.node
        if node.op_type == "Gather":
            continue
        own_data, alpha = data, np.float32(node.attributes.get_float("alpha", 1.0))
        if look_ups:
            shape = emitter.constant(base, "shape", np.array([outputs, count, blocks.size // 2], np.int64))
            own_data = emitter.before(node, "Reshape", [data, shape], dtype=ir.DataType.UINT8).outputs[0]
        if look_ups and alpha == 1:
            flat = emitter.constant(base, "flat", np.array([-1], np.int64))
            own_scales = emitter.before(node, "Reshape", [scales, flat]).outputs[0]
        else:
            own_scales = emitter.constant(base, "scales", blocks.scales.reshape(-1) * alpha)
        source = emitter.matrix(node)
        attributes = {"K": inputs, "N": outputs, "bits": 4, "block_size": blocks.size, "accuracy_level": 4}
        product = emitter.before(
            node,
            "MatMulNBits",
            [source, own_data, own_scales] + ([] if zeros is None else [zeros]),
            attributes=attributes,
            domain=OWN,
        )
        emitter.stand_in(node, emitter.biased(node, product), product)
    emitter.model.graph.opset_imports.setdefault(OWN, 1)


def _standard_blocks(emitter: Emitter, weight: Weight, blocks: Blocks) -> None:
    """DequantizeLinear in blocks of 4-bit integers, as rows or turned as the readers want it."""
    base, (outputs, inputs) = weight.name, weight.rows.shape
    integers = blocks.integers[:, :inputs]
    made: dict[tuple[bool, ir.Graph | None], ir.Value] = {}
    for site in weight.sites:
        key = (site.turned, site.node.graph)
        if key not in made:
            data = emitter.small(base, "quantized", _as_read(integers, site))
            zeros = emitter.small(base, "zero_points", _as_read(blocks.zeros, site))
            scales = emitter.constant(base, "scales", _as_read(blocks.scales, site))
            attributes = {"axis": 0 if site.turned else 1, "block_size": blocks.size}
            dq = emitter.before(site.node, "DequantizeLinear", [data, scales, zeros], attributes=attributes)
            dq.outputs[0].shape = ir.Shape((inputs, outputs) if site.turned else (outputs, inputs))
            made[key] = dq.outputs[0]
        emitter.feed(site.node, site.index, made[key])
    imports = emitter.model.graph.opset_imports
    imports[""] = max(imports.get("", 0), BLOCKED_OPSET)
    emitter.model.ir.ir_version = max(emitter.model.ir.ir_version, BLOCKED_IR)


def _as_read(rows: np.ndarray, site: Site) -> np.ndarray:
    return np.ascontiguousarray(rows.T if site.turned else rows)
