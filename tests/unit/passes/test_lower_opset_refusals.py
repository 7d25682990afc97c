"""What an older opset cannot say is refused, by name, and the model left whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeopt.passes import apply
from edgeopt.passes.lower_opset import lower_opset
from edgeopt.passes.lower_opset._table import RULES, WIDER

from .helpers import build, ints, rand

F = np.float32


def opset(model) -> int:
    return model.ir.opset_imports[""]


REFUSED: dict[str, tuple[int, int, str, str, dict[str, np.ndarray]]] = {
    "16-bit quantization": (
        21,
        20,
        "g (float[4] x) => (uint16[4] y) { y = QuantizeLinear(x, s, z) }",
        "takes no tensor(uint16) there",
        {"s": np.array(0.1, F), "z": np.array(3, np.uint16)},
    ),
    "blocks of scales": (
        21,
        20,
        "g (float[2,4] x) => (uint8[2,4] y) { y = QuantizeLinear<block_size=2, axis=1>(x, s, z) }",
        "one per block",
        {"s": rand(0, 2, 2, low=0.1), "z": np.zeros((2, 2), np.uint8)},
    ),
    "half scales": (
        19,
        17,
        "g (float16[4] x) => (uint8[4] y) { y = QuantizeLinear(x, s, z) }",
        "takes no tensor(float16) there",
        {"s": np.array(0.1, np.float16), "z": np.array(3, np.uint8)},
    ),
    "computed axes": (
        20,
        17,
        "g (float[2,4] x, int64[1] a) => (float[A,B] y) { y = ReduceMean(x, a) }",
        "its axes are computed",
        {},
    ),
    "wrapping pads": (
        20,
        18,
        'g (float[4] x) => (float[A] y) { y = Pad<mode="wrap">(x, p) }',
        "its mode is wrap",
        {"p": ints(1, 1)},
    ),
    "dilated average": (
        20,
        18,
        "g (float[1,1,8,8] x) => (float[1,1,A,B] y) { y = AveragePool<kernel_shape=[2,2], dilations=[2,2]>(x) }",
        "it is dilated",
        {},
    ),
    "scatter by max": (
        20,
        17,
        'g (float[4,3] x, float[2,3] u) => (float[4,3] y) { y = ScatterND<reduction="max">(x, i, u) }',
        "reduces by min or max",
        {"i": np.array([[0], [2]], np.int64)},
    ),
    "split of an unknown size": (
        20,
        17,
        "g (float[N] x) => (float[A] a, float[B] b) { a, b = Split<num_outputs=2>(x) }",
        "not known",
        {},
    ),
    "smoothed resize": (
        20,
        17,
        'g (float[1,1,8,8] x) => (float[1,1,4,4] y) { y = Resize<antialias=1, mode="linear">(x, "", s) }',
        "it smooths",
        {"s": np.array([1, 1, 0.5, 0.5], F)},
    ),
    "grid sample": (
        20,
        13,
        "g (float[1,2,4,4] x, float[1,3,3,2] i) => (float[1,2,3,3] y) { y = GridSample(x, i) }",
        "GridSample-16 has no counterpart in opset 13",
        {},
    ),
    "batch first": (
        20,
        13,
        "g (float[2,3,4] x) => (float[2,3,1,5] y) { y = RNN<layout=1, hidden_size=5>(x, w, r) }",
        "the batch comes first",
        {"w": rand(0, 1, 5, 4), "r": rand(1, 1, 5, 5)},
    ),
    "a zero that stays": (
        20,
        13,
        "g (float[0,4] x) => (float[A,B] y) { y = Reshape<allowzero=1>(x, s) }",
        "may hold a 0",
        {"s": ints(0, 3)},
    ),
    "padding that is counted beyond": (
        22,
        20,
        """g (float[1,1,8,8] x) => (float[1,1,A,B] y) {
            y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1, count_include_pad=1>(x)
        }""",
        "counts its padding",
        {},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_older_opset_cannot_say_is_refused_and_left_whole(name: str) -> None:
    source, wanted, text, why, arrays = REFUSED[name]
    model = build(text, opset=source, ir_version=10 if source > 20 else 9, **arrays)
    applied = apply(lower_opset(wanted), model)
    assert applied.count == 0
    assert applied.model is model
    assert opset(model) == source
    assert why in applied.reason


def test_refusals_name_every_node() -> None:
    text = """g (float[1,2,4,4] x, float[1,3,3,2] i) => (float[1,2,3,3] y) {
        a = GridSample(x, i) b = GridSample(x, i) y = Add(a, b)
    }"""
    applied = apply(lower_opset(13), build(text))
    assert [r.node for r in applied.refusals] == ["GridSample:a", "GridSample:b"]


def test_an_operator_version_without_a_rule_is_refused() -> None:
    """A model of a standard that is newer than the table must not be stamped."""
    known = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    open_ = {(op, version) for op, version in known if version > 13} - WIDER - set(RULES)
    assert ("GridSample", 16) in open_
    assert ("Cast", 24) not in open_
    assert not (WIDER | set(RULES)) - known, "the table names versions that do not exist"


def test_the_wider_versions_are_wider_in_the_schemas() -> None:
    """What only takes more types must have the same attributes, inputs and outputs as the version before."""
    for op, version in sorted(WIDER):
        new, old = onnx.defs.get_schema(op, version), onnx.defs.get_schema(op, version - 1)
        assert set(new.attributes) <= set(old.attributes), op
        assert [i.name.lstrip("input_") for i in new.inputs] == [i.name.lstrip("input_") for i in old.inputs], op
        assert len(new.outputs) == len(old.outputs), op
        for name, attribute in new.attributes.items():
            before = old.attributes[name]
            assert attribute.default_value.SerializeToString() == before.default_value.SerializeToString(), (op, name)
