"""IN06: what came quantized is recognized, counted, and held against the rules of the target."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from edgeopt.findings import look, quantized
from edgeopt.findings.quantized import Quantized
from edgeopt.target import load_target

from . import nets


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("qdq", Quantized(pairs=2, weights=1, operators={}, float_keys=())),
        ("uint8", Quantized(pairs=2, weights=1, operators={}, float_keys=())),
        ("half", Quantized(pairs=2, weights=1, operators={}, float_keys=("float_conv",))),
        ("qoperator", Quantized(pairs=0, weights=0, operators={"QLinearAdd": 1, "QLinearConv": 1}, float_keys=())),
    ],
)
def test_what_is_quantized_is_counted(kind: str, held: Quantized, tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.quantized(kind))
    assert quantized.count(model) == held
    (finding,) = look(model)
    assert finding.text.startswith("quantized already: ")
    assert finding.level == "note"


def test_a_float_network_is_not_quantized(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.fixed_batch([0, 4, 36]))
    assert not quantized.count(model)
    assert look(model) == ()


def test_an_add_with_one_quantized_branch_cannot_fuse(tmp_path: Path) -> None:
    _, finding = look(nets.load(tmp_path, nets.quantized("residual")))
    assert finding.level == "warning"
    assert finding.nodes == ("residual",)
    assert "only one branch of residual" in finding.text


def test_an_add_of_two_quantized_branches_or_of_a_constant_can(tmp_path: Path) -> None:
    proto = nets.quantized("residual")
    proto.graph.node[-1].input[1] = "xd"
    assert len(look(nets.load(tmp_path, proto))) == 1
    proto.graph.node[-1].input[1] = "sy"
    assert len(look(nets.load(tmp_path, proto))) == 1


def test_weight_only_and_other_integer_operators_count(tmp_path: Path) -> None:
    proto = nets.proto(
        [
            nets.node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"),
            nets.node("MatMulInteger", ["q", "w", "z"], ["i"], name="product"),
            nets.node("Cast", ["i"], ["f"], to=1),
            nets.node("Mul", ["f", "s"], ["y"]),
        ],
        [nets.value("x", [2, 4])],
        [nets.value("y", [2, 3])],
        {"w": np.ones((4, 3), np.uint8)},
    )
    held = quantized.count(nets.load(tmp_path, proto))
    assert held.operators == {"DynamicQuantizeLinear": 1, "MatMulInteger": 1}
    assert held


def test_tensorrt_wants_signed_and_symmetric_grids(tmp_path: Path) -> None:
    jetson, board = load_target("jetson"), load_target("raspberry-pi-5")
    assert jetson.backends[0] == "tensorrt"
    unsigned = nets.load(tmp_path, nets.quantized("uint8"))
    (finding,) = quantized.refused_by_tensorrt(unsigned, jetson)
    assert finding.text == "uint8 in q_in, dq_in, q_out, dq_out: TensorRT takes signed int8 only"
    assert finding.level == "warning"
    assert quantized.refused_by_tensorrt(unsigned, board) == ()
    signed = nets.load(tmp_path, nets.quantized("qdq"))
    assert quantized.refused_by_tensorrt(signed, jetson) == ()
    operators = nets.load(tmp_path, nets.quantized("qoperator"))
    texts = [f.text for f in quantized.refused_by_tensorrt(operators, jetson)]
    assert texts == [
        "a zero point that is not 0 in dq_out: TensorRT takes symmetric grids only",
        "operators that TensorRT's parser does not know: QLinearConv conv, QLinearAdd add",
    ]
    second = dataclasses.replace(jetson, backends=("onnxruntime", "tensorrt"))
    assert quantized.refused_by_tensorrt(unsigned, second) == ()


def test_without_a_zero_point_quantizelinear_is_unsigned(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("QuantizeLinear", ["x", "s"], ["q"], name="q"), nets.node("DequantizeLinear", ["q", "s"], ["y"])],
        [nets.value("x", [4])],
        [nets.value("y", [4])],
        {"s": np.float32(0.1)},
    )
    (finding,) = quantized.refused_by_tensorrt(nets.load(tmp_path, proto), load_target("jetson"))
    assert finding.nodes[0] == "q"
