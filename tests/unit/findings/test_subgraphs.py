"""IN04: subgraphs are seen, and what they share with the graph around them."""

from __future__ import annotations

from pathlib import Path

from edgeopt.findings import look, subgraphs

from . import nets


def test_branches_and_the_weights_that_they_share_are_counted(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.shared_branches())
    (finding,) = look(model)
    assert finding.text == (
        "4 subgraphs of 2 control nodes, 3 with weighted operators, which stay float; they read 1 weight of the "
        "outer graph"
    )
    why = subgraphs.not_quantized(model)
    assert why is not None
    assert why.startswith("3 subgraphs not quantized: ")


def test_a_plain_graph_has_none(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.fixed_batch([0, 4, 36]))
    assert subgraphs.find(model) == ()
    assert subgraphs.not_quantized(model) is None
