"""The example of docs/add-a-pass.md is run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeopt import passes
from edgeopt.backends import onnxruntime
from edgeopt.passes import Pass, _graph, apply
from edgeopt.target import load_target

from .helpers import assert_equal, build

PAGE = Path(__file__).parents[3] / "docs" / "add-a-pass.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_blocks_run_and_their_assertions_hold() -> None:
    assert len(BLOCKS) == 2
    namespace: dict[str, object] = {"__name__": "join_relus"}
    for block in BLOCKS:
        # Both blocks are one module to the reader; the page's own assertions are the test.
        exec(compile(block, str(PAGE), "exec"), namespace)
    text = "g (float[4] x) => (float[4] y, float[4] a) { a = Relu(x) y = Relu(a) }"
    applied = apply(namespace["JOIN_RELUS"], build(text))  # type: ignore[arg-type]
    assert applied.count == 0
    assert "graph output" in applied.reason


def test_an_assertion_of_the_page_can_fail() -> None:
    namespace: dict[str, object] = {"__name__": "join_relus"}
    exec(compile(BLOCKS[0].replace("count += 1", "count += 2"), str(PAGE), "exec"), namespace)
    with pytest.raises(AssertionError):
        exec(compile(BLOCKS[1], str(PAGE), "exec"), namespace)


@pytest.mark.parametrize("name", re.findall(r"`(\w+)\((?:value|node, i|anchor, follower|model)\)`", PAGE.read_text()))
def test_helpers_that_the_page_names_exist(name: str) -> None:
    assert hasattr(_graph, name)


def test_example_on_a_chain() -> None:
    namespace: dict[str, object] = {"__name__": "join_relus"}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), namespace)
    model = build("g (float[4] x) => (float[4] y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Neg(c) }")
    applied = apply(namespace["JOIN_RELUS"], model)  # type: ignore[arg-type]
    assert applied.count == 2
    assert_equal(model, applied.model, 1e-7)


def test_every_rewrite_says_what_it_would_gain() -> None:
    shipped = [p for name in ("host", "jetson-nano") for p in onnxruntime.passes(load_target(name))]
    rewrites = [*passes.NORMALIZE, *passes.FUSIONS, *shipped]
    assert [p.name for p in rewrites if p.gain == Pass.gain] == []
