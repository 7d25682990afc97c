"""Graphs rebuilt from public bug reports, through all passes at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from edgeopt.passes import ABSORBED, FUSIONS, NORMALIZE, apply
from edgeopt.passes.convert_opset import CONVERT_OPSET
from edgeopt.passes.fold_pad import FOLD_PAD
from edgeopt.passes.infer_shapes import INFER_SHAPES

from .helpers import apply_all, assert_equal, build, from_proto, initializer, ints, ops, rand

ALL = NORMALIZE + FUSIONS


@pytest.mark.parametrize("seed", [131, 132, 133])
def test_dy03_second_consumers_and_graph_outputs(seed: int) -> None:
    text = """dy03 (float[1,3,10,10] x) => (float[1,4,10,10] conv_a, float[1,4,12,12] conv_b,
              float[1,4,12,12] conv_b_relu, float[1,4,10,10] twice, float[1,2,10,10] y) {
        xp = Pad(x, p0)
        conv_a = Conv(xp, wa)
        conv_b = Conv(xp, wb)
        conv_b_relu = Relu(conv_b)
        bn = BatchNormalization(conv_a, gamma, beta, mean, var)
        r = Relu(bn)
        twice = Add(r, bn)
        tp = Pad(twice, p1, one)
        c = Conv(tp, wc)
        cp = Pad<mode="reflect">(c, p1)
        y = Conv(cp, wd)
    }"""
    arrays = {
        "wa": rand(seed, 4, 3, 5, 5), "wb": rand(seed + 1, 4, 3, 3, 3), "wc": rand(seed + 2, 4, 4, 3, 3),
        "wd": rand(seed + 3, 2, 4, 3, 3), "gamma": rand(seed + 4, 4, low=0.5, high=2), "beta": rand(seed + 5, 4),
        "mean": rand(seed + 6, 4, low=-3, high=3), "var": rand(seed + 7, 4, low=0.1, high=2),
        "p0": ints(0, 0, 2, 2, 0, 0, 2, 2), "p1": ints(0, 0, 1, 1, 0, 0, 1, 1), "one": np.asarray(np.float32(1)),
    }  # fmt: skip
    model = build(text, opset=17, ir_version=8, **arrays)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5)
    assert [s.name for s in after.outputs] == ["conv_a", "conv_b", "conv_b_relu", "twice", "y"]
    # Only the zero Pad is folded, into both Convs; the BatchNorm stays because its input is a graph output.
    assert ops(after) == {"Conv": 4, "Pad": 2, "Relu": 2, "BatchNormalization": 1, "Add": 1}
    convs = {n.outputs[0].name: n for n in after.nodes() if n.op_type == "Conv"}
    assert [convs[n].metadata_props.get(ABSORBED) for n in ("conv_a", "conv_b", "c", "y")] == [
        "Pad:xp",
        "Pad:xp",
        None,
        None,
    ]
    pads = apply(FOLD_PAD, apply(CONVERT_OPSET, model).model)
    assert pads.count == 2
    assert pads.reason == "2 candidates refused: the pad is not zeros (Pad:cp, Pad:tp)"


@pytest.mark.parametrize("seed", [91, 92])
def test_in05_weights_that_are_not_plain_initializers(seed: int) -> None:
    text = """in05 (float[N,3,12,12] x, float[16,64] w1) => (float[N,10] y) {
        c = Conv(x, w0) cr = Relu(c) g = GlobalAveragePool(cr) f = Flatten(g)
        h1 = Gemm(f, w1) h1r = Relu(h1)
        w2 = Cast<to=1>(w2_half) h2 = MatMul(h1r, w2)
        w3_t = Transpose<perm=[1,0]>(w3_rows) w3 = Identity(w3_t) h3 = MatMul(h2, w3)
        w4 = Reshape(w4_flat, w4_shape) y = Gemm(h3, w4)
    }"""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    w0 = rand(seed, 16, 3, 3, 3)
    constant = onnx.helper.make_node("Constant", [], ["w0"], value=onnx.numpy_helper.from_array(w0))
    proto.graph.node.insert(0, constant)
    arrays = {
        "w1": rand(seed + 1, 16, 64), "w2_half": rand(seed + 2, 64, 64, dtype="float16"),
        "w3_rows": rand(seed + 3, 32, 64), "w4_flat": rand(seed + 4, 320), "w4_shape": ints(32, 10),
    }  # fmt: skip
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    model = from_proto(proto)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-6, N=3)
    assert [str(s) for s in after.inputs] == ["x: float32[N, 3, 12, 12]"]
    assert ops(after) == {"Conv": 1, "Relu": 2, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 2, "MatMul": 2}
    weights = [n.inputs[1] for n in after.nodes() if n.op_type in ("Conv", "Gemm", "MatMul")]
    assert all(w is not None and w.is_initializer() and w.dtype == ir.DataType.FLOAT for w in weights)
    assert len(after.graph.initializers) == 5
    assert np.array_equal(initializer(after, "w2"), arrays["w2_half"].astype(np.float32))
    assert np.array_equal(weights[3].const_value.numpy(), arrays["w3_rows"].T)


@pytest.mark.parametrize("via_gemm", [True, False])
def test_in12_tied_weights_stay_tied(via_gemm: bool) -> None:
    head = (
        "r = Reshape(h2, to2d) y = Gemm<transB=1>(r, table)"
        if via_gemm
        else "t = Transpose<perm=[1,0]>(table) y = MatMul(h2, t)"
    )
    out = "float[T,64] y" if via_gemm else "float[N,S,64] y"
    text = f"""in12 (int64[N,S] ids) => ({out}) {{
        e = Gather(table, ids) h1 = MatMul(e, lin) s = Mul(h1, k) h2 = MatMul(s, lin) {head}
    }}"""
    arrays = {"table": rand(0, 64, 64), "lin": rand(1, 64, 64), "k": np.asarray(np.float32(20))}
    model = build(text, opset=17, ir_version=8, **arrays, **({"to2d": ints(-1, 64)} if via_gemm else {}))
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5, N=2, S=7)
    big = [v for v in after.graph.initializers.values() if v.const_value.nbytes > 1024]
    assert [v.name for v in big] == ["table", "lin"]


def test_in04_nested_branches_share_outer_weights() -> None:
    text = """in04 (float[N,32] x, bool flag_a, bool flag_b) => (float[N,32] y) {
        y = If(flag_a) <
          then_branch = t () => (float[N,32] t1) { t0 = MatMul(x, w1) t1 = Add(t0, b1) },
          else_branch = e () => (float[N,32] e0) {
            e0 = If(flag_b) <
              then_branch = it () => (float[N,32] i1) { i0 = MatMul(x, w1) i1 = Tanh(i0) },
              else_branch = ie () => (float[N,32] j1) { j0 = MatMul(x, w1) j1 = Sub(j0, b1) }> }>
    }"""
    model = build(text, opset=17, ir_version=8, w1=rand(0, 32, 32), b1=rand(1, 32))
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5, trials=6)
    assert set(after.graph.initializers) == {"w1", "b1"}
    assert ops(after) == {"If": 2, "Gemm": 1, "MatMul": 2, "Tanh": 1, "Sub": 1}


def test_dy04_the_interface_stays() -> None:
    text = """dy04 (float[1,3,8,8] b_first, int64[1,5] a_second, float[1] meta)
              => (float[1,4] zeta, float[1,4] alpha, float[1,4] beta) {
        c = Clip(b_first, "", mx) r = Resize(c, "", "", sizes) p = Pad(r, pads, "")
        g = GlobalAveragePool(p) f = Flatten(g) zeta = Gemm(f, w)
        i = Cast<to=1>(a_second) j = MatMul(i, v) alpha = Identity(j)
        beta = Identity(k)
    }"""
    arrays = {
        "mx": np.asarray(np.float32(0.5)), "sizes": ints(1, 3, 4, 4), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1),
        "w": rand(0, 3, 4), "v": rand(1, 5, 4), "k": rand(2, 1, 4),
    }  # fmt: skip
    model = build(text, opset=17, ir_version=8, **arrays)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5)
    assert [str(s) for s in after.inputs] == [str(s) for s in model.inputs]
    assert [str(s) for s in after.outputs] == [str(s) for s in model.outputs]
    clip = next(n for n in after.nodes() if n.op_type == "Clip")
    assert clip.inputs[1] is None


def test_f04_the_file_grows_by_no_more_than_a_percent() -> None:
    text = """f04 (float[1,64,256] x, int64[4] i) => (float[1,64,256] y, float[4,256] z) {
        e = Expand(one, to) a = Add(x, e)
        t = Tile(row, times) b = Add(a, t)
        c = ConstantOfShape(to) d = Add(b, c)
        g = Gather(w, i) wt = Transpose<perm=[1,0]>(w) h = MatMul(d, wt)
        r = Range(zero, three, step) s = ReduceSum(r) s1 = Cast<to=1>(s) y = Mul(h, s1)
        z = Identity(g)
    }"""
    scalars = {n: np.asarray(np.int64(i)) for n, i in (("zero", 0), ("three", 3), ("step", 1))}
    arrays = {
        "one": np.ones((1, 1, 1), np.float32),
        "to": ints(1, 64, 256),
        "row": rand(0, 1, 1, 256),
        "times": ints(1, 64, 1),
        "w": rand(1, 256, 256),
        **scalars,
    }
    model = build(text, opset=17, ir_version=8, **arrays)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5)
    before, now = (len(ir.to_proto(m.ir).SerializeToString()) for m in (model, after))
    assert now <= 1.01 * before
    assert {op: ops(after)[op] for op in ("Expand", "Tile", "ConstantOfShape", "Transpose", "Range")} == {
        "Expand": 0, "Tile": 0, "ConstantOfShape": 0, "Transpose": 1, "Range": 0,
    }  # fmt: skip
    # What is repeated is read as it is: x has the shape that it is repeated to.


def test_in10_custom_operator_stays_and_its_neighbours_are_optimized() -> None:
    text = """in10 (float[1,4,8,8] x) => (float[1,4,6,6] y) {
        p = Pad(x, pads) a = Conv(p, v) b = acme.MyPlugin<k=3>(a) c = Conv(b, w) y = Mul(c, k)
    }"""
    arrays = {
        "pads": ints(0, 0, 1, 1, 0, 0, 1, 1),
        "v": rand(0, 4, 4, 3, 3),
        "w": rand(1, 4, 4, 3, 3),
        "k": rand(2, 4, 1, 1),
    }
    after = apply_all(ALL, build(text, opset=17, ir_version=8, **arrays))
    assert ops(after) == {"Conv": 2, "MyPlugin": 1}
    plugin = next(n for n in after.nodes() if n.op_type == "MyPlugin")
    assert (plugin.domain, plugin.attributes["k"].as_int()) == ("acme", 3)


@pytest.mark.parametrize("recorded", ["", "<float[N,4,36] s, float[N,4,36] q>"])
def test_dy01_a_batch_that_the_graph_fixes_is_not_repaired_in_silence(recorded: str) -> None:
    """The Reshape looks like a no-op in the shapes that the exporter recorded. With batch 2 it is none."""
    text = f"""dy01 (float[N,4,36] x) => (float[N,4,36] y, float[N,36] z) {recorded} {{
        s = Reshape(x, target) q = Relu(s) z = ReduceMean<keepdims=0>(q, axis)
        y = Reshape(x, target)
    }}"""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    arrays = {"target": ints(1, -1, 36), "axis": ints(1)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    model = from_proto(proto)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-6, N=2)
    assert ops(after)["Reshape"] == 2


def test_dy01_no_op_by_record_only_stays() -> None:
    text = """dy01 (float[N,4,36] x) => (float[N,4,36] y) <float[N,4,36] r> {
        r = Reshape(x, target) y = Relu(r)
    }"""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(ints(1, -1, 36), "target"))
    model = from_proto(proto)
    after = apply_all(ALL, model)
    assert ops(after) == {"Reshape": 1, "Relu": 1}
    assert_equal(model, after, 1e-6, N=2)


def residual_net(seed: int, channels: int = 8):
    """Two residual blocks on 28 x 28 images, with BatchNorm where a trainer leaves it."""
    c = channels
    arrays = {"w0": rand(seed, c, 1, 3, 3), "fc": rand(seed + 1, 10, c), "fb": rand(seed + 2, 10)}
    bn = []
    for i in range(5):
        arrays |= {
            f"g{i}": rand(seed + 10 + i, c, low=0.5, high=1.5), f"b{i}": rand(seed + 20 + i, c),
            f"m{i}": rand(seed + 30 + i, c), f"v{i}": rand(seed + 40 + i, c, low=0.1, high=2),
        }  # fmt: skip
        bn.append(f"g{i}, b{i}, m{i}, v{i}")
    arrays |= {f"w{i}": rand(seed + 50 + i, c, c, 3, 3) for i in range(1, 5)}
    blocks, x = "", "s"
    for i in (1, 3):
        blocks += f"""
        c{i} = Conv<pads=[1,1,1,1]>({x}, w{i}) n{i} = BatchNormalization(c{i}, {bn[i]}) r{i} = Relu(n{i})
        c{i + 1} = Conv<pads=[1,1,1,1]>(r{i}, w{i + 1}) n{i + 1} = BatchNormalization(c{i + 1}, {bn[i + 1]})
        a{i} = Add(n{i + 1}, {x}) x{i} = Relu(a{i})"""
        x = f"x{i}"
    text = f"""net (float[N,1,28,28] x) => (float[N,10] y) {{
        c0 = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w0) n0 = BatchNormalization(c0, {bn[0]}) s = Relu(n0)
        {blocks}
        p = GlobalAveragePool({x}) f = Flatten(p) d = Dropout(f) y = Gemm<transB=1>(d, fc, fb)
    }}"""
    return build(text, opset=17, ir_version=8, **arrays)


@pytest.mark.parametrize("seed", [0, 1])
def test_residual_network(seed: int) -> None:
    model = residual_net(seed)
    after = apply_all(ALL, model)
    assert_equal(model, after, 1e-5, N=3)
    assert ops(after) == {"Conv": 5, "Relu": 5, "Add": 2, "GlobalAveragePool": 1, "Flatten": 1, "Gemm": 1}
    assert [n.metadata_props[ABSORBED] for n in after.nodes() if n.op_type == "Conv"] == [
        f"BatchNormalization:n{i}" for i in range(5)
    ]


def test_passes_are_stable() -> None:
    """A second run of everything finds nothing to do."""
    after = apply_all(ALL, residual_net(0))
    for pass_ in ALL:
        assert apply(pass_, after).count == 0, pass_.name


def test_external_weights_stay_on_disk(tmp_path: Path) -> None:
    model = residual_net(0, channels=16)
    path = tmp_path / "model.onnx"
    ir.save(model.ir, path, external_data="weights.bin")
    loaded = dataclasses.replace(model, ir=ir.load(path))
    normalized = apply_all(tuple(p for p in NORMALIZE if p is not INFER_SHAPES), loaded)
    untouched = normalized.graph.initializers["w1"].const_value
    assert isinstance(untouched, ir.ExternalTensor)
    fused = apply_all(FUSIONS, apply(INFER_SHAPES, normalized).model)
    ir.external_data.load_to_model(fused.ir)
    assert_equal(model, fused, 1e-5)
