"""Attention in its spellings, masks as exports build them, and what must not be fused."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import NORMALIZE, apply
from edgeopt.passes._pass import Applied
from edgeopt.passes.fuse_attention import fuse_attention
from edgeopt.target import load_target

from .helpers import apply_all, assert_equal, build, check, ints, node, ops, rand, run

NEWEST = fuse_attention(None)
HEADS, WIDTH = 3, 4
EMBED = HEADS * WIDTH

SPLIT = "{n}r = Reshape({n}, to_heads) {n}h = Transpose<perm=[0,2,1,3]>({n}r)"
BACK = "ct = Transpose<perm=[0,2,1,3]>(c) cr = Reshape(ct, to_rows) y = MatMul(cr, wo)"
QKV = "q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)"
HEADED = " ".join([QKV, *(SPLIT.format(n=n) for n in "qkv"), "kt = Transpose<perm=[0,1,3,2]>(kh)"])
PLAIN = f"{HEADED} s = MatMul(qh, kt) m = Mul(s, half) p = Softmax<axis=-1>(m) c = MatMul(p, vh) {BACK}"

ARRAYS: dict[str, np.ndarray] = {
    **{f"w{n}": rand(i, EMBED, EMBED) for i, n in enumerate("qkvo")},
    "wqkv": rand(5, EMBED, 3 * EMBED),
    "to_heads": ints(0, 0, HEADS, WIDTH),
    "to_packed": ints(0, 0, 3, HEADS, WIDTH),
    "to_rows": ints(0, 0, EMBED),
    "half": np.array(0.5, np.float32),
    "root": np.array([0.7], np.float32),
    "two": np.array(2.0, np.float32),
    "zero": np.array(0.0, np.float32),
    "one": np.array(1.0, np.float32),
    "far": np.array(-10000.0, np.float32),
    "inf": np.array(-np.inf, np.float32),
    "vector": rand(7, 6),
    "axes12": ints(1, 2),
    **{f"i{i}": np.array(i, np.int64) for i in range(3)},
    **{f"at{i}": ints(i) for i in range(4)},
}


def attention(body: str, x: str = "float[B,S,12] x", extra: str = "", out: str = "float[B,S,12] y") -> Model:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    text = f"g ({x}{extra}) => ({out}) {{ {body} }}"
    return apply_all(NORMALIZE, build(text, **{n: a for n, a in ARRAYS.items() if n in words}))


def fused(model: Model, count: int = 1, **symbols: int) -> Applied:
    applied = check(NEWEST, model, count, **symbols)
    assert ops(applied.model)["MultiHeadAttention"] == count
    assert (ops(applied.model)["Softmax"] == 0) == (count > 0)
    return applied


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        ("s = MatMul(qh, kt) m = Mul(s, half)", 0.5),
        ("s = MatMul(qh, kt) m = Div(s, two)", 0.5),
        ("qs = Mul(qh, half) m = MatMul(qs, kt)", 0.5),
        ("qs = Mul(root, qh) ks = Mul(kt, root) m = MatMul(qs, ks)", 0.49),
        ("m = MatMul(qh, kt)", 1.0),
    ],
)
def test_where_the_scale_may_stand(scores: str, scale: float) -> None:
    body = f"{HEADED} {scores} p = Softmax<axis=-1>(m) c = MatMul(p, vh) {BACK}"
    after = fused(attention(body), S=5).model
    assert node(after, "MultiHeadAttention").attributes["scale"].as_float() == pytest.approx(scale)
    assert ops(after) == {"MatMul": 4, "MultiHeadAttention": 1}


@pytest.mark.parametrize("pick", ["gather", "slice", "split"])
def test_packed_projection(pick: str) -> None:
    taken = {
        "gather": " ".join(f"{n}h = Gather<axis=0>(t, i{i})" for i, n in enumerate("qkv")),
        "slice": " ".join(
            f"{n}s = Slice(t, at{i}, at{i + 1}, at0) {n}h = Squeeze({n}s, at0)" for i, n in enumerate("qkv")
        ),
        "split": "qs, ks, vs = Split<axis=0,num_outputs=3>(t) " + " ".join(f"{n}h = Squeeze({n}s, at0)" for n in "qkv"),
    }[pick]
    body = f"""a = MatMul(x, wqkv) r = Reshape(a, to_packed) t = Transpose<perm=[2,0,3,1,4]>(r) {taken}
        kt = Transpose<perm=[0,1,3,2]>(kh) s = MatMul(qh, kt) m = Mul(s, half) p = Softmax<axis=-1>(m)
        c = MatMul(p, vh) {BACK}"""
    assert ops(fused(attention(body), S=5).model) == {"MatMul": 2, "Split": 1, "MultiHeadAttention": 1}


def test_sequence_before_batch() -> None:
    body = f"{QKV} " + " ".join(f"{n}r = Reshape({n}, to_heads) {n}h = Transpose<perm=[1,2,0,3]>({n}r)" for n in "qkv")
    body += """ kt = Transpose<perm=[0,1,3,2]>(kh) s = MatMul(qh, kt) m = Mul(s, half) p = Softmax<axis=-1>(m)
        c = MatMul(p, vh) ct = Transpose<perm=[2,0,1,3]>(c) cr = Reshape(ct, to_rows) y = MatMul(cr, wo)"""
    after = fused(attention(body, x="float[S,B,12] x", out="float[S,B,12] y"), S=5, B=2).model
    assert ops(after)["Reshape"] == 0


def test_cross_attention() -> None:
    body = PLAIN.replace("k = MatMul(x, wk) v = MatMul(x, wv)", "k = MatMul(z, wk) v = MatMul(z, wv)")
    fused(attention(body, extra=", float[B,T,12] z"), S=5, T=7, B=2)


MASKS = {
    "additive, padding": ("a = Add(m, b)", "float[B,1,1,S] b"),
    "additive, all": ("a = Add(b, m)", "float[B,1,5,5] b"),
    "additive, heads": ("a = Add(m, b)", "float[1,3,5,5] b"),
    "additive, rank 2": ("a = Add(m, b)", "float[5,5] b"),
    "bert": (
        "u = Unsqueeze(b, axes12) f = Cast<to=1>(u) n = Sub(one, f) w = Mul(n, far) a = Add(m, w)",
        "int64[B,S] b",
    ),
    "where, kept": ("u = Unsqueeze(b, axes12) a = Where(u, m, inf)", "bool[B,S] b"),
    "where, masked": ("u = Unsqueeze(b, axes12) a = Where(u, inf, m)", "bool[B,S] b"),
}


def keep_one(feeds: dict[str, np.ndarray], kept: bool) -> dict[str, np.ndarray]:
    """No row without a single key, whose values are not defined under a mask of -inf."""
    if feeds["b"].dtype == np.bool_:
        feeds["b"][..., 0] = kept
    return feeds


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    steps, declared = MASKS[name]
    body = PLAIN.replace("p = Softmax<axis=-1>(m)", f"{steps} p = Softmax<axis=-1>(a)")
    length = "5" if "5" in declared else "S"
    model = attention(body, x=f"float[B,{length},12] x", extra=f", {declared}", out=f"float[B,{length},12] y")
    applied = apply(NEWEST, model)
    assert applied.count == 1, applied.reason
    rng = np.random.default_rng(0)
    for batch in (1, 2):
        shapes = {"x": (batch, 5, 12), "b": {"S": 5, "B": batch}}
        dims = [{"S": 5, "B": batch}.get(d, d) for d in model.inputs[1].shape]
        values = rng.integers(0, 2, [int(d) for d in dims]).astype(model.inputs[1].dtype)
        if "float" in model.inputs[1].dtype:
            values = rng.normal(size=values.shape).astype(np.float32) * 3
        feeds = keep_one({"x": rng.normal(size=shapes["x"]).astype(np.float32), "b": values}, name != "where, masked")
        before, after = run(model, feeds)["y"], run(applied.model, feeds)["y"]
        assert np.isfinite(before).all()
        np.testing.assert_allclose(after, before, atol=1e-5 * np.abs(before).max())


POSITIONS = (
    "z = Shape<start=1,end=2>({of}) p0 = Slice(table, at0, z, at1) e = Add(x0, p0) x = Add(e, e) "
    "o = Cast<to=1>(b) bu = Unsqueeze(o, axes12) "
)
"""Learned positions, the first S of a table, added to words [B, S, E]: rows of min(S, 16), which S are by the Add."""


def positions(of: str, mask: str) -> Model:
    body = PLAIN.replace("p = Softmax<axis=-1>(m)", "a = Add(m, bu) p = Softmax<axis=-1>(a)")
    ARRAYS["table"] = rand(9, 1, 16, EMBED)
    return attention(POSITIONS.format(of=of) + body, x="float[B,S,12] x0", extra=f", bool[B,{mask}] b")


@pytest.mark.parametrize("length", [1, 5, 16])
def test_positions_from_a_table(length: int) -> None:
    fused(positions("b", "S"), B=2, S=length)
    fused(positions("x0", "S"), B=2, S=length)


@pytest.mark.parametrize(("of", "mask"), [("x0", "T"), ("b", "T")])
def test_positions_that_tell_nothing_of_the_mask(of: str, mask: str) -> None:
    applied = apply(NEWEST, positions(of, mask))
    assert applied.count == 0
    assert "not known to fit" in applied.reason or "no known shape" in applied.reason


def test_mask_is_expanded_once_for_all_layers() -> None:
    first = PLAIN.replace("p = Softmax<axis=-1>(m)", "a = Add(m, b) p = Softmax<axis=-1>(a)")
    names = ("q", "k", "v", "qr", "kr", "vr", "qh", "kh", "vh", "kt", "s", "m", "a", "p", "c", "ct", "cr", "y")
    second = f" {first} "
    for name in names:
        second = (
            second.replace(f" {name} =", f" {name}2 =")
            .replace(f"({name},", f"({name}2,")
            .replace(f"({name})", f"({name}2)")
        )
        second = second.replace(f", {name})", f", {name}2)")
    body = first.replace("y = MatMul(cr, wo)", "x2 = MatMul(cr, wo)") + second.replace("(x,", "(x2,").replace(
        "y2 =", "y ="
    )
    after = fused(attention(body, extra=", float[B,1,1,S] b"), 2, S=5, B=2).model
    assert ops(after)["Expand"] == 1


def test_rows_without_a_key() -> None:
    """Row 1 of the batch has no key: uniform under a finite mask, zeros where the model asks for them."""
    guarded = "u = Unsqueeze(b, axes12) w = Where(u, zero, inf) a = Add(m, w) o = Softmax<axis=-1>(a) n = IsNaN(o)"
    finite = "u = Unsqueeze(b, axes12) f = Cast<to=1>(u) n = Sub(one, f) w = Mul(n, far) a = Add(m, w)"
    feeds = {"x": rand(1, 2, 5, 12), "b": np.array([[True] * 3 + [False] * 2, [False] * 5])}
    for steps, softmax in ((guarded, "p = Where(n, zero, o)"), (finite, "p = Softmax<axis=-1>(a)")):
        body = PLAIN.replace("p = Softmax<axis=-1>(m)", f"{steps} {softmax}")
        model = attention(body, extra=", bool[B,S] b")
        applied = apply(NEWEST, model)
        assert applied.count == 1, applied.reason
        before, after = run(model, feeds)["y"], run(applied.model, feeds)["y"]
        assert (before[1] == 0).all() == (steps is guarded)
        np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("m = Mul(s, half)", "m = Mul(s, vector)", "the scale is not one number"),
        ("m = Mul(s, half)", "m = Mul(s, zero)", "the scale is 0"),
        (
            "y = MatMul(cr, wo)",
            "o = MatMul(cr, wo) e = ReduceSum<keepdims=0>(s) y = Add(o, e)",
            "the scores are read elsewhere",
        ),
        (
            "y = MatMul(cr, wo)",
            "o = MatMul(cr, wo) e = ReduceSum<keepdims=0>(p) y = Add(o, e)",
            "the probabilities are read",
        ),
        ("ct = Transpose<perm=[0,2,1,3]>(c)", "ct = Relu(c)", "its result is not transposed back"),
        ("Softmax<axis=-1>", "Softmax<axis=2>", "the Softmax is over another axis"),
        ("qh = Transpose<perm=[0,2,1,3]>(qr)", "qh = Reshape(qr, swapped)", "the heads are not made by a Transpose"),
    ],
)
def test_what_is_refused(old: str, new: str, why: str) -> None:
    body = PLAIN.replace(old, new)
    ARRAYS["swapped"] = ints(0, HEADS, -1, WIDTH)
    fixed = "float[2,6,12]"
    out = f"{fixed} y" if "Relu(c)" not in body else "float[L,M,12] y"
    applied = apply(NEWEST, attention(body, x=f"{fixed} x", out=out))
    assert applied.count == 0
    assert why in applied.reason


@pytest.mark.parametrize(
    ("steps", "declared", "why"),
    [
        ("u = Unsqueeze(b, axes12) a = Where(u, m, far)", "bool[B,S] b", "not far below"),
        ("a = Add(m, b)", "float[C,1,1,S] b", "not known to fit"),
        ("w = Add(m, b) a = Add(w, b)", "float[B,1,1,S] b", "there are two masks"),
        ("w = Add(m, b) a = Mul(w, half)", "float[B,1,1,S] b", "the mask is scaled"),
    ],
)
def test_masks_that_are_refused(steps: str, declared: str, why: str) -> None:
    body = PLAIN.replace("p = Softmax<axis=-1>(m)", f"{steps} p = Softmax<axis=-1>(a)")
    applied = apply(NEWEST, attention(body, extra=f", {declared}"))
    assert applied.count == 0
    assert why in applied.reason


def test_batches_that_may_differ() -> None:
    body = PLAIN.replace("k = MatMul(x, wk) v = MatMul(x, wv)", "k = MatMul(z, wk) v = MatMul(z, wv)")
    applied = apply(NEWEST, attention(body, extra=", float[C,T,12] z"))
    assert "not known to have one batch" in applied.reason


def test_the_oldest_runtime_of_the_target_decides() -> None:
    plain = attention(PLAIN)
    masked = attention(
        PLAIN.replace("p = Softmax<axis=-1>(m)", "a = Add(m, b) p = Softmax<axis=-1>(a)"), extra=", float[B,1,1,S] b"
    )
    target = load_target("raspberry-pi-5")
    counts = {
        v: (apply(fuse_attention(v), plain, target).count, apply(fuse_attention(v), masked, target).count)
        for v in ("1.15.1", "1.17.0", "1.20.1", "1.21.1", "1.23.2")
    }
    assert counts == {"1.15.1": (0, 0), "1.17.0": (1, 0), "1.20.1": (1, 0), "1.21.1": (1, 1), "1.23.2": (1, 1)}
    assert "misplaces masks" in apply(fuse_attention("1.20.1"), masked, target).reason
    assert "no such operator" in apply(fuse_attention("1.15.1"), plain, target).reason


def test_a_planted_error_is_caught() -> None:
    model = attention(PLAIN)
    applied = apply(NEWEST, model)
    wrong = node(applied.model, "MultiHeadAttention").attributes["scale"]
    assert wrong.as_float() == 0.5
    node(applied.model, "MultiHeadAttention").attributes["scale"] = type(wrong)("scale", wrong.type, 0.51)
    with pytest.raises(AssertionError):
        assert_equal(model, applied.model, NEWEST.tolerance, S=5)
