"""IN10: operators that nobody here knows are named; the file still loads."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from edgeopt.findings import custom, look

from . import nets


@pytest.mark.parametrize(
    ("where", "domain"), [("acme", "domain acme"), ("default", "the default domain"), ("branch", "domain acme")]
)
def test_an_unknown_operator_is_named_with_domain_and_node(where: str, domain: str, tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.plugin(where))
    finding = next(f for f in look(model) if f.kind == "custom-operators")
    assert finding.level == "refusal"
    assert finding.nodes == ("plug",)
    assert finding.text.endswith(f"does not know MyPlugin of {domain} (node plug)")
    assert finding.remedy is not None
    assert "--custom-ops LIBRARY" in finding.remedy
    assert custom.operators(model) == (f"{'ai.onnx' if where == 'default' else 'acme'}:MyPlugin",)
    plug = next(n for n in model.nodes() if n.op_type == "MyPlugin")
    assert plug.domain == ("" if where == "default" else "acme")
    assert plug.attributes["k"].as_int() == 3


def test_operators_of_the_runtime_are_known(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft", transB=1)],
        [nets.value("x", [2, 2])],
        [nets.value("y", [2, 2])],
        domains=["com.microsoft"],
    )
    assert custom.unknown_nodes(nets.load(tmp_path, proto)) == ()


def test_shapes_can_be_given_around_an_unknown_operator(tmp_path: Path) -> None:
    from edgeopt import loaders

    path = nets.write(tmp_path / "model.onnx", nets.plugin("default"))
    model = loaders.load(path, shapes={"x": (2, 4, 16, 16)})
    assert model.inputs[0].shape == (2, 4, 16, 16)
    assert onnx.load(path).graph.node[2].domain == ""
