"""Q13: what the numbers and the interface of a network are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edgeopt.findings import look, types

from . import nets


@pytest.mark.parametrize(
    ("kind", "dtype", "name"),
    [
        (TensorProto.FLOAT, np.float32, "float32"),
        (TensorProto.FLOAT16, np.float16, "float16"),
        (TensorProto.DOUBLE, np.float64, "float64"),
    ],
)
def test_the_type_that_a_network_computes_in(kind: int, dtype: type, name: str, tmp_path: Path) -> None:
    weights = {"w": np.ones((4, 3, 3, 3), dtype)}
    proto = nets.proto(
        [nets.node("Conv", ["x", "w"], ["y"])],
        [nets.value("x", [1, 3, 8, 8], kind)],
        [nets.value("y", [1, 4, 6, 6], kind)],
        weights,
    )
    model = nets.load(tmp_path, proto)
    assert types.computes_in(model) == name
    assert [f.kind for f in look(model)] == ([] if name == "float32" else ["floats"])


def test_strings_are_refused(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("StringNormalizer", ["text"], ["y"])],
        [nets.value("text", [1], TensorProto.STRING)],
        [nets.value("y", [1], TensorProto.STRING)],
    )
    (finding,) = look(nets.load(tmp_path, proto))
    assert finding.level == "refusal"
    assert finding.text == "strings at text, y: no set can feed or compare them"
