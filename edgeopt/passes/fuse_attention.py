"""softmax(s Q K^T + m) V over heads -> one com.microsoft MultiHeadAttention.

    Q, K, V: [B, S|T, N D] -> Reshape [B, S, N, D] -> Transpose [0, 2, 1, 3] -> MatMul, scale, mask, Softmax, MatMul
    -> Transpose [0, 2, 1, 3] (-> Reshape [B, S, N D]), and the same with the sequence before the batch

The scale may stand on Q, on K, on both, or on the product; K may be transposed in one step or two; Q, K and V may be
picked from one packed projection [B, S, 3, N, D], which then becomes a Split of it. The runtime's kernel copies no
head, and without a mask it never holds the S x T scores (FlashAttention, Dao et al. 2022; from onnxruntime 1.19).

Refused:

1. Scores or probabilities that something else reads, a Softmax over another axis, a scale that is not one number or 0.
2. Heads that are not made by such a Transpose; unknown numbers of heads or channels.
3. Batches of Q, K, V and mask that are not known to be equal (broadcasting is an error in the kernel).
4. Rows without a single key that must give zeros (a Where on IsNaN of the probabilities) under a mask that differs
   by head. Otherwise the mask is clipped to finite numbers and the rows are set to zero behind the kernel.
5. Masks, where the runtime may be older than 1.21.1: it adds [1, N, S, T] (before 1.20) and [B, 1, S, T] (1.20) at
   the wrong place, in silence, and takes nothing but [B, N, S, T] before 1.20 (tried: 1.16.3 to 1.32.0).
6. A mask that replaces scores (Where) by a number that is not far below every score: adding it would not be the same.

The mask becomes the kernel's additive input, which must have S rows: [B, 1, 1, T] is expanded once for all layers.
ONNX's own Attention operator needs opset 23, which onnxruntime reads from 1.23.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    Array,
    attr_ints,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
)
from edgeopt.passes._heads import Rows, columns_of, rows_of
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._scores import Mask, Site, find_site, strip_scale
from edgeopt.passes._symbols import Dims, Symbols
from edgeopt.passes.resolve_shapes import remove_dead
from edgeopt.passes.simplify_reshapes import simplify_reshapes

DOMAIN = "com.microsoft"

FIRST = (1, 16, 0)
"""Release of onnxruntime with the operator on the CPU (tried)."""

FIRST_MASK = (1, 21, 1)
"""Release whose kernel adds every mask at the right place (tried; 1.20.1 does not)."""


class _Fuser:
    """Fuses the sites of one graph; what several of them share (packed projections, masks) is made once."""

    def __init__(self, model: ir.Model, known: Symbols, *, masks: bool) -> None:
        self.model, self.known, self.masks = model, known, masks
        self.rows = Rows(model, known)
        self.made: dict[object, ir.Value] = {}

    def fuse(self, site: Site) -> str | None:
        """Fuse one site in place; why not, or None."""
        known, scores = self.known, site.scores
        left, right = scores.product.inputs
        values = site.mixed.inputs[1]
        if left is None or right is None or values is None:
            return "an input is missing"
        if len({n.graph for n in (scores.product, site.softmax, site.mixed, site.back)}) != 1:
            return "it spans two graphs"
        query, on_query, _ = strip_scale(left)
        key, on_key, _ = strip_scale(right)
        flipped = key.producer()
        if flipped is not None and is_op(flipped, "Transpose") and attr_ints(flipped, "perm") == [0, 1, 3, 2]:
            assert flipped.inputs[0] is not None
            straight, inner, _ = strip_scale(flipped.inputs[0])
            on_key, keys = on_key * inner, rows_of(straight)
        else:
            keys = columns_of(key)
        scale = scores.scale * on_query * on_key
        shapes = [known.dims(v) for v in (query, key, values)]
        if any(s is None or len(s) != 4 for s in shapes):
            return "the heads have no known shape"
        q, k, v = (s for s in shapes if s is not None)
        if not all(isinstance(d, int) for d in (q[1], q[3], v[3])) or (q[1], q[3]) != (k[1], k[2]) or q[1] != v[1]:
            return "the number of heads or channels is not known"
        if not (q[0] == k[0] == v[0]) or k[3] != v[2]:
            return "queries, keys and values are not known to have one batch"
        if scale == 0 or not np.isfinite(np.float32(scale)):
            return "the scale is 0"
        if query.dtype != ir.DataType.FLOAT:
            return "the type is not float32"
        mask = None if scores.mask is None else self._mask_shape(scores.mask, q, k)
        if isinstance(mask, str):
            return mask
        if site.guard is not None and (mask is None or mask[1] != 1 or attr_ints(site.back, "perm") != [0, 2, 1, 3]):
            return "rows without a key give zeros, and which ones differs by head"
        views = rows_of(query), keys, rows_of(values)
        if any(isinstance(view, str) for view in views):
            return next(view for view in views if isinstance(view, str))
        inputs: list[ir.Value | None] = [
            self.rows.build(view, site.mixed) for view in views if not isinstance(view, str)
        ]
        if scores.mask is not None and mask is not None:
            inputs += [None, None, self._mask(site, mask, q, inputs[0])]
        self._replace(site, inputs, heads=q[1], width=v[3], scale=scale)
        return None

    def _mask_shape(self, mask: Mask, q: Dims, k: Dims) -> Dims | str:
        """Dims of the mask, right-aligned to [B, N, S, T]; or why the kernel does not take it."""
        if not self.masks:
            return "the runtime may be older than 1.21.1, which misplaces masks"
        condition = mask.value if mask.where is None else mask.where.inputs[0]
        shape = self.known.dims(condition)
        if shape is None or len(shape) > 4 or mask.value.dtype != ir.DataType.FLOAT:
            return "the mask has no known shape"
        shape = (1,) * (4 - len(shape)) + shape
        if shape[0] not in (1, q[0]) or shape[1] not in (1, q[1]) or shape[2] not in (1, q[2]) or shape[3] != k[3]:
            return "the mask is not known to fit the scores"
        return shape

    def _mask(self, site: Site, shape: Dims, q: Dims, query: ir.Value | None) -> ir.Value:
        """The mask as the kernel wants it: rank 4, S rows. Made once for all layers."""
        at, mask = site.mixed, site.scores.mask
        assert mask is not None
        assert query is not None
        anchor, index = (mask.value, 0) if mask.where is None else (mask.where.inputs[0], mask.side)
        assert anchor is not None
        key = (anchor, q[2], index, None if mask.where is None else mask.value, site.guard is not None)
        if key in self.made:
            return self.made[key]
        value = mask.value
        if mask.where is not None:
            zero = self._constant(at, "zero", np.array(0, np.float32))
            value = self.rows.add(at, "Where", [anchor, *((value, zero) if index == 1 else (zero, value))])
        rank = len(self.known.dims(anchor) or ())
        if rank < 4:
            value = self.rows.add(at, "Unsqueeze", [value, self._constant(at, "axes", np.arange(4 - rank))])
        if site.guard is not None:
            self.made["rows", key] = self._with_key(value, at)
            lowest = self._constant(at, "lowest", np.array(np.finfo(np.float32).min))
            value = self.rows.add(at, "Max", [value, lowest])
        if shape[2] != q[2]:
            value = self.rows.add(at, "Expand", [value, self._row_count(q, query, at)])
        self.made[key] = value
        self.made["rows", value] = self.made.get(("rows", key), value)
        return value

    def _with_key(self, mask: ir.Value, at: ir.Node) -> ir.Value:
        """Which rows [B, S, 1] have a key that is not masked."""
        last, head = (self._constant(at, "axes", np.array([axis])) for axis in (3, 1))
        best = self.rows.add(at, "ReduceMax", [mask, last], {"keepdims": 1})
        nothing = self._constant(at, "nothing", np.array(-np.inf, np.float32))
        return self.rows.add(at, "Squeeze", [self.rows.add(at, "Greater", [best, nothing]), head])

    def _constant(self, at: ir.Node, role: str, array: Array) -> ir.Value:
        return new_constant(self.model, self._graph(at), f"attention.{role}", array)

    def _row_count(self, q: Dims, query: ir.Value, at: ir.Node) -> ir.Value:
        """The vector (1, 1, S, 1)."""
        if isinstance(q[2], int):
            return self._constant(at, "rows", np.array([1, 1, q[2], 1]))
        length = self.rows.add(at, "Shape", [query], {"start": 1, "end": 2})
        ones, one = (self._constant(at, "ones", np.ones(count, np.int64)) for count in (2, 1))
        return self.rows.add(at, "Concat", [ones, length, one], {"axis": 0})

    def _replace(
        self, site: Site, inputs: list[ir.Value | None], *, heads: object, width: object, scale: float
    ) -> None:
        at, back = site.mixed, site.back
        assert isinstance(heads, int)
        assert isinstance(width, int)
        fused = self.rows.add(
            at, "MultiHeadAttention", inputs, {"num_heads": heads, "scale": float(np.float32(scale))}, domain=DOMAIN
        )
        fused.type = ir.TensorType(ir.DataType.FLOAT)
        node = fused.producer()
        assert node is not None
        for absorbed in (*reversed(site.scores.nodes), site.softmax, site.mixed):
            record_absorbed(node, absorbed)
        if site.guard is not None:
            record_absorbed(node, site.guard)
            zero = self._constant(at, "zero", np.array(0, np.float32))
            fused = self.rows.add(at, "Where", [self.made["rows", inputs[5]], fused, zero])
        if attr_ints(back, "perm") == [2, 0, 1, 3]:
            fused = self.rows.add(at, "Transpose", [fused], {"perm": [1, 0, 2]})
        shape = self._constant(at, "heads", np.array([0, 0, heads, width]))
        # The Transpose back becomes the Reshape to the same four axes, and keeps its name and its readers.
        back.op_type = "Reshape"
        back.attributes.pop("perm", None)
        back.resize_inputs(2)
        back.replace_input_with(0, fused)
        back.replace_input_with(1, shape)

    @staticmethod
    def _graph(node: ir.Node) -> ir.Graph:
        assert isinstance(node.graph, ir.Graph)
        return node.graph


def _rewrite(model: ir.Model, *, masks: bool) -> Rewritten:
    count, refusals = 0, []
    fusers: dict[ir.Graph, _Fuser] = {}
    known = Symbols(model)
    for node in nodes_of(model):
        if not is_op(node, "Softmax") or not isinstance(node.graph, ir.Graph):
            continue
        site = find_site(node)
        if site is None:
            continue
        fuser = fusers.setdefault(node.graph, _Fuser(model, known, masks=masks))
        why = site if isinstance(site, str) else fuser.fuse(site)
        if why is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    if count:
        model.opset_imports[DOMAIN] = 1
        remove_dead(model)
        simplify_reshapes(model)
        remove_dead(model)
    return Rewritten(count=count, refusals=tuple(refusals))


def version(text: str) -> tuple[int, ...]:
    """``"1.21.1"`` -> (1, 21, 1); empty when it is no version."""
    parts = text.split(".")
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else ()


def fuse_attention(oldest: str | None) -> Pass:
    """The pass for a target whose oldest onnxruntime is ``oldest`` (None: the newest).

    Args:
        oldest: a version such as ``"1.17.0"``.
    """
    release = None if oldest is None else version(oldest)
    masks = release is None or release >= FIRST_MASK

    def rewrite(model: ir.Model) -> Rewritten:
        return _rewrite(model, masks=masks)

    return Pass(
        name="fuse-attention",
        rewrite=rewrite,
        tolerance=1e-4,
        gain="attention in one kernel: no copies of heads, no score matrix without a mask",
        refuses=lambda model, target: (
            None
            if release is None or release >= FIRST
            else f"onnxruntime {oldest} has no such operator; 1.16.0 is the first"
        ),
    )
