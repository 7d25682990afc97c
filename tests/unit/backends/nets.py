"""Small networks for the backends."""

from __future__ import annotations

import functools

from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE
from tests.unit.passes import helpers
from tests.unit.passes.helpers import apply_all, build

rand = functools.partial(helpers.rand, low=-0.3, high=0.3)


def residual_net(channels: int = 8) -> Model:
    """A stem, a residual block and a classifier, on images of 28 x 28 pixels, after NORMALIZE and FUSIONS."""
    c = channels
    arrays = {"w0": rand(0, c, 1, 3, 3), "w1": rand(1, c, c, 3, 3), "w2": rand(2, c, c, 3, 3), "fc": rand(3, 10, c)}
    arrays |= {"b0": rand(4, c), "b1": rand(5, c), "b2": rand(6, c), "fb": rand(7, 10)}
    text = """net (float[N,1,28,28] x) => (float[N,10] y) {
        c0 = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0, b0) s = Relu(c0)
        c1 = Conv<pads=[1,1,1,1]>(s, w1, b1) r1 = Relu(c1)
        c2 = Conv<pads=[1,1,1,1]>(r1, w2, b2) a = Add(c2, s) r2 = Relu(a)
        p = GlobalAveragePool(r2) f = Flatten(p) y = Gemm<transB=1>(f, fc, fb)
    }"""
    return apply_all((*NORMALIZE, *FUSIONS), build(text, **arrays))
