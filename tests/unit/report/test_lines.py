from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeopt.report.lines import align, peak


def moments(**live: int) -> list[dict[str, object]]:
    return [{"key": key, "op": "Conv", "live_bytes": value} for key, value in live.items()]


def test_nodes_of_one_graph_only_count_at_the_next_shared_one() -> None:
    lines, count = align({"float32": moments(a=10, b=20, c=30), "int8": moments(q=9, a=3, dq=4, b=5, c=2, tail=7)})
    assert count == 3
    assert lines == {"float32": [10, 20, 30], "int8": [9, 5, 7]}


def test_a_node_that_is_missing_keeps_the_value_before() -> None:
    lines, _ = align({"float32": moments(a=10, relu=10, b=20), "int8": moments(a=3, b=5)})
    assert lines["int8"] == [3, 3, 5]


def test_graphs_without_common_names_keep_their_own_axis() -> None:
    lines, count = align({"float32": moments(a=1, b=2), "int8": moments(x=3, y=4, z=5)})
    assert count == 0
    assert lines["int8"] == [3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 99)), min_size=1, max_size=20))
def test_the_peak_survives_alignment(nodes: list[tuple[int, int]]) -> None:
    reference = [{"key": str(k), "op": "Conv", "live_bytes": 50} for k in range(6)]
    other = [{"key": str(k), "op": "Conv", "live_bytes": live} for k, live in nodes]
    lines, _ = align({"float32": reference, "int8": other})
    assert max(lines["int8"]) == peak(other)["live_bytes"]
